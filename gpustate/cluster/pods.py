"""Judge what the API says of Nodes and of the pod that tests a GPU. Pure.

A machine is matched with its Node by what the kubelet reports of it (``status.nodeInfo``), never by name: boot
id first, then machine id and system UUID. Machines cloned from one image share machine ids, and containers
share system UUIDs and on some runtimes boot ids, so all three narrow a match that is not unique.

Sources:
    Kubernetes API: NodeSystemInfo, PodStatus, ContainerState, NodeSelectorTerm.matchFields;
    kubernetes, pkg/kubelet/lifecycle (UnexpectedAdmissionError, OutOf<resource>) and pkg/kubelet/container
    (CreateContainerError, RunContainerError); pkg/kubelet/kuberuntime (StartError).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpustate.diagnosis import container_checks
from gpustate.diagnosis.chain import FAILED, NOT_APPLICABLE, OK, Check
from gpustate.diagnosis.container_checks import Kind
from gpustate.formats.numbers import whole
from gpustate.nodeside import container_proof

Json = dict[str, Any]

#: Name of this link of the chain.
LINK = "pod"
GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
MIG_PREFIX = "nvidia.com/mig-"
RUNTIME_CLASS = "nvidia"
_REQUEST = "/run/nvidia-container-devices/"
LABELS = {
    "app.kubernetes.io/managed-by": "gpustate",
    "app.kubernetes.io/name": "gpustate-validate",
}
#: The Node that a pod is for; a label's value is too short for some names.
FOR_NODE = "gpustate/node"
_FINAL_WAITS = (
    "CreateContainerError",
    "CreateContainerConfigError",
    "RunContainerError",
    "InvalidImageName",
)
_NODE_STATE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_DESCRIBE = "kubectl describe pod shows its events while it exists; journalctl -u kubelet on the node says more"

KINDS = (
    Kind("api", "the API cannot be used",
         "check the kubeconfig and its user's rights: get and list nodes and pods, create and delete pods, get pods/log, list events"),
    Kind("unreachable", "the node cannot be reached any more", "validate again: gpustate validate"),
    Kind("unregistered", "no Node of the cluster is this machine",
         "check that the kubeconfig is of this node's cluster; journalctl -u kubelet says why a kubelet does not register"),
    Kind("ambiguous", "several Nodes of the cluster may be this machine",
         "delete the Nodes that no longer exist: kubectl delete node NAME"),
    Kind("old-boot", "the kubelet has not reported since the node booted",
         "systemctl status kubelet; journalctl -u kubelet"),
    Kind("not-ready", "the Node is not Ready", "kubectl describe node shows its conditions; journalctl -u kubelet"),
    Kind("no-resource", "the Node offers no GPUs",
         "check that NVIDIA's device plugin runs on the node, and its log; it registers again when it is restarted"),
    Kind("unhealthy", "the device plugin reports no healthy GPU",
         "the device plugin's log names the cause (an Xid); it takes GPUs back only when it is restarted"),
    Kind("image", "the test image cannot be imported into containerd",
         "ctr -n k8s.io images ls, and the journal of containerd"),
    Kind("unschedulable", "the pod is not scheduled", "change what the scheduler names: kubectl describe node has taints and requests"),
    Kind("admission", "the kubelet rejects the pod: the device plugin's allocation failed",
         "check the device plugin's log; a kubelet with stale allocations needs a restart: systemctl restart kubelet"),
    Kind("rejected", "the kubelet rejects the pod", _DESCRIBE),
    Kind("create", "the container cannot be created or started", _DESCRIBE),
    Kind("crashed", "the container ended without a report", _DESCRIBE),
    Kind("no-report", "the pod's report cannot be read",
         "the API server must reach the kubelet, port 10250: kubectl logs of any pod on this node fails for the same reason"),
    Kind("nothing", "the pod runs and is given nothing of the driver",
         "the device plugin's strategy (DEVICE_LIST_STRATEGY) must fit the runtime: cdi-cri needs CDI in containerd; "
         "envvar and volume-mounts need the handler nvidia as default or in a RuntimeClass nvidia"),
    Kind("denied", "the pod may not open its device nodes",
         "look for denials in dmesg and journalctl (apparmor, avc), and at permissions in the CDI specification"),
    Kind("library", "a library of the driver is missing in the pod",
         "generate the CDI specification again: systemctl restart nvidia-cdi-refresh; then restart the device plugin"),
    Kind("fewer", "the pod has fewer GPUs than it asked for",
         "restart the device plugin: after a MIG or driver change it may hand out devices that are gone"),
    Kind("more", "the pod has more GPUs than it asked for",
         "pods get all GPUs by NVIDIA_VISIBLE_DEVICES of their image: set accept-nvidia-visible-devices-envvar-when-unprivileged = false "
         "in /etc/nvidia-container-runtime/config.toml, and use cdi-cri or volume-mounts"),
    Kind("cuda", "the CUDA kernel fails in the pod, and runs on the node itself",
         "compare the driver's files named here with ldconfig -p on the node"),
    Kind("deleted", "the pod was deleted before it finished",
         "something else deletes pods of this namespace, or another validation of this node runs; validate again"),
    Kind("timeout", "the pod did not finish in time", _DESCRIBE),
)  # fmt: skip
_BY_NAME = {kind.name: kind for kind in KINDS}


class Verdict(Exception):
    """The link is judged; nothing more is to be done.

    Args:
        check: what the link comes to.
    """

    def __init__(self, check: Check) -> None:
        super().__init__(check.evidence)
        self.check = check


def failed(kind: str, words: str) -> Check:
    """The link is broken."""
    found = _BY_NAME[kind]
    return Check(LINK, FAILED, f"{found.says}: {container_checks.short(words)}", found.remedy)


def gives_nothing(check: Check) -> bool:
    """Whether the pod ran and was given nothing of the driver."""
    return check.failed and check.evidence.startswith(_BY_NAME["nothing"].says)


def not_applicable(words: str) -> Check:
    """The link is not tested, and why."""
    return Check(LINK, NOT_APPLICABLE, words)


# --- the Node -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Machine:
    """What a kubelet reports of its machine, as the machine itself says it; empty where it says nothing.

    Args:
        boot_id: of the running kernel.
        machine_id: /etc/machine-id.
        system_uuid: DMI's product UUID.
        kubelet: a kubelet runs.
        containerd: containerd's default socket is there.
    """

    boot_id: str = ""
    machine_id: str = ""
    system_uuid: str = ""
    kubelet: bool = False
    containerd: bool = False


def _same(node: Json, key: str, value: str) -> bool:
    reported = str(node.get("status", {}).get("nodeInfo", {}).get(key) or "")
    return bool(value) and reported.lower() == value.lower()


def _names(nodes: Iterable[Json]) -> str:
    return ", ".join(sorted(str(node["metadata"]["name"]) for node in nodes))


_IDS = (
    ("bootID", "boot id", "boot_id"),
    ("machineID", "machine id", "machine_id"),
    ("systemUUID", "system UUID", "system_uuid"),
)


class NodeIndex:
    """Every Node of a cluster, by what its kubelet reports of its machine.

    Args:
        nodes: all of them.
    """

    def __init__(self, nodes: Sequence[Json]) -> None:
        self._count = len(nodes)
        self._by: dict[tuple[str, str], list[Json]] = {}
        for node in nodes:
            info = node.get("status", {}).get("nodeInfo", {})
            for key, _, _ in _IDS:
                if value := str(info.get(key) or "").lower():
                    self._by.setdefault((key, value), []).append(node)

    def match(self, machine: Machine, *, any_boot: bool = False) -> Json:
        """The Node of a machine.

        Args:
            machine: what it says of itself.
            any_boot: also the Node whose kubelet has not reported since the machine booted.

        Raises:
            Verdict: there is none, or more than one, or its kubelet reported before the last boot only.
        """
        found: list[Json] = []
        by = ""
        for key, title, field in _IDS:
            value = getattr(machine, field)
            same = (
                [node for node in found if _same(node, key, value)]
                if found
                else self._by.get((key, value.lower()), [])
            )
            if same and not found:
                by = title
            found = same or found
            if len(found) == 1:
                break
        if not found:
            ids = [(title, getattr(machine, field)) for _, title, field in _IDS]
            words = ", ".join(f"{title} {value}" for title, value in ids if value)
            raise Verdict(
                failed("unregistered", f"none of {self._count} has {words or 'an id to compare'}")
            )
        if len(found) > 1:
            raise Verdict(failed("ambiguous", f"{_names(found)} have its {by}"))
        (node,) = found
        if by != "boot id" and machine.boot_id and not any_boot:
            seen = node["status"]["nodeInfo"].get("bootID", "none")
            raise Verdict(
                failed(
                    "old-boot",
                    f"Node {node['metadata']['name']} has its {by} and boot id {seen}; the node's is {machine.boot_id}",
                )
            )
        return node


def match(machine: Machine, nodes: Sequence[Json]) -> Json:
    """The Node of a machine; see :meth:`NodeIndex.match`."""
    return NodeIndex(nodes).match(machine)


def check_ready(node: Json) -> None:
    """Raise ``Verdict`` when the Node is not Ready, so that no pod would start."""
    for condition in node.get("status", {}).get("conditions", []):
        if condition["type"] == "Ready" and condition["status"] != "True":
            words = condition.get("message") or condition.get("reason") or condition["status"]
            raise Verdict(failed("not-ready", f"{node['metadata']['name']}: {words}"))


# --- free GPUs ------------------------------------------------------------------------------------


def _is_gpu(name: str) -> bool:
    return name in (GPU, SHARED) or name.startswith(MIG_PREFIX)


def _order(name: str) -> tuple[int, str]:
    return (0 if name == GPU else 1 if name == SHARED else 2, name)


def _count(quantity: object) -> int:
    """A quantity of whole devices; the API server writes 1000 as ``1k``."""
    text = str(quantity)
    number = whole(text.removesuffix("k")) or 0
    return number * 1000 if text.endswith("k") else number


def _offered(node: Json, field: str) -> dict[str, int]:
    found = node.get("status", {}).get(field) or {}
    counts = {name: _count(value) for name, value in found.items() if _is_gpu(name)}
    return {name: count for name, count in counts.items() if count > 0}


def requested(pod: Json) -> dict[str, int]:
    """GPUs that a pod holds: the sum of its containers and sidecars, or what an init container needs, if more."""
    spec = pod.get("spec", {})

    def of(container: Json) -> dict[str, int]:
        resources = container.get("resources") or {}
        found = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        return {name: _count(value) for name, value in found.items() if _is_gpu(name)}

    total: dict[str, int] = {}
    for container in spec.get("containers", []):
        for name, count in of(container).items():
            total[name] = total.get(name, 0) + count
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or []:
        stays = container.get("restartPolicy") == "Always"
        for name, count in of(container).items():
            if stays:
                sidecars[name] = sidecars.get(name, 0) + count
            peak[name] = max(peak.get(name, 0), sidecars.get(name, 0) + (0 if stays else count))
    for name in {*sidecars, *peak}:
        total[name] = max(total.get(name, 0) + sidecars.get(name, 0), peak.get(name, 0))
    return total


def allocatable(node: Json) -> dict[str, int]:
    """The GPUs, shares of GPUs and MIG devices that a Node offers, by resource."""
    return _offered(node, "allocatable")


def free_resource(node: Json, pods: Iterable[Json]) -> str:
    """The resource of which the Node has one to spare: whole GPUs, else shared ones, else MIG devices.

    Args:
        node: its Node.
        pods: bound to it, in every namespace; those that have ended hold nothing.

    Raises:
        Verdict: it offers none, or all are in use.
    """
    name = node["metadata"]["name"]
    offered = _offered(node, "allocatable")
    if not offered:
        capacity = _offered(node, "capacity")
        if capacity:
            words = ", ".join(f"{key}: {count}" for key, count in sorted(capacity.items()))
            raise Verdict(
                failed("unhealthy", f"{name} has a capacity of {words}, and 0 allocatable")
            )
        raise Verdict(failed("no-resource", f"{name} has no nvidia.com resource"))
    held: dict[str, int] = {}
    holders = 0
    for pod in pods:
        if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            continue
        wanted = requested(pod)
        holders += bool(wanted)
        for key, count in wanted.items():
            held[key] = held.get(key, 0) + count
    for key in sorted(offered, key=_order):
        if offered[key] > held.get(key, 0):
            return key
    words = ", ".join(f"{held[key]} of {offered[key]} {key}" for key in sorted(offered, key=_order))
    raise Verdict(not_applicable(f"all GPUs are in use: {words}, by {holders} pods"))


# --- the pod --------------------------------------------------------------------------------------


def tolerations(node: Json) -> list[Json]:
    """For every taint of the Node but those that say that it does not work, and for NVIDIA's."""
    found: list[Json] = [{"key": GPU, "operator": "Exists"}]
    for taint in node.get("spec", {}).get("taints") or []:
        if taint["key"] in _NODE_STATE_TAINTS or taint["effect"] == "PreferNoSchedule":
            continue
        same: Json = {"key": taint["key"], "effect": taint["effect"], "operator": "Exists"}
        if same not in found:
            found.append(same)
    return found


