"""Select the pods that leave a Node, as ``kubectl drain --ignore-daemonsets`` does. Pure.

Surprising: a pod that has finished is deleted whatever guards it; a static pod and one of a DaemonSet stay; of all
filters the first that objects decides. Without a GPU a pod stays when only GPU workloads have to leave. A pod that
holds a GPU by DRA names a claim, and a claim that cannot be read counts as one on a GPU. ``adminAccess`` is for
monitoring, so such a pod is not a workload. A pod with a GPU that its DaemonSet would create again keeps the driver
from being reloaded, so it counts as one that cannot leave, as for the GPU Operator.

Sources:
    kubernetes/kubectl, pkg/drain/filters.go; kubernetes, registry/core/pod/storage/eviction.go;
    NVIDIA/k8s-operator-libs, pkg/upgrade/pod_manager.go; resource.k8s.io/v1 ResourceClaim.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpustate.core.drain import DrainPolicy, EvictionRules
from gpustate.documents import Json
from gpustate.formats.labels import selectors
from gpustate.formats.words import listed
from gpustate.schedulers.base import Scope

_MIRROR = "kubernetes.io/config.mirror"
_GPU_DRIVER = "gpu.nvidia.com"
_ENDED = ("Succeeded", "Failed")
_ACTIVE = ("Running", "Pending")
_NOT_SELECTED = "not selected"
_DRA_DRIVERS = frozenset({"k8s-dra-driver-gpu", "dra-driver-nvidia-gpu"})
#: Images whose programs open NVML for as long as they run.
_OPERANDS = _DRA_DRIVERS | {"k8s-device-plugin", "gpu-feature-discovery", "dcgm", "dcgm-exporter"}
_NETWORK = re.compile("rdma|sriov")
_GPU_PREFIXES = ("nvidia.com/gpu", "nvidia.com/mig-")


@dataclass(frozen=True, slots=True)
class Cluster:
    """What selecting needs besides a Node's pods.

    Args:
        daemon_sets: ``namespace/name`` of each.
        claims: ResourceClaims by ``namespace/name``.
        budgets: PodDisruptionBudgets by namespace.
    """

    daemon_sets: frozenset[str] = frozenset()
    claims: Mapping[str, Json] = field(default_factory=dict[str, Json])
    budgets: Mapping[str, Sequence[Json]] = field(default_factory=dict[str, Sequence[Json]])

    @classmethod
    def of(
        cls, daemon_sets: Iterable[Json], claims: Iterable[Json], budgets: Iterable[Json]
    ) -> Cluster:
        """Index lists of objects."""
        by_namespace: dict[str, list[Json]] = {}
        for budget in budgets:
            by_namespace.setdefault(budget["metadata"]["namespace"], []).append(budget)
        return cls(
            frozenset(name(daemon_set) for daemon_set in daemon_sets),
            {name(claim): claim for claim in claims},
            by_namespace,
        )


@dataclass(slots=True)
class Selection:
    """What becomes of a Node's pods.

    Args:
        leave: they are evicted.
        stay: they are left alone, and why, for those that a person might wonder about.
        refused: they keep the Node from being drained, and why.
    """

    leave: list[Json] = field(default_factory=list[Json])
    stay: list[tuple[Json, str]] = field(default_factory=list[tuple[Json, str]])
    refused: list[tuple[Json, str]] = field(default_factory=list[tuple[Json, str]])


def name(item: Json) -> str:
    """``namespace/name``."""
    meta = item["metadata"]
    return f"{meta.get('namespace', '')}/{meta['name']}"


def names(pods: Iterable[Json]) -> str:
    """Some of their names, and how many more there are."""
    return listed(sorted(map(name, pods)), 4, kind="pods")


def finished(pod: Json) -> bool:
    """Its containers have ended for good."""
    return (pod.get("status") or {}).get("phase") in _ENDED


def labels(pod: Json) -> Mapping[str, str]:
    """Of a pod."""
    values: Mapping[str, str] = pod["metadata"].get("labels") or {}
    return values


def controller(pod: Json) -> Json | None:
    """The owner that creates it again; ``None``: nothing does."""
    for owner in pod["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            reference: Json = owner
            return reference
    return None


def uses_gpu(pod: Json, claims: Mapping[str, Json]) -> bool:
    """Whether it holds a GPU or a part of one."""
    if finished(pod):
        return False
    return _requests_gpu(pod) or _claims_gpu(pod, claims)


def _requests_gpu(pod: Json) -> bool:
    spec = pod.get("spec") or {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        resources = container.get("resources") or {}
        for key in (*(resources.get("limits") or ()), *(resources.get("requests") or ())):
            if key.startswith(_GPU_PREFIXES):
                return True
    return False


def _claims_gpu(pod: Json, claims: Mapping[str, Json]) -> bool:
    status = pod.get("status") or {}
    names = [
        entry.get("resourceClaimName")
        for entry in (pod.get("spec") or {}).get("resourceClaims") or ()
    ]
    names += [entry.get("resourceClaimName") for entry in status.get("resourceClaimStatuses") or ()]
    names.append((status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName"))
    namespace = pod["metadata"].get("namespace", "")
    for claim_name in filter(None, names):
        claim = claims.get(f"{namespace}/{claim_name}")
        if claim is None:
            return True
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for result in (allocation.get("devices") or {}).get("results") or ():
            if result.get("driver") == _GPU_DRIVER and not result.get("adminAccess"):
                return True
    return False


def is_lost(pod: Json, cluster: Cluster) -> bool:
    """Nothing creates it again once it has left: it has no controller, or its DaemonSet is gone."""
    owner = controller(pod)
    if owner is None or owner["kind"] != "DaemonSet":
        return owner is None and not finished(pod)
    daemon_set = f"{pod['metadata'].get('namespace', '')}/{owner['name']}"
    return daemon_set not in cluster.daemon_sets and not finished(pod)


def is_waited_for(pod: Json, policy: DrainPolicy) -> bool:
    """Whether it runs or starts and is to complete before anything is evicted."""
    selector = selectors.parse(policy.wait_selector)
    phase = (pod.get("status") or {}).get("phase")
    return bool(selector) and phase in _ACTIVE and selectors.matches(selector, labels(pod))


def select(
    pods: Iterable[Json],
    scope: Scope,
    policy: DrainPolicy,
    cluster: Cluster,
    *,
    after_gpu_pods: bool = False,
    spared: Collection[str] = (),
) -> Selection:
    """Judge every pod of a Node.

    Args:
        pods: of the Node.
        scope: which of them have to leave.
        policy: how. Where all have to, those with a GPU may leave by the rules of either.
        cluster: what they refer to.
        after_gpu_pods: those with a GPU did not leave by their own rules, so those of the Node alone count.
        spared: UIDs of those with GPUs of the device plugin that do not change.
    """
    selection = Selection()
    for pod in pods:
        gpu = uses_gpu(pod, cluster.claims)
        stays = pod["metadata"].get("uid") in spared and not _claims_gpu(pod, cluster.claims)
        if scope is Scope.GPU and (stays or not gpu):
            continue
        if scope is Scope.GPU:
            verdict, words = _with_gpu(pod, policy.gpu_pods, cluster)
        else:
            verdict, words = _selected(pod, policy.node, cluster)
            if gpu and not after_gpu_pods and verdict != "leave":
                either = _selected(pod, policy.gpu_pods, cluster)
                verdict, words = either if either[0] == "leave" else (verdict, words)
        if verdict == "leave":
            selection.leave.append(pod)
        elif verdict == "stay":
            selection.stay.append((pod, words))
        else:
            selection.refused.append((pod, words))
    return selection


def _with_gpu(pod: Json, rules: EvictionRules, cluster: Cluster) -> tuple[str, str]:
    """Judge a pod whose GPU is needed."""
    verdict, words = _selected(pod, rules, cluster)
    if verdict != "stay" or words == _NOT_SELECTED or is_operand(pod):
        return verdict, words
    owner = controller(pod)
    if owner is not None and owner["kind"] == "DaemonSet":
        return (
            "refuse",
            f"it uses a GPU, and its DaemonSet {owner['name']} would create it again; keep the DaemonSet off the node",
        )
    return "refuse", "it uses a GPU and is a static pod; remove its manifest from the node"


def _selected(pod: Json, rules: EvictionRules, cluster: Cluster) -> tuple[str, str]:
    if not selectors.matches(selectors.parse(rules.pod_selector), labels(pod)):
        return "stay", _NOT_SELECTED
    return _judge(pod, rules, cluster)


def _judge(pod: Json, rules: EvictionRules, cluster: Cluster) -> tuple[str, str]:
    owner = controller(pod)
    ended = finished(pod)
    if owner is not None and owner["kind"] == "DaemonSet" and not ended:
        if not is_lost(pod, cluster):
            return "stay", f"managed by DaemonSet {owner['name']}"
        if not rules.force:
            return (
                "refuse",
                f"its DaemonSet {owner['name']} is gone; pass --set drain.force=true to delete it",
            )
        return "leave", ""
    if _MIRROR in (pod["metadata"].get("annotations") or {}):
        return "stay", "a static pod"
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    if not ended and not rules.delete_empty_dir:
        empty = [volume["name"] for volume in volumes if volume.get("emptyDir") is not None]
        if empty:
            return (
                "refuse",
                f"its emptyDir volume {empty[0]} would be lost; pass --set drain.delete_empty_dir=true to delete it",
            )
    if owner is None and not ended and not rules.force:
        return (
            "refuse",
            "no controller would create it again; pass --set drain.force=true to delete it",
        )
    return "leave", ""


def budgets_of(pod: Json, cluster: Cluster) -> list[Json]:
    """The PodDisruptionBudgets that guard a pod."""
    namespace = pod["metadata"].get("namespace", "")
    return [
        budget
        for budget in cluster.budgets.get(namespace, ())
        if selectors.matches(
            selectors.of_object((budget.get("spec") or {}).get("selector")), labels(pod)
        )
    ]


def is_operand(pod: Json) -> bool:
    """A pod of a DaemonSet of NVIDIA's that keeps NVML open, so that it goes on with the old driver."""
    owner = controller(pod)
    return owner is not None and owner["kind"] == "DaemonSet" and uses_nvml(pod)


