"""Interpret the API's data about Nodes and about the pod that tests a GPU. Pure.

A machine is matched with its Node by the ids that its kubelet reports (``status.nodeInfo``), never by name:
boot id first, then machine id and system UUID. Machines cloned from one image share machine ids; containers
share system UUIDs, and on some runtimes boot ids. So all three narrow an ambiguous match.

Sources:
    Kubernetes API: NodeSystemInfo, PodStatus, ContainerState, NodeSelectorTerm.matchFields;
    kubernetes, pkg/kubelet/lifecycle (UnexpectedAdmissionError, OutOf<resource>) and pkg/kubelet/container
    (CreateContainerError, RunContainerError); pkg/kubelet/kuberuntime (StartError).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from gpustate.diagnosis import container_checks, remedies
from gpustate.diagnosis.chain import FAILED, NOT_APPLICABLE, OK, Check
from gpustate.diagnosis.container_checks import Kind
from gpustate.documents import Json
from gpustate.formats.numbers import parse_uint

#: Name of this check.
LINK = "pod"
GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
MIG_PREFIX = "nvidia.com/mig-"
RUNTIME_CLASS = "nvidia"
_REQUEST = "/run/nvidia-container-devices/"
LABELS = {"app.kubernetes.io/managed-by": "gpustate", "app.kubernetes.io/name": "gpustate-validate"}
#: Annotation with the Node of a pod; the value of a label is too short for some names.
FOR_NODE = "gpustate/node"
_FINAL_WAITS = (
    "CreateContainerError",
    "CreateContainerConfigError",
    "RunContainerError",
    "InvalidImageName",
)
#: The pod itself is at fault, such as by what an admission webhook has added to it.
_UNFIT = ("CreateContainerConfigError", "InvalidImageName")
_NODE_STATE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_DESCRIBE = (
    "read the events while the pod exists: kubectl describe pod; on the node: journalctl -u kubelet"
)

KINDS = (
    Kind("api", "requests to the API server fail",
         "check the kubeconfig and its user's rights: get and list nodes and pods, create and delete pods, get pods/log, list events"),
    Kind("refused", "the API server refuses the pod",
         "change what its message names, in the namespace of the kubeconfig's context: a ResourceQuota, a LimitRange, or an admission policy or webhook"),
    Kind("unreachable", "the node is no longer reachable", "validate again: gpustate validate"),
    Kind("unregistered", "no Node of the cluster is this machine",
         "check that the kubeconfig is for this node's cluster, and why the kubelet does not register: journalctl -u kubelet"),
    Kind("ambiguous", "several Nodes of the cluster may be this machine",
         "delete the Nodes that no longer exist: kubectl delete node NAME"),
    Kind("kubelet-down", "no kubelet runs on the node, which is a Node of the cluster",
         "systemctl status kubelet; journalctl -u kubelet -n 50"),
    Kind("old-boot", "the kubelet has not reported since the node booted",
         "systemctl status kubelet; journalctl -u kubelet"),
    Kind("not-ready", "the Node is not Ready", "read its conditions: kubectl describe node NAME; on the node: journalctl -u kubelet"),
    Kind("no-resource", "the Node has no GPU resource",
         "check that NVIDIA's device plugin runs on the node, and read its log; restart it to register again"),
    Kind("unhealthy", "the device plugin reports no healthy GPU",
         "check that NVIDIA's device plugin runs on the node; if it does, its log names the cause (an Xid), and it offers the GPUs again only after a restart"),
    Kind("offer", "the Node does not offer what NVML lists",
         "restart the device plugin's pod, which detects GPUs only at its start: kubectl delete pod -n NAMESPACE POD; its log names GPUs that it holds for unhealthy"),
    Kind("mig-strategy", "the Node offers GPUs in MIG mode as whole GPUs, which no container can use",
         remedies.MIG_STRATEGY),
    Kind("image", "the kubelet's runtime cannot get the test image",
         "crictl images; journalctl -u containerd, or -u crio"),
    Kind("unschedulable", "the pod is not scheduled", "fix the scheduler's reason; taints and requests: kubectl describe node NAME"),
    Kind("admission", "the kubelet rejects the pod: the device plugin's allocation failed",
         "read the device plugin's log; for stale allocations: systemctl restart kubelet"),
    Kind("rejected", "the kubelet rejects the pod", _DESCRIBE),
    Kind("create", "the container cannot be created or started", _DESCRIBE),
    Kind("memory", "the container was killed for its memory limit",
         "raise the limit that a LimitRange gives pods of this namespace: kubectl get limitrange -o yaml"),
    Kind("crashed", "the container ended without a report", _DESCRIBE),
    Kind("no-report", "the pod's report cannot be read",
         "open port 10250 of the kubelet for the API server; check with kubectl logs of any pod on this node"),
    Kind("nothing", "the pod runs, but no device or library of the driver is injected",
         "the device plugin's strategy (DEVICE_LIST_STRATEGY) must fit the runtime: cdi-cri needs CDI in containerd; "
         "envvar and volume-mounts need the handler nvidia as default or in a RuntimeClass nvidia"),
    Kind("denied", "the pod may not open its device nodes",
         "check for denials (dmesg, journalctl: apparmor, avc) and the permissions in the CDI specification"),
    Kind("library", "a library of the driver is missing in the pod",
         "generate the CDI specification again: systemctl restart nvidia-cdi-refresh; then restart the device plugin"),
    Kind("fewer", "the pod has fewer GPUs than it requested",
         "restart the device plugin: after a MIG or driver change it may assign devices that no longer exist"),
    Kind("more", "the pod has more GPUs than it requested",
         "pods get all GPUs by NVIDIA_VISIBLE_DEVICES of their image: set accept-nvidia-visible-devices-envvar-when-unprivileged = false "
         "in /etc/nvidia-container-runtime/config.toml, and use cdi-cri or volume-mounts"),
    Kind("cuda", "the CUDA kernel fails in the pod, but runs on the node itself",
         "compare the driver files listed here with ldconfig -p on the node"),
    Kind("deleted", "the pod was deleted before it finished",
         "check for controllers that delete pods of this namespace, or a parallel validation; then: gpustate validate"),
    Kind("not-started", "the pod's container did not start in time", _DESCRIBE),
    Kind("timeout", "the pod timed out", _DESCRIBE),
)  # fmt: skip
_BY_NAME = {kind.name: kind for kind in KINDS}
#: Without a container that asked for a GPU, or without its report, nothing is known of the GPUs.
_NOT_OF_GPUS = frozenset((
    "api", "refused", "unreachable", "unregistered", "ambiguous", "kubelet-down", "old-boot", "not-ready", "no-resource",
    "image", "unschedulable", "rejected", "memory", "no-report", "deleted", "not-started",
))  # fmt: skip


class Verdict(Exception):
    """The check is decided without running a pod.

    Args:
        check: the result.
    """

    def __init__(self, check: Check) -> None:
        super().__init__(check.evidence)
        self.check = check


class Unregistered(Verdict):
    """No Node is this machine."""


def failed(kind: str, evidence: str) -> Check:
    """Return a failed check."""
    cause = _BY_NAME[kind]
    return Check(LINK, FAILED, f"{cause.summary}: {container_checks.short(evidence)}", cause.remedy)


def concerns_gpus(evidence: str) -> bool:
    """Whether the evidence of a failed check says something about the GPUs, not only that they could not be tried."""
    kinds = [kind for kind in KINDS if evidence.startswith(f"{kind.summary}: ")]
    longest = max(kinds, key=lambda kind: len(kind.summary), default=None)
    return longest is None or longest.name not in _NOT_OF_GPUS


def lacks_driver(check: Check) -> bool:
    """Whether the pod ran without any device or library of the driver."""
    return check.failed and check.evidence.startswith(_BY_NAME["nothing"].summary)


def not_applicable(reason: str) -> Check:
    """Return a check that was not run."""
    return Check(LINK, NOT_APPLICABLE, reason)


# --- the Node -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Machine:
    """The ids that a kubelet reports for its machine, read on the machine; empty where unknown.

    Args:
        boot_id: of the running kernel.
        machine_id: /etc/machine-id.
        system_uuid: DMI's product UUID.
        kubelet: a kubelet is running.
        sockets: those at which container runtimes listen.
    """

    boot_id: str = ""
    machine_id: str = ""
    system_uuid: str = ""
    kubelet: bool = False
    sockets: tuple[str, ...] = ()


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


def names_of(node: Json) -> tuple[str, ...]:
    """Every name and address of a Node, the strongest first."""
    labels = node["metadata"].get("labels") or {}
    addresses = (node.get("status") or {}).get("addresses") or []
    names = (
        node["metadata"]["name"],
        labels.get("kubernetes.io/hostname"),
        *(entry.get("address") for entry in addresses),
    )
    return tuple(str(name) for name in names if name)


class NodeIndex:
    """All Nodes of a cluster, by the ids that their kubelets report.

    Args:
        nodes: all Nodes.
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
        """Return the Node of a machine.

        Args:
            machine: its ids.
            any_boot: also match a Node whose kubelet has not reported since the last boot.

        Raises:
            Verdict: no Node matches, or several do, or the kubelet has not reported since the last boot.
        """
        nodes: list[Json] = []
        by = ""
        for key, title, field in _IDS:
            value = getattr(machine, field)
            same = (
                [node for node in nodes if _same(node, key, value)]
                if nodes
                else self._by.get((key, value.lower()), [])
            )
            if same and not nodes:
                by = title
            nodes = same or nodes
            if len(nodes) == 1:
                break
        if not nodes:
            ids = [(title, getattr(machine, field)) for _, title, field in _IDS]
            words = ", ".join(f"{title} {value}" for title, value in ids if value)
            raise Unregistered(
                failed("unregistered", f"none of {self._count} has {words or 'an id to compare'}")
            )
        if len(nodes) > 1:
            raise Verdict(failed("ambiguous", f"{_names(nodes)} have its {by}"))
        (node,) = nodes
        if by != "boot id" and machine.boot_id and not any_boot:
            boot_id = node["status"]["nodeInfo"].get("bootID", "none")
            raise Verdict(
                failed(
                    "old-boot",
                    f"Node {node['metadata']['name']} has its {by} and boot id {boot_id}; the node's is {machine.boot_id}",
                )
            )
        return node


