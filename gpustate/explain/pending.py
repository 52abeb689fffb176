"""Why a pod does not get its GPUs: refused, not scheduled, or not started; every cause with its Node and fix. Pure.

What can be judged from Nodes, taints, labels, resources and the pods that use them is judged here, Node by Node. For
everything else the scheduler's and the kubelet's own messages are the evidence.

Sources:
    kubernetes/kubernetes, pkg/scheduler (Unschedulable messages), pkg/kubelet/kuberuntime (CreatePodSandbox),
    pkg/kubelet/lifecycle (UnexpectedAdmissionError), pkg/controller (FailedCreate), plugin/pkg/admission/{resourcequota,runtimeclass};
    containerd, internal/cri/server ("no runtime for ... is configured");
    NVIDIA/k8s-device-plugin, values of resources by sharing and MIG strategy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpustate.cluster import pods
from gpustate.cluster.scheduling import show_taint, unmet_selector, untolerated
from gpustate.cluster.snapshots import Snapshot
from gpustate.diagnosis import container_checks, remedies
from gpustate.documents import Json
from gpustate.manifests.settings import STARTUP_TAINT
from gpustate.reconcile import readiness
from gpustate.reconcile.placement import RELABEL, device_plugin_obstacle
from gpustate.reconcile.verdicts import TRUE
from gpustate.schedulers import foreign
from gpustate.schedulers.mig_state import CONFIG

_VENDOR = "nvidia.com/"
_HOLD = "gpustate.io/hold"
_HEALTHY = "GPUHealthy"
_ENDED = ("Succeeded", "Failed")
_SCHEDULERS_TAINTS = ("node.kubernetes.io/unschedulable",)
_NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
#: Names of the device plugin's pods: the Operator's, the Helm chart's, the static manifest's.
_PLUGIN = re.compile(r"nvidia-(dra|gpu)?-?device-plugin|nvdp-")
_NOT_PLUGIN = re.compile(r"mps-control-daemon|validator")
_QUARANTINE = re.compile(r"in quarantine: [^;]+")
_NO_HANDLER = re.compile(
    r'no runtime for "([^"]*)" is configured|runtime handler "?([\w.-]+)"? not'
)
_NO_CLASS = re.compile(r'RuntimeClass.* not found|runtimeclass\S* "?[^"]*"? not found', re.I)
_QUOTED = re.compile(r'"([^"]+)"')
_IMAGE = ("ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName")
_CREATE = ("CreateContainerError", "CreateContainerConfigError", "RunContainerError")
_MOST_NAMES = 5


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause.

    Args:
        cause: a fixed word.
        nodes: names of the Nodes it concerns; none: the pod itself, or the whole cluster.
        evidence: what shows it.
        remedy: the next move.
    """

    cause: str
    nodes: tuple[str, ...]
    evidence: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A pod, and why it does not run.

    Args:
        status: a headline.
        waits: the pod does not run, and should.
        causes: of that, the most specific first.
        scheduler: the scheduler's own words; empty if it has said nothing.
    """

    status: str
    waits: bool
    causes: tuple[Cause, ...] = ()
    scheduler: str = ""


def explain(snapshot: Snapshot) -> Explanation:
    """Judge a pod."""
    pod = snapshot.pod
    if pod is None:
        causes = tuple(_refused(snapshot))
        owned = _owned(snapshot)
        if owned:
            kind, names = owned
            words = f"no pod; {kind} {snapshot.name} has {len(names)}: name one"
            remedy = f"gpustate explain --pod {snapshot.namespace}/{names[0]}"
            pods_cause = Cause("no-pod", (), f"pods: {', '.join(_names(names))}", remedy)
            return Explanation(words, waits=True, causes=(*causes, pods_cause))
        return Explanation("no such pod", waits=True, causes=causes or (_absent(snapshot),))
    status = pod.get("status") or {}
    phase, node = status.get("phase", "Pending"), (pod.get("spec") or {}).get("nodeName", "")
    where = f" on {node}" if node else ""
    if pod["metadata"].get("deletionTimestamp"):
        return Explanation(f"terminating{where}", waits=True, causes=(_terminating(pod, node),))
    if phase == "Succeeded":
        return Explanation(f"has succeeded{where}", waits=False)
    if phase == "Failed":
        return Explanation(f"has failed{where}", waits=True, causes=tuple(_failed(pod, node)))
    if not node:
        message = _scheduler(status)
        causes = tuple(_unscheduled(snapshot, pod, message))
        return Explanation("not scheduled", waits=True, causes=causes, scheduler=message)
    ready = any(
        c["type"] == "Ready" and c["status"] == TRUE for c in status.get("conditions") or ()
    )
    if ready:
        return Explanation(f"runs{where}", waits=False, causes=tuple(_no_request(pod)))
    return Explanation(f"not started{where}", waits=True, causes=tuple(_not_started(snapshot, pod)))


# --- it does not exist ----------------------------------------------------------------------------


def _refused(snapshot: Snapshot) -> Iterator[Cause]:
    """Why a controller could not create it; such a pod has no events of its own."""
    for event in reversed(_by_time(snapshot.events)):
        owner = event.get("involvedObject") or {}
        name = str(owner.get("name") or "")
        if event.get("reason") != "FailedCreate" or not _belongs(snapshot.name, name):
            continue
        words = str(event.get("message") or "")
        evidence = f"{str(owner.get('kind', 'controller')).lower()}/{name}: {words}"
        if "exceeded quota" in words:
            remedy = f"free GPUs in the namespace, or raise the quota: kubectl describe quota -n {snapshot.namespace}"
            yield Cause("quota-exceeded", (), evidence, remedy)
        elif _NO_CLASS.search(words):
            named = _QUOTED.search(words[words.lower().index("runtimeclass") :])
            yield _no_class(snapshot, named[1] if named else "", (), evidence)
        elif "violates PodSecurity" in words:
            remedy = f"allow it in the namespace's labels, or drop what is named: kubectl get namespace {snapshot.namespace} -o yaml"
            yield Cause("pod-security", (), evidence, remedy)
        else:
            yield Cause("creation-refused", (), evidence, "change what the message names")
        return


def _no_class(snapshot: Snapshot, name: str, nodes: tuple[str, ...], evidence: str) -> Cause:
    if name == pods.RUNTIME_CLASS:
        remedy = f"create it: {RELABEL}"
    else:
        classes = ", ".join(sorted(snapshot.runtime_classes or ())) or "no RuntimeClass"
        remedy = f"correct runtimeClassName; the cluster has {classes}"
        if snapshot.runtime_classes is None:
            remedy = "correct runtimeClassName: kubectl get runtimeclasses"
        remedy += f"; a class of the policy is created by {RELABEL}"
    return Cause("runtime-class-missing", nodes, evidence, remedy)


def _belongs(name: str, owner: str) -> bool:
    """Whether an object may have been to create the pod, or was meant itself."""
    return bool(owner) and (
        name == owner or name.startswith(f"{owner}-") or owner.startswith(f"{name}-")
    )


def _owned(snapshot: Snapshot) -> tuple[str, list[str]] | None:
    """Kind and pods of the controller of this name; ``None`` if it has none."""
    kinds: dict[str, list[str]] = {}
    for pod in snapshot.pods:
        metadata = pod["metadata"]
        if metadata.get("namespace") != snapshot.namespace:
            continue
        for owner in metadata.get("ownerReferences") or ():
            name, kind = owner["name"], owner["kind"]
            if kind == "ReplicaSet" and name.rpartition("-")[0] == snapshot.name:
                kinds.setdefault("Deployment", []).append(metadata["name"])
            elif name == snapshot.name:
                kinds.setdefault(kind, []).append(metadata["name"])
    return next(((kind, sorted(names)) for kind, names in kinds.items()), None)


def _absent(snapshot: Snapshot) -> Cause:
    evidence = f"no pod {snapshot.name} in namespace {snapshot.namespace}, and no controller reports that it could not create one"
    remedy = f"list pods: kubectl get pods -n {snapshot.namespace}; why a pod without a controller was refused, only its kubectl apply prints"
    return Cause("no-pod", (), evidence, remedy)


# --- it is not scheduled --------------------------------------------------------------------------


def _scheduler(status: Json) -> str:
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] != TRUE:
            return str(condition.get("message") or condition.get("reason") or "")
    return ""


def _unscheduled(snapshot: Snapshot, pod: Json, message: str) -> Iterator[Cause]:
    spec = pod.get("spec") or {}
    gates = [gate["name"] for gate in spec.get("schedulingGates") or ()]
    if gates:
        remedy = "the controller that set the gate removes it (a queue such as Kueue admits the pod): check its queue"
        yield Cause("scheduling-gate", (), f"schedulingGates: {', '.join(gates)}", remedy)
        return
    claims = list(_claims(snapshot, pod))
    yield from claims
    unknown = list(_unknown(snapshot, pod))
    yield from unknown
    requests = pods.reserved(
        pod, lambda name: name.startswith(_VENDOR) and not _is_unknown(snapshot, name)
    )
    if unknown and not requests:
        return
    nodes = [
        n
        for n in snapshot.nodes
        if not requests or _concerns(n, requests) or (_selects(spec) and not unmet_selector(pod, n))
    ]
    if requests and not nodes:
        words = ", ".join(sorted(requests))
        evidence = f"requests {words}; none of {len(snapshot.nodes)} Nodes has GPUs"
        yield Cause("no-gpu-node", (), evidence, f"set up Nodes with GPUs: {RELABEL}")
    by_node = _holders(snapshot.pods)
    rows: list[tuple[str, Cause]] = []
    free: list[str] = []
    for node in nodes:
        name = node["metadata"]["name"]
        obstacles = list(_obstacles(snapshot, pod, node, requests, by_node.get(name, [])))
        rows += [(name, cause) for cause in obstacles]
        free += [] if obstacles else [name]
    yield from _grouped(rows)
    # A scheduler does not look at a pod whose claim is missing, and says nothing of it.
    ignored = not message and any(cause.cause == "claim-missing" for cause in claims)
    if (free or not nodes) and not ignored and not unknown:
        yield from _by_words(snapshot, spec, message, free)


def _is_unknown(snapshot: Snapshot, name: str) -> bool:
    """Whether a resource is a device that no Node has, and none that NVIDIA's device plugin names."""
    domain, slash, _ = name.rpartition("/")
    extended = bool(slash) and not domain.endswith("kubernetes.io") and not pods.is_gpu(name)
    return extended and not any(pods.quantity(node, "capacity", name) for node in snapshot.nodes)


