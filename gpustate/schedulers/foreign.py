"""Who else took a Node out of service, or works on it. Pure.

Sources:
    kubernetes/autoscaler, utils/taints; aws/karpenter, apis/v1/taints.go; NVIDIA/gpu-operator, upgrade states;
    NVIDIA/NVSentinel, fault-quarantine; NVIDIA/nodewright, wrapper/node.go; Mellanox/maintenance-operator, api/v1alpha1;
    kubereboot/kured; openshift/machine-config-operator, daemon/constants; NVIDIA/mig-parted, reconfigure.go; CoreWeave SUNK.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from gpustate.documents import Json
from gpustate.schedulers.mig_state import PENDING, REBOOTING, STATE, is_ours

_UPGRADE_STATE = "nvidia.com/gpu-driver-upgrade-state"
_NVSENTINEL_STATE = "dgxc.nvidia.com/nvsentinel-state"
#: States in which the GPU Operator may stay for ever.
_UPGRADES: Mapping[str, str] = {
    "upgrade-required": (
        "the GPU Operator is to upgrade its driver and has not begun ({}): one failed or cordoned node may use "
        "up maxParallelUpgrades or maxUnavailable; let it finish, or set autoUpgrade to false"
    ),
    "upgrade-failed": (
        "the GPU Operator's upgrade of its driver failed ({}); it goes on once the driver's pod is ready, or set "
        "the label to upgrade-required to try again"
    ),
    "validation-required": (
        "the GPU Operator validates its driver ({}); without a pod of nvidia-operator-validator on the node it "
        "waits for ever"
    ),
}
#: Taint keys by which other tools announce that a Node leaves or is worked on.
_TAINTS: Mapping[str, str] = {
    "ToBeDeletedByClusterAutoscaler": "cluster-autoscaler deletes it",
    "karpenter.sh/disrupted": "Karpenter replaces it",
    "karpenter.sh/disruption": "Karpenter replaces it",
    "node.kubernetes.io/out-of-service": "it is marked as out of service",
    "node.cloudprovider.kubernetes.io/shutdown": "its cloud shut it down",
    "cloud.google.com/impending-node-termination": "its cloud terminates it",
    "skyhook.nvidia.com": "NodeWright works on it",
    "nodewright.nvidia.com": "NodeWright works on it",
    "sunk.coreweave.com/lock": "SUNK holds it",
}
_TAINT_PREFIXES: Mapping[str, str] = {
    "aws-node-termination-handler/": "its cloud terminates it",
    "nvsentinel.nvidia.com/": "NVSentinel repairs it",
}
#: In the name of anybody's taint.
_TAINT_WORDS = ("maintenance", "drain", "upgrade", "quarantine")
_ANNOTATIONS: Mapping[str, str] = {
    "quarantineHealthEvent": "NVSentinel quarantined it",
    "nvsentinel.dgxc.nvidia.com/active-maintenance-request": "NVSentinel maintains it",
    "weave.works/kured-reboot-in-progress": "kured reboots it",
    "kured.dev/reboot-in-progress": "kured reboots it",
    "sunk.coreweave.com/drain": "SUNK drains it",
}
_MACHINE_CONFIG = "machineconfiguration.openshift.io/"
_NODEWRIGHT = ("skyhook.nvidia.com/", "nodewright.nvidia.com/")


def cordon(node: Json) -> tuple[str, str]:
    """When ``spec.unschedulable`` was written last, and by whom, by the Node's managedFields; empty where they do not say."""
    newest = ("", "")
    for entry in node["metadata"].get("managedFields") or []:
        if "f:unschedulable" in ((entry.get("fieldsV1") or {}).get("f:spec") or {}):
            newest = max(newest, (str(entry.get("time") or ""), str(entry.get("manager") or "")))
    return newest