def match(machine: Machine, nodes: Sequence[Json]) -> Json:
    """Return the Node of a machine; see :meth:`NodeIndex.match`."""
    return NodeIndex(nodes).match(machine)


def check_ready(node: Json) -> None:
    """Raise ``Verdict`` when the Node is not Ready, so that no pod would start."""
    for condition in node.get("status", {}).get("conditions", []):
        if condition["type"] == "Ready" and condition["status"] != "True":
            words = condition.get("message") or condition.get("reason") or condition["status"]
            raise Verdict(failed("not-ready", f"{node['metadata']['name']}: {words}"))


# --- free GPUs ------------------------------------------------------------------------------------


def is_gpu(name: str) -> bool:
    """Whether a resource is one of NVIDIA's device plugin."""
    return name in (GPU, SHARED) or name.startswith(MIG_PREFIX)


def _order(name: str) -> tuple[int, str]:
    return (0 if name == GPU else 1 if name == SHARED else 2, name)


def _count(quantity: object) -> int:
    """Parse a quantity of devices; the API server writes 1000 as ``1k``."""
    text = str(quantity)
    number = parse_uint(text.removesuffix("k")) or 0
    return number * 1000 if text.endswith("k") else number


def _offered(node: Json, field: str) -> dict[str, int]:
    quantities = node.get("status", {}).get(field) or {}
    counts = {name: _count(value) for name, value in quantities.items() if is_gpu(name)}
    return {name: count for name, count in counts.items() if count > 0}