def _unknown(snapshot: Snapshot, pod: Json) -> Iterator[Cause]:
    for name in sorted(pods.reserved(pod, lambda name: _is_unknown(snapshot, name))):
        evidence = f"requests {name}, which none of {len(snapshot.nodes)} Nodes has"
        if name.startswith(_VENDOR):
            resources = {
                key
                for node in snapshot.nodes
                for key in (node.get("status") or {}).get("capacity") or ()
                if key.startswith(_VENDOR)
            }
            names = ", ".join(sorted(resources)) or pods.GPU
            remedy = f"correct its name ({names}), or set up the device plugin that offers it"
        else:
            vendor = name.rpartition("/")[0]
            remedy = f"for GPUs of NVIDIA request {pods.GPU}; {name} takes a device plugin of {vendor}, which gpustate does not install"
        yield Cause("unknown-resource", (), evidence, remedy)


def _selects(spec: Json) -> bool:
    """Whether a pod names the Nodes it is for."""
    return bool(spec.get("nodeSelector") or (spec.get("affinity") or {}).get("nodeAffinity"))


def _concerns(node: Json, resources: Iterable[str]) -> bool:
    return pods.has_gpus(node) or any(pods.quantity(node, "capacity", name) for name in resources)


def _by_words(snapshot: Snapshot, spec: Json, message: str, free: list[str]) -> Iterator[Cause]:
    """What the scheduler says of Nodes that nothing here speaks against."""
    on = _names(free)
    if not message:
        name = spec.get("schedulerName", "default-scheduler")
        evidence = f"schedulerName {name}: no scheduler has reported on the pod"
        yield Cause("no-scheduler", (), evidence, f"check that the scheduler {name} runs")
        return
    insufficient = sorted(set(re.findall(r"Insufficient ([^\s,.]+(?:\.[^\s,.]+)*)", message)))
    insufficient = [resource for resource in insufficient if not resource.startswith(_VENDOR)]
    if insufficient and free:
        remedy = f"request less, or free it: kubectl describe node {free[0]}"
        evidence = f"insufficient {', '.join(insufficient)}, and nothing else keeps the pod off"
        yield Cause("other-resource-short", tuple(on), evidence, remedy)
    elif "persistentvolumeclaim" in message.lower() or "persistent volume" in message.lower():
        remedy = f"kubectl get pvc -n {snapshot.namespace}"
        yield Cause("volume", (), message, remedy)
    elif free:
        yield Cause("scheduler", tuple(on), message, "change what the scheduler names")