def holders(
    node: Json,
    *,
    held: bool,
    own_manager: str,
    maintenances: Iterable[Json] = (),
    operator: Callable[[], bool] = lambda: True,
) -> tuple[str, ...]:
    """Everyone else who holds a Node or works on it, in words; empty: nobody.

    Args:
        node: the Node.
        held: this tool's own record is on it.
        own_manager: this tool's field manager.
        maintenances: the cluster's NodeMaintenance objects.
        operator: whether a GPU Operator may be at work.
    """
    reasons = [
        *_cordon(node, held=held, own_manager=own_manager),
        *_taints(node),
        *_labels(node, operator),
        *_annotations(node),
    ]
    name = node["metadata"]["name"]
    for maintenance in maintenances:
        if (maintenance.get("spec") or {}).get("nodeName") == name:
            requestor = maintenance["spec"].get("requestorID") or "a requestor"
            reasons.append(
                f"NodeMaintenance {maintenance['metadata'].get('namespace')}/{maintenance['metadata']['name']} of {requestor}"
            )
    return tuple(dict.fromkeys(reasons))


def _cordon(node: Json, *, held: bool, own_manager: str) -> Iterator[str]:
    if not (node.get("spec") or {}).get("unschedulable"):
        return
    _, manager = cordon(node)
    if not held or (manager and manager != own_manager):
        yield f"cordoned by {manager or 'someone else'}"


def _taints(node: Json) -> Iterator[str]:
    for taint in (node.get("spec") or {}).get("taints") or []:
        key = str(taint["key"])
        text = f"taint {key}:{taint['effect']}"
        words = _TAINTS.get(key) or next(
            (words for prefix, words in _TAINT_PREFIXES.items() if key.startswith(prefix)), ""
        )
        if words:
            yield f"{words} ({text})"
        elif any(word in key.lower() for word in _TAINT_WORDS):
            yield text


def _labels(node: Json, operator: Callable[[], bool]) -> Iterator[str]:
    labels = node["metadata"].get("labels") or {}
    state = labels.get(_UPGRADE_STATE, "")
    if state not in ("", "upgrade-done") and not operator():
        remove = f"kubectl label node {node['metadata']['name']} {_UPGRADE_STATE}-"
        yield f"{_UPGRADE_STATE}={state} is left over: the cluster has no ClusterPolicy; remove it: {remove}"
    elif state not in ("", "upgrade-done"):
        words = _UPGRADES.get(state, "the GPU Operator upgrades its driver ({})")
        yield words.format(f"{_UPGRADE_STATE}={state}")
    if labels.get(STATE) in (PENDING, REBOOTING) and not is_ours(node):
        yield f"NVIDIA's MIG manager changes it ({STATE}={labels[STATE]})"
    state = labels.get(_NVSENTINEL_STATE, "")
    if state not in ("", "remediation-succeeded"):
        yield f"NVSentinel handles a fault ({_NVSENTINEL_STATE}={state})"
    for key, value in sorted(labels.items()):
        if key.endswith("/cordon-by") and value:
            yield f"cordoned by {value} (label {key})"


def _annotations(node: Json) -> Iterator[str]:
    annotations = node["metadata"].get("annotations") or {}
    for key, words in _ANNOTATIONS.items():
        if annotations.get(key):
            yield f"{words} (annotation {key})"
    for key, value in sorted(annotations.items()):
        if key.startswith(_NODEWRIGHT) and "/cordon_" in key:
            yield f"NodeWright cordoned it (annotation {key})"
        if key.startswith(_NODEWRIGHT) and "/status_" in key and value != "complete":
            yield f"NodeWright works on it (annotation {key}={value})"
    state = annotations.get(f"{_MACHINE_CONFIG}state", "")
    if state not in ("", "Done"):
        yield f"the Machine Config Operator works on it ({_MACHINE_CONFIG}state={state})"
    drain = annotations.get(f"{_MACHINE_CONFIG}desiredDrain", "")
    if drain.startswith("drain-") and drain != annotations.get(
        f"{_MACHINE_CONFIG}lastAppliedDrain"
    ):
        yield f"the Machine Config Operator drains it ({_MACHINE_CONFIG}desiredDrain)"