def quantity(node: Json, field: str, name: str) -> int:
    """How many devices of a resource a Node has.

    Args:
        node: the Node.
        field: ``capacity`` or ``allocatable``.
        name: of the resource.
    """
    return _count(((node.get("status") or {}).get(field) or {}).get(name, 0))


def requested(pod: Json) -> dict[str, int]:
    """Return the GPUs that a pod reserves; see :func:`reserved`."""
    return reserved(pod, is_gpu)


def reserved(pod: Json, counts: Callable[[str], bool]) -> dict[str, int]:
    """Return the devices that a pod reserves: the sum of containers and sidecars, or of an init container if more.

    Args:
        pod: the pod.
        counts: whether a resource is meant.
    """
    spec = pod.get("spec", {})

    def of(container: Json) -> dict[str, int]:
        resources = container.get("resources") or {}
        quantities = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        return {name: _count(value) for name, value in quantities.items() if counts(name)}

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


def has_gpus(node: Json) -> bool:
    """Whether a Node has GPUs, by its label or its capacity, be they fit for work or not."""
    labels = node["metadata"].get("labels") or {}
    return labels.get("nvidia.com/gpu.present") == "true" or bool(_offered(node, "capacity"))


def free_resource(node: Json, pods: Iterable[Json]) -> str:
    """Return a free GPU resource of a Node: whole GPUs, else shared ones, else MIG devices.

    Args:
        node: the Node.
        pods: bound to it, in all namespaces; finished pods reserve nothing.

    Raises:
        Verdict: the Node has no GPU resource, or all are in use.
    """
    name = node["metadata"]["name"]
    offered = _offered(node, "allocatable")
    if not offered:
        capacity = _offered(node, "capacity")
        if capacity:
            words = ", ".join(f"{key}: {count}" for key, count in sorted(capacity.items()))
            raise Verdict(failed("unhealthy", f"{name}: capacity {words}, 0 allocatable"))
        raise Verdict(failed("no-resource", f"{name} has no nvidia.com/gpu or MIG resource"))
    held: dict[str, int] = {}
    holders = 0
    for pod in pods:
        if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            continue
        devices = requested(pod)
        holders += bool(devices)
        for key, count in devices.items():
            held[key] = held.get(key, 0) + count
    for key in sorted(offered, key=_order):
        if offered[key] > held.get(key, 0):
            return key
    words = ", ".join(f"{held[key]} of {offered[key]} {key}" for key in sorted(offered, key=_order))
    raise Verdict(not_applicable(f"all GPUs are in use: {words}, by {holders} pods"))


