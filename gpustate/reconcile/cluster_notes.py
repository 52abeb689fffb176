"""What people should know of changes of a cluster's objects: what others have there, or lack, and what goes away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gpustate.cluster import pods
from gpustate.cluster.objects import Objects
from gpustate.errors import ClusterError
from gpustate.manifests.kinds import BY_NAME, NODE, title
from gpustate.manifests.ownership import DEVICE_PLUGIN, DRA_PLUGIN, NFD_DEFINITION, is_owned
from gpustate.plan.objects import NO_GPUS
from gpustate.plan.ranges import fold
from gpustate.reconcile.features import FEATURES
from gpustate.reconcile.owners import OF_OPERATOR, find_operator
from gpustate.reconcile.planning import Action, Change

_FEATURE_DISCOVERY = "daemonset/gpu-feature-discovery"
_FEATURE_DEFINITION = f"customresourcedefinition/{NFD_DEFINITION}"
_FEATURE_WORKER = "-node-feature-discovery-worker"
_PLUGIN_IMAGE = "/k8s-device-plugin:"
#: What offers GPUs to pods.
OFFERING = (f"daemonset/{DEVICE_PLUGIN}", f"daemonset/{DRA_PLUGIN}")
#: MIG strategies with which the device plugin offers MIG devices.
DIVIDING = ("single", "mixed")


def notes(objects: Objects, changes: Sequence[Change], *, absent: bool) -> list[str]:
    """What others have in the cluster, or lack, that concerns these objects; a removal needs nothing of theirs."""
    checks = [operator_notes]
    checks += [] if absent else [feature_notes, other_plugin_notes, mig_notes]
    return [note for check in checks for note in check(objects, changes)]


def operator_notes(objects: Objects, changes: Sequence[Change]) -> list[str]:
    """What was found, of which version, and what to do, if objects belong to a GPU Operator."""
    count = sum(change.reason.startswith(OF_OPERATOR) for change in changes)
    if not count:
        return []
    try:
        operator = find_operator(objects)
    except ClusterError:  # without the rights to look at it
        operator = None
    operator_text = operator.describe() if operator is not None else "a GPU Operator"
    return [
        f"{operator_text} manages {count} of these objects; take them over with "
        "gpustate cluster adopt POLICY -i INVENTORY, or plan without --cluster-objects"
    ]


def feature_notes(objects: Objects, changes: Sequence[Change]) -> list[str]:
    """What to do if GPU feature discovery has no node feature discovery to publish its labels through."""
    titles = {title(change.item) for change in changes if change.action is not Action.DELETE}
    if _FEATURE_DISCOVERY not in titles or _FEATURE_DEFINITION in titles:
        return []
    try:
        served = objects.serves(FEATURES)
    except ClusterError:
        return []
    if served:
        return []
    return [
        f"{_FEATURE_DISCOVERY} cannot run: the cluster has no NodeFeatures; "
        "add --set cluster.install_nfd=true, install node feature discovery, or switch it off (gfd.enabled; in a policy of states cluster.feature_discovery.enabled)"
    ]


def other_plugin_notes(objects: Objects, changes: Sequence[Change]) -> list[str]:
    """Device plugins of others beside the policy's: the kubelet uses the one that registers last."""
    items = [change.item for change in changes if change.action is not Action.DELETE]
    keys = {(title(item), item["metadata"].get("namespace")) for item in items}
    try:
        offers = any(name == OFFERING[0] for name, _ in keys)
        daemonsets = objects.list(BY_NAME["DaemonSet"], "*") if offers else []
    except ClusterError:  # without the right
        return []
    return [
        f"{title(daemonset)} in namespace {daemonset['metadata']['namespace']} is a device plugin too, and the kubelet uses the one "
        "that registers last: delete it, or switch the policy's off (devicePlugin.enabled; in a policy of states cluster.device_plugin.enabled)"
        for daemonset in daemonsets
        if not is_owned(daemonset)
        and (title(daemonset), daemonset["metadata"]["namespace"]) not in keys
        for containers in [daemonset["spec"]["template"]["spec"]["containers"]]
        if any(_PLUGIN_IMAGE in container["image"] for container in containers)
    ]


def mig_strategies(changes: Iterable[Change]) -> list[tuple[Any, Any]]:
    """MIG strategies of programs before and after, where their variable changes, comes or goes."""

    def text(variable: Any) -> Any:
        return variable.get("value") if isinstance(variable, dict) else variable

    return [
        (text(difference.before), text(difference.after))
        for change in changes
        for difference in change.differences
        if "env[MIG_STRATEGY]" in difference.field
    ]


def mig_notes(objects: Objects, changes: Sequence[Change]) -> list[str]:
    """Nodes with MIG devices where the device plugin no longer offers these."""
    plugins = [
        change
        for change in changes
        if title(change.item) == f"daemonset/{DEVICE_PLUGIN}" and change.action is Action.UPDATE
    ]
    ends = any(
        before in DIVIDING and after not in DIVIDING for before, after in mig_strategies(plugins)
    )
    try:
        nodes = objects.list(NODE, "") if ends else []
    except ClusterError:  # without the right
        return []
    divided = [
        node["metadata"]["name"]
        for node in nodes
        if any(name.startswith(pods.MIG_PREFIX) for name in pods.allocatable(node))
        or (node["metadata"].get("labels") or {}).get("nvidia.com/mig.strategy") == "single"
    ]
    return [
        f"{', '.join(fold(divided))}: the device plugin will offer GPUs in MIG mode as whole ones, and pods that get one do "
        "not start; take a layout of gpustate back with mig: {ensure: absent}, or keep mig_strategy"
    ] * bool(divided)


def deletion_notes(changes: Sequence[Change], *, absent: bool) -> list[str]:
    """What pods and Nodes lose by objects that are deleted."""
    deleted = [title(change.item) for change in changes if change.action is Action.DELETE]
    remaining = [title(change.item) for change in changes if change.action is not Action.DELETE]
    turns = ", each from its turn on" if absent else ""
    notes = [
        f"{name} is deleted: {NO_GPUS}{turns}; running pods keep theirs"
        for name in deleted
        if name in OFFERING and not any(plugin in remaining for plugin in OFFERING)
    ]
    if not absent and any(name.endswith(_FEATURE_WORKER) for name in deleted):
        notes.append(
            "node feature discovery is deleted; to keep it, add --set cluster.install_nfd=true"
        )
    return notes