def manifest(
    node: Json,
    name: str,
    *,
    image: str,
    command: Sequence[str],
    resource: str,
    runtime_class: str = "",
    timeout_s: float = 60.0,
) -> Json:
    """The pod that runs the CUDA proof on one GPU of a Node.

    It goes through the scheduler and the kubelet's admission, and ends by itself when nobody deletes it.
    """
    field = {"key": "metadata.name", "operator": "In", "values": [node["metadata"]["name"]]}
    return {
        "metadata": {
            "name": name,
            "labels": dict(LABELS),
            "annotations": {FOR_NODE: node["metadata"]["name"]},
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": int(timeout_s) + 60,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchFields": [field]}]
                    }
                }
            },
            "tolerations": tolerations(node),
            **({"runtimeClassName": runtime_class} if runtime_class else {}),
            "containers": [
                {
                    "name": "validate",
                    "image": image,
                    "imagePullPolicy": "Never",
                    "command": list(command),
                    "resources": {"limits": {resource: "1"}},
                }
            ],
        },
    }


def is_leftover(pod: Json, node: str) -> bool:
    """Whether a pod with our labels is of a validation of this Node that was killed."""
    found = (pod["metadata"].get("annotations") or {}).get(FOR_NODE)
    return bool(found == node)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a pod has come.

    Args:
        finished: it ran to its end.
        unschedulable: why the scheduler finds no place, in its words; empty where it does not say so.
        failure: the link's check where the pod cannot run any more.
        last: the last thing that is known of it, for a pod that did not finish in time.
    """

    finished: bool = False
    unschedulable: str = ""
    failure: Check | None = None
    last: str = ""


def _started_wrong(reason: str, message: str) -> Check:
    """Why a container did not start, recognised by the runtime's words where they are known."""
    words = f"{reason}: {message}" if message else reason
    kind = container_checks.classify(message)
    if kind.name in ("not-started", "refused"):
        return failed("create", words)
    found = failed("create", words)
    return Check(LINK, FAILED, f"{kind.says}: {found.evidence}", kind.remedy)