def _claims(snapshot: Snapshot, pod: Json) -> Iterator[Cause]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    claim_names = {
        row["name"]: row.get("resourceClaimName")
        for row in status.get("resourceClaimStatuses") or ()
    }
    existing = {
        claim["metadata"]["name"]: claim
        for claim in snapshot.claims
        if claim["metadata"].get("namespace") == snapshot.namespace
    }
    for entry in spec.get("resourceClaims") or ():
        name = entry.get("resourceClaimName") or claim_names.get(entry["name"])
        if not name or name not in existing:
            evidence = f"ResourceClaim {name or 'of ' + entry['name']} does not exist"
            remedy = f"create it, or its ResourceClaimTemplate: kubectl get resourceclaims,resourceclaimtemplates -n {snapshot.namespace}"
            yield Cause("claim-missing", (), evidence, remedy)
        elif not (existing[name].get("status") or {}).get("allocation"):
            evidence = f"ResourceClaim {name} is not allocated: no free device matches it"
            remedy = "compare it with what Nodes offer: kubectl get resourceslices,deviceclasses"
            yield Cause("claim-not-allocated", (), evidence, remedy)


def _selecting_class(snapshot: Snapshot, pod: Json, unmet: str) -> str:
    """The RuntimeClass whose selector is unmet: at its creation a pod gets the selector of its class."""
    name = str((pod.get("spec") or {}).get("runtimeClassName") or "")
    selector = (snapshot.runtime_classes or {}).get(name, {})
    added = any(unmet.startswith(f"nodeSelector {key}={selector[key]},") for key in selector)
    return name if added else ""