# --- the pod --------------------------------------------------------------------------------------


def tolerations(node: Json) -> list[Json]:
    """Return tolerations for NVIDIA's taint and every taint of the Node, except not-ready and unreachable."""
    tolerated: list[Json] = [{"key": GPU, "operator": "Exists"}]
    for taint in node.get("spec", {}).get("taints") or []:
        if taint["key"] in _NODE_STATE_TAINTS or taint["effect"] == "PreferNoSchedule":
            continue
        same: Json = {"key": taint["key"], "effect": taint["effect"], "operator": "Exists"}
        if same not in tolerated:
            tolerated.append(same)
    return tolerated


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
    """Return the pod that runs the CUDA kernel on one GPU of a Node.

    It passes the scheduler and the kubelet's admission, and has a deadline in case nothing deletes it.
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
    """Whether a pod with our labels was left by a killed validation of this Node."""
    for_node = (pod["metadata"].get("annotations") or {}).get(FOR_NODE)
    return bool(for_node == node)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a pod.

    Args:
        finished: it succeeded.
        unschedulable: the scheduler's message; empty unless the pod is unschedulable.
        failure: the failed check, if the pod can no longer succeed.
        started: its container runs.
        last: the latest status, for the message of a timeout.
    """

    finished: bool = False
    unschedulable: str = ""
    failure: Check | None = None
    started: bool = False
    last: str = ""