def progress(pod: Json) -> Progress:
    """Read a pod's status."""
    status = pod.get("status", {})
    phase = status.get("phase", "Pending")
    containers = status.get("containerStatuses") or []
    state: Json = containers[0].get("state") or {} if containers else {}
    waiting: Json = state.get("waiting") or {}
    terminated: Json = state.get("terminated") or {}
    if phase == "Succeeded":
        return Progress(finished=True)
    if phase == "Failed":
        return Progress(failure=_pod_failed(status, terminated))
    if waiting.get("reason") in _FINAL_WAITS:
        return Progress(failure=_started_wrong(waiting["reason"], waiting.get("message") or ""))
    for condition in status.get("conditions") or []:
        if (
            condition["type"] == "PodScheduled"
            and condition["status"] == "False"
            and condition.get("reason") == "Unschedulable"
        ):
            words = condition.get("message") or "Unschedulable"
            return Progress(unschedulable=words, last=f"not scheduled: {words}")
    if waiting:
        message = waiting.get("message") or ""
        return Progress(
            last=f"{waiting.get('reason', 'waiting')}{': ' if message else ''}{message}"
        )
    return Progress(
        last=f"phase {phase}" + (", the container runs" if state.get("running") else "")
    )


def _pod_failed(status: Json, terminated: Json) -> Check:
    reason, message = status.get("reason") or "", status.get("message") or ""
    if reason == "UnexpectedAdmissionError":
        return failed("admission", message or reason)
    if reason == "DeadlineExceeded":
        return failed("timeout", message or reason)
    if reason:
        return failed("rejected", f"{reason}: {message}" if message else reason)
    if terminated.get("reason") in ("StartError", "ContainerCannotRun"):
        return _started_wrong(str(terminated["reason"]), terminated.get("message") or "")
    code = terminated.get("exitCode", "unknown")
    words = f"{terminated.get('reason') or 'Failed'}, exit code {code}"
    message = terminated.get("message") or ""
    return failed("crashed", f"{words}: {message}" if message else words)