def _obstacles(
    snapshot: Snapshot, pod: Json, node: Json, requests: dict[str, int], holders: list[Json]
) -> Iterator[Cause]:
    """Everything that keeps a pod off one Node."""
    name = node["metadata"]["name"]
    unmet = unmet_selector(pod, node)
    if unmet:
        remedy = f"label the Node, or change the pod: kubectl get node {name} --show-labels"
        if by := _selecting_class(snapshot, pod, unmet):
            unmet = f"{unmet}; the RuntimeClass {by} adds it to its pods"
            remedy = f"label the Node, or remove it from scheduling.nodeSelector and recreate the pod: kubectl edit runtimeclass {by}"
        yield Cause("selector", (name,), unmet, remedy)
    not_ready = _not_ready(node)
    if not_ready:
        remedy = f"kubectl describe node {name}; on the node: journalctl -u kubelet -n 50"
        yield Cause("node-not-ready", (name,), not_ready, remedy)
    yield from _cordon(node)
    yield from _tainted(pod, node, ready=not not_ready)
    for resource, count in sorted(requests.items()):
        yield from _resource(snapshot, node, resource, count, holders)


def _not_ready(node: Json) -> str:
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition["type"] == "Ready" and condition["status"] != TRUE:
            return f"the Node is not ready: {condition.get('message') or condition.get('reason') or condition['status']}"
    return ""


def _cordon(node: Json) -> Iterator[Cause]:
    if not (node.get("spec") or {}).get("unschedulable"):
        return
    name = node["metadata"]["name"]
    record = (node["metadata"].get("annotations") or {}).get(_HOLD)
    if record:
        yield Cause("held-by-gpustate", (name,), _hold(record), "gpustate status -i INVENTORY")
        return
    holders = foreign.holders(node, held=False, own_manager="gpustate")
    evidence = "; ".join(holders) or "cordoned"
    remedy = f"find out why; if it can be used again: kubectl uncordon {name}"
    yield Cause("cordoned", (name,), evidence, remedy)


def _hold(record: str) -> str:
    try:
        data = json.loads(record)
        words = f"run {data.get('run')} of {data.get('person')} since {data.get('since')}: {data.get('phase')}"
    except (ValueError, AttributeError):
        words = "an unreadable record"
    return f"cordoned by gpustate, {words}"