def uses_nvml(pod: Json) -> bool:
    """Its programs, or those of a template, are NVIDIA's that keep NVML open."""
    return bool(_images(pod) & _OPERANDS)


def is_dra_driver(daemon_set: Json) -> bool:
    """Its pods publish the GPUs of their Nodes as ResourceSlices."""
    return bool(_images((daemon_set.get("spec") or {}).get("template") or {}) & _DRA_DRIVERS)


def is_device_plugin(pod: Json) -> bool:
    """It, or a template's pod, has the kubelet's folder of device plugins, and is not for network cards."""
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    paths = " ".join((volume.get("hostPath") or {}).get("path") or "" for volume in volumes)
    ended = (pod.get("status") or {}).get("phase") in _ENDED
    return "device-plugins" in paths and not ended and not _NETWORK.search(" ".join(_images(pod)))


def _images(pod: Json) -> set[str]:
    """The names of its containers' images, without registry and tag."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    images = (str(container.get("image") or "") for container in containers)
    return {image.rpartition("/")[2].partition("@")[0].partition(":")[0] for image in images}


def is_ready(item: Json) -> bool:
    """The condition Ready of a pod or Node is True."""
    return _ready(item).get("status") == "True"


def not_ready_since(node: Json) -> str:
    """When a Node stopped being Ready; empty: it is, or never was."""
    return "" if is_ready(node) else str(_ready(node).get("lastTransitionTime") or "")


def _ready(item: Json) -> Json:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == "Ready"), {})


def dead_end(pod: Json, cluster: Cluster) -> str:
    """Why a pod's eviction will be refused for as long as nobody changes something; empty: it will not."""
    if finished(pod) or (pod.get("status") or {}).get("phase") == "Pending":
        return ""  # deleted without a look at budgets
    if pod["metadata"].get("deletionTimestamp"):
        return ""
    budgets = budgets_of(pod, cluster)
    if len(budgets) > 1:
        names = " and ".join(name(budget) for budget in budgets)
        return f"PodDisruptionBudgets {names} both select it, so it cannot be evicted; change one of them"
    for budget in budgets:
        status = budget.get("status") or {}
        title = f"PodDisruptionBudget {name(budget)}"
        policy = (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy")
        expected, desired = status.get("expectedPods", 0), status.get("desiredHealthy", 0)
        # A pod that is not ready may leave where enough others are, even if none that is ready may.
        if not is_ready(pod) and (
            policy == "AlwaysAllow" or status.get("currentHealthy", 0) >= desired > 0
        ):
            continue
        if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
            return f"{title} has no current status; check that the disruption controller runs"
        if status.get("disruptionsAllowed", 0) > 0:
            continue
        if expected and desired >= expected:
            return (
                f"{title} never allows a disruption: it requires {desired} of {expected} pods; "
                "change the budget or the number of pods"
            )
    return ""


def remains(pod: Json, *, ready: bool, timeout_s: float) -> str:
    """Why a pod that was evicted is still there, and what to do.

    Args:
        pod: as it is now.
        ready: its Node is Ready.
        timeout_s: how long it is waited for; 0: without a limit.
    """
    meta = pod["metadata"]
    grace_s = meta.get("deletionGracePeriodSeconds") or 0
    finalizers = meta.get("finalizers")
    if not meta.get("deletionTimestamp"):
        return "evicted, and not deleted yet"
    held = f"nobody removes its finalizer {', '.join(finalizers)}" if finalizers else ""
    if not ready:
        also = f"; {held} either" if held else ""
        return f"terminating, and its Node is NotReady: no kubelet ends it; start the kubelet{also}"
    if timeout_s and grace_s > timeout_s:
        return (
            f"terminating until {meta['deletionTimestamp']}: its grace period is {grace_s} s; "
            "pass a longer --set drain.timeout_s, or --set drain.grace_period_s"
        )
    if held:
        return f"terminating, and {held}; check the controller that set it"
    if (pod.get("spec") or {}).get("resourceClaims"):
        return (
            "terminating; if it stays, check that the kubelet plugin of its DRA driver runs on the Node: "
            "only the plugin can release the claims"
        )
    return f"evicted, and still terminating (grace period {grace_s} s)"