def _started_wrong(reason: str, message: str) -> Check:
    """Return why a container did not start, with a known cause if the runtime's message matches one."""
    words = f"{reason}: {message}" if message else reason
    if reason in _UNFIT:
        return failed("rejected", words)
    kind = container_checks.classify(message)
    if kind.name in ("not-started", "refused"):
        return failed("create", words)
    check = failed("create", words)
    return Check(LINK, FAILED, f"{kind.summary}: {check.evidence}", kind.fix())


def progress(pod: Json) -> Progress:
    """Parse a pod's status."""
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
    started = bool(state.get("running"))
    return Progress(
        started=started, last=f"phase {phase}" + (", the container runs" if started else "")
    )


def _pod_failed(status: Json, terminated: Json) -> Check:
    reason, message = status.get("reason") or "", status.get("message") or ""
    if reason == "UnexpectedAdmissionError":
        return failed("admission", message or reason)
    if reason == "DeadlineExceeded":
        return failed("timeout" if terminated else "not-started", message or reason)
    if reason:
        return failed("rejected", f"{reason}: {message}" if message else reason)
    if terminated.get("reason") in ("StartError", "ContainerCannotRun"):
        return _started_wrong(str(terminated["reason"]), terminated.get("message") or "")
    code = terminated.get("exitCode", "unknown")
    words = f"{terminated.get('reason') or 'Failed'}, exit code {code}"
    message = terminated.get("message") or ""
    kind = "memory" if terminated.get("reason") == "OOMKilled" else "crashed"
    return failed(kind, f"{words}: {message}" if message else words)


def evaluate_report(report: Json, context: str, *, cuda: bool, began: float) -> Check:
    """Return the check for a pod's report.

    Args:
        report: the output of :mod:`gpustate.nodeside.container_inside`.
        context: Node and resource, for the evidence.
        cuda: a CUDA kernel was to run on every GPU.
        began: monotonic time at which the pod was created.
    """
    from gpustate.nodeside import container_validation  # slow to import, and most runs start no pod

    result = container_validation.reported(context, report, began)
    # With the strategy volume-mounts these mounts are the request, not an injection by the runtime.
    files = tuple(path for path in result.files if _REQUEST not in path)
    result = replace(result, files=files)
    gpus = tuple(report["nvml"].get("mig") or ()) or result.gpus
    named = f"injected: {container_checks.named(result)}"
    if not result.devices and not result.files:
        return failed(
            "nothing", f"{context}: {result.nvml_error or 'no device node and no library'}"
        )
    if result.denied:
        return failed("denied", f"{context}: {', '.join(result.denied)} (Operation not permitted)")
    if result.nvml_error and not gpus:
        return failed("library", f"{context}: {result.nvml_error}; {named}")
    if len(gpus) != 1:  # what the pod requested
        kind = "more" if gpus else "fewer"
        return failed(kind, f"{context}: {len(gpus)} of 1; {named}")
    if result.cuda_text and "cannot be loaded" in result.cuda_text:
        return failed("library", f"{context}: {result.cuda_text}; {named}")
    if cuda and result.cuda_ok != len(gpus):
        number = "" if result.cuda_error is None else f" (CUDA {result.cuda_error})"
        return failed("cuda", f"{context}: {result.cuda_text or 'no kernel ran'}{number}; {named}")
    ran = f", kernel ran on {result.cuda_ok}" if cuda else ""
    evidence = f"{context}: {', '.join(gpus)}, {container_checks.injected(result)}{ran}"
    return Check(LINK, OK, evidence)


def last_warning(events: Iterable[Json]) -> str:
    """Return the newest warning among a pod's events; empty without one."""
    warnings = [event for event in events if event.get("type") == "Warning"]
    warnings.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    if not warnings:
        return ""
    last = warnings[-1]
    return f"{last.get('reason', 'Warning')}: {last.get('message', '')}".strip()