def _tainted(pod: Json, node: Json, *, ready: bool) -> Iterator[Cause]:
    name = node["metadata"]["name"]
    for taint in untolerated(pod, node):
        key = taint["key"]
        if key in _SCHEDULERS_TAINTS or (key in _NOT_READY and not ready):
            continue
        text = show_taint(taint)
        if key == STARTUP_TAINT or key.startswith("startup-taint."):
            health = _condition(node)
            evidence = f"start-up taint {text}: {health or 'not validated yet'}"
            remedy = "validate it, which lifts the taint: gpustate validate POLICY -i INVENTORY"
            yield Cause("not-validated", (name,), evidence, remedy)
        elif key == pods.GPU:
            remedy = "add a toleration: {key: nvidia.com/gpu, operator: Exists}"
            yield Cause("gpu-taint", (name,), f"taint {text} is not tolerated", remedy)
        else:
            holders = foreign.holders(node, held=True, own_manager="")
            words = next((holder for holder in holders if text in holder or key in holder), "")
            evidence = f"taint {text} is not tolerated" + (f": {words}" if words else "")
            remedy = f"tolerate it, or end what it stands for: kubectl describe node {name}"
            yield Cause("taint", (name,), evidence, remedy)


def _condition(node: Json) -> str:
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition["type"] == _HEALTHY and condition["status"] != TRUE:
            return f"{_HEALTHY} is {condition['status']} ({condition.get('reason')}: {condition.get('message')})"
    return ""


def _resource(
    snapshot: Snapshot, node: Json, resource: str, count: int, holders: list[Json]
) -> Iterator[Cause]:
    """What keeps a Node from giving a pod a number of one resource."""
    name = node["metadata"]["name"]
    capacity = pods.quantity(node, "capacity", resource)
    offered = pods.quantity(node, "allocatable", resource)
    if not offered:
        cause = _not_offered(snapshot, node, resource)
        # A plugin that runs and offers none of what the Node had holds them for unhealthy.
        if not capacity or cause.cause != "device-plugin-not-registered":
            yield cause
            return
    users = [
        (pod, pods.reserved(pod, lambda key: key == resource).get(resource, 0)) for pod in holders
    ]
    users = [(pod, used) for pod, used in users if used]
    free = offered - sum(used for _, used in users)
    if free >= count:
        return
    health = _condition(node)
    quarantine = _quarantined(node)
    if offered < capacity:
        words = f"{capacity - offered} of {capacity} {resource} are unhealthy; {max(free, 0)} free"
        evidence = f"{words}; {health}" if health else words
        remedy = f"gpustate health -i INVENTORY -l {name}; the device plugin offers a GPU again only after a restart of its pod"
        yield Cause("gpu-unhealthy", (name,), evidence, remedy)
    if free + len(quarantine) >= count > free:
        remedy = f"wait for its end, or end it: gpustate node quarantine -i INVENTORY -l {name} --gpu GPU --end"
        evidence = f"{'; '.join(quarantine)}; {max(free, 0)} {resource} free"
        yield Cause("gpu-in-quarantine", (name,), evidence, remedy)
    if count > offered + len(quarantine):
        evidence = f"requests {count} {resource}, the Node offers {offered}"
        yield Cause("too-many", (name,), evidence, "request fewer, or a Node with more")
    elif users:
        whom = [f"{_title(pod)} ({used})" for pod, used in users]
        words = ", ".join(_names(whom))
        evidence = f"{offered - free} of {offered} {resource} in use by {words}; {max(free, 0)} free, {count} requested"
        yield Cause("in-use", (name,), evidence, "wait for these pods, or end them")


def _quarantined(node: Json) -> list[str]:
    """GPUs of a Node in quarantine, as its condition says."""
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition["type"] == _HEALTHY:
            return _QUARANTINE.findall(str(condition.get("message") or ""))
    return []