def judge_report(report: Json, way: str, *, cuda: bool, began: float, count: int = 1) -> Check:
    """The link by what the pod reported of itself.

    Args:
        report: what :mod:`gpustate.nodeside.container_inside` printed.
        way: Node and resource, for the evidence.
        cuda: a CUDA kernel was to run on every GPU.
        began: monotonic time at which the pod was created.
        count: GPUs that it asked for.
    """
    result = container_proof.reported(way, report, began)
    # With the strategy volume-mounts these are the request, not what the runtime injects for it.
    files = tuple(path for path in result.files if _REQUEST not in path)
    result = replace(result, files=files)
    gpus = tuple(report["nvml"].get("mig") or ()) or result.gpus
    named = f"injected: {container_checks.named(result)}"
    if not result.devices and not result.files:
        return failed("nothing", f"{way}: {result.nvml_error or 'no device node and no library'}")
    if result.denied:
        return failed("denied", f"{way}: {', '.join(result.denied)} (Operation not permitted)")
    if result.nvml_error and not gpus:
        return failed("library", f"{way}: {result.nvml_error}; {named}")
    if len(gpus) != count:
        kind = "fewer" if len(gpus) < count else "more"
        return failed(kind, f"{way}: {len(gpus)} of {count}; {named}")
    if result.cuda_text and "cannot be loaded" in result.cuda_text:
        return failed("library", f"{way}: {result.cuda_text}; {named}")
    if cuda and result.cuda_ok != len(gpus):
        number = "" if result.cuda_error is None else f" (CUDA {result.cuda_error})"
        return failed("cuda", f"{way}: {result.cuda_text or 'no kernel ran'}{number}; {named}")
    ran = f", kernel ran on {result.cuda_ok}" if cuda else ""
    evidence = f"{way}: {', '.join(gpus)}, {container_checks.injected(result)}{ran}"
    return Check(LINK, OK, evidence)


def last_warning(events: Iterable[Json]) -> str:
    """The newest warning of a pod's events, which says what it waits for; empty where there is none."""
    warnings = [one for one in events if one.get("type") == "Warning"]
    warnings.sort(key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""))
    if not warnings:
        return ""
    last = warnings[-1]
    return f"{last.get('reason', 'Warning')}: {last.get('message', '')}".strip()