def _not_offered(snapshot: Snapshot, node: Json, resource: str) -> Cause:
    """Why a Node has none of a resource: it has others, or its device plugin does not work."""
    name = node["metadata"]["name"]
    status = node.get("status") or {}
    offers = [
        f"{key}: {value}"
        for key, value in sorted((status.get("allocatable") or {}).items())
        if key.startswith(_VENDOR) and str(value) != "0"
    ]
    if offers:
        evidence = f"requests {resource}, the Node offers {', '.join(offers)}"
        remedy = "request what the Node offers, or change its MIG layout or sharing: gpustate node labels -i INVENTORY"
        return Cause("other-resource", (name,), evidence, remedy)
    plugins = [
        pod
        for pod in snapshot.pods
        if (pod.get("spec") or {}).get("nodeName") == name
        and _PLUGIN.search(pod["metadata"]["name"])
        and not _NOT_PLUGIN.search(pod["metadata"]["name"])
    ]
    problems = [(pod, words) for pod in plugins if (words := readiness.problem(pod))]
    if problems:
        pod, words = problems[0]
        at = f"-n {pod['metadata']['namespace']} {pod['metadata']['name']}"
        evidence = f"{resource} is not offered: the device plugin's pod {_title(pod)} is not ready: {words}"
        remedy = f"kubectl logs {at}; kubectl describe pod {at}"
        return Cause("device-plugin-not-ready", (name,), evidence, remedy)
    if plugins:
        at = f"-n {plugins[0]['metadata']['namespace']} {plugins[0]['metadata']['name']}"
        evidence = (
            f"{resource} is not offered, though the device plugin's pod {_title(plugins[0])} runs"
        )
        remedy = f"kubectl logs {at}; then: kubectl delete pod {at}"
        return Cause("device-plugin-not-registered", (name,), evidence, remedy)
    evidence = f"{resource} is not offered: no pod of the device plugin is on the Node"
    templates = [
        daemon_set["spec"]["template"]
        for daemon_set in snapshot.daemon_sets
        if _PLUGIN.search(daemon_set["metadata"]["name"])
        and not _NOT_PLUGIN.search(daemon_set["metadata"]["name"])
    ]
    reason, remedy = device_plugin_obstacle(node, templates)
    if not reason:
        return Cause("device-plugin-missing", (name,), evidence, RELABEL)
    return Cause("device-plugin-off", (name,), f"{evidence}: {reason}", remedy)


def _holders(all_pods: Iterable[Json]) -> dict[str, list[Json]]:
    """Pods that reserve devices, by Node."""
    by_node: dict[str, list[Json]] = {}
    for pod in all_pods:
        node = (pod.get("spec") or {}).get("nodeName")
        if node and (pod.get("status") or {}).get("phase") not in _ENDED:
            by_node.setdefault(node, []).append(pod)
    return by_node


def _grouped(rows: Iterable[tuple[str, Cause]]) -> Iterator[Cause]:
    """One line for equal causes of several Nodes."""
    groups: dict[tuple[str, str], list[tuple[str, Cause]]] = {}
    for name, cause in rows:
        groups.setdefault((cause.cause, cause.evidence), []).append((name, cause))
    for same in groups.values():
        names = tuple(name for name, _ in same)
        first = same[0][1]
        yield Cause(first.cause, names, first.evidence, first.remedy)


# --- it is scheduled, and does not start ----------------------------------------------------------


def _not_started(snapshot: Snapshot, pod: Json) -> Iterator[Cause]:
    spec, status = pod["spec"], pod.get("status") or {}
    name = spec["nodeName"]
    node = next((node for node in snapshot.nodes if node["metadata"]["name"] == name), None)
    if node is None:
        evidence = "the Node does not exist any more"
        remedy = f"kubectl delete pod -n {snapshot.namespace} {snapshot.name}"
        yield Cause("node-gone", (name,), evidence, remedy)
        return
    if words := _not_ready(node):
        remedy = f"kubectl describe node {name}; on the node: journalctl -u kubelet -n 50"
        yield Cause("node-not-ready", (name,), words, remedy)
    runtime_class = spec.get("runtimeClassName")
    if (
        runtime_class
        and snapshot.runtime_classes is not None
        and runtime_class not in snapshot.runtime_classes
    ):
        evidence = f"RuntimeClass {runtime_class} does not exist"
        yield _no_class(snapshot, runtime_class, (name,), evidence)
        return
    events = [
        event
        for event in snapshot.events
        if (event.get("involvedObject") or {}).get("uid") == pod["metadata"].get("uid")
    ]
    containers = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    causes = [cause for container in containers for cause in _container(snapshot, node, container)]
    if not causes:
        causes = list(_event(snapshot, runtime_class or "", pods.last_warning(events), node))
    yield from causes
    if not causes:
        evidence = "no container has failed, and the kubelet reports no problem"
        remedy = f"kubectl describe pod -n {snapshot.namespace} {snapshot.name}"
        yield Cause("starting", (name,), evidence, remedy)


def _runtime(kind: container_checks.Kind, node: Json) -> str:
    """The next move for a runtime's error; a GPU in MIG mode has no CDI device, however often they are generated."""
    labels = node["metadata"].get("labels") or {}
    layout, strategy = labels.get(CONFIG, ""), labels.get("nvidia.com/mig.strategy", "none")
    incapable = labels.get("nvidia.com/mig.capable") == "false"
    if kind.name != "cdi-unresolved" or incapable or strategy != "none":
        return kind.fix()
    if layout and layout != "all-disabled":
        return remedies.MIG_STRATEGY
    check = f"gpustate explain {node['metadata']['name']} -i INVENTORY"
    return f"check whether the device plugin offers GPUs in MIG mode as whole ones: {check}; if not, {kind.fix()}"


def _container(snapshot: Snapshot, on: Json, container: Json) -> Iterator[Cause]:
    node = on["metadata"]["name"]
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    words = f"{container['name']}: {reason}" + (f": {message}" if message else "")
    at = f"-n {snapshot.namespace} {snapshot.name}"
    if reason in _IMAGE:
        remedy = f"check name, registry and pull secret of the image: kubectl describe pod {at}"
        yield Cause("image", (node,), words, remedy)
    elif reason in _CREATE:
        kind = container_checks.classify(message)
        evidence = container_checks.short(f"{container['name']}: {kind.summary}: {message}")
        yield Cause(f"container-{kind.name}", (node,), evidence, _runtime(kind, on))
    elif reason == "CrashLoopBackOff":
        remedy = f"kubectl logs {at} -c {container['name']} --previous"
        yield Cause("crashes", (node,), words, remedy)


def _event(snapshot: Snapshot, runtime_class: str, words: str, on: Json) -> Iterator[Cause]:
    """A cause by the newest warning of the kubelet."""
    if not words:
        return
    node, evidence = on["metadata"]["name"], container_checks.short(words)
    if handler := _NO_HANDLER.search(words):
        evidence = f"the runtime of the node has no handler {handler[1] or handler[2]}: {evidence}"
        remedy = "register it: gpustate apply POLICY -i INVENTORY"
        yield Cause("handler-missing", (node,), evidence, remedy)
    elif _NO_CLASS.search(words):
        yield _no_class(snapshot, runtime_class, (node,), evidence)
    elif words.startswith("FailedCreatePodSandBox"):
        kind = container_checks.classify(words)
        yield Cause(f"sandbox-{kind.name}", (node,), evidence, _runtime(kind, on))
    elif words.startswith("FailedMount"):
        yield Cause("volume", (node,), evidence, "create what the message names")
    elif words.startswith("FailedPrepareDynamicResources"):
        remedy = f"check the DRA driver's pod on {node}"
        yield Cause("claim-not-prepared", (node,), evidence, remedy)
    else:
        yield Cause("kubelet", (node,), evidence, f"kubectl describe node {node}")


def _failed(pod: Json, node: str) -> Iterator[Cause]:
    progress = pods.progress(pod)
    on = (node,) if node else ()
    if progress.failure is not None:
        reason = str((pod.get("status") or {}).get("reason") or "")
        cause = "admission" if reason == "UnexpectedAdmissionError" else "failed"
        yield Cause(cause, on, progress.failure.evidence, progress.failure.remedy)


def _terminating(pod: Json, node: str) -> Cause:
    meta = pod["metadata"]
    finalizers = meta.get("finalizers") or ()
    evidence = f"deleted at {meta['deletionTimestamp']}"
    if finalizers:
        evidence += f", waits for finalizers {', '.join(finalizers)}"
    remedy = "wait for its end; its controller creates a new one"
    return Cause("terminating", (node,) if node else (), evidence, remedy)


def _no_request(pod: Json) -> Iterator[Cause]:
    spec = pod.get("spec") or {}
    if not spec.get("resourceClaims") and not pods.reserved(
        pod, lambda name: name.startswith(_VENDOR)
    ):
        evidence = "the pod runs, and requests no resource of nvidia.com"
        remedy = "add resources.limits: {nvidia.com/gpu: 1} to the container"
        yield Cause("requests-no-gpu", (), evidence, remedy)


def _by_time(events: Iterable[Json]) -> list[Json]:
    return sorted(
        events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or "")
    )


def _title(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _names(names: list[str]) -> list[str]:
    more = len(names) - _MOST_NAMES
    return names if more <= 1 else [*names[:_MOST_NAMES], f"{more} more"]
