"""What stays of a cluster when a node goes back: its objects, with the MIG strategy of the device plugin.

A rollback takes back nodes alone. Under the strategy of the run that is undone, pods may be unable to use the GPUs that
a node had before it: such a node does not go back. The cluster itself is asked, for the strategy may be of another run,
or of nobody's.

Sources:
    NVIDIA/k8s-device-plugin v0.20: cmd/nvidia-device-plugin/main.go (a flag or its variable precedes the file).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from gpustate.core.inventory import InventoryNode
from gpustate.documents import Json
from gpustate.engine.before import WayBack
from gpustate.errors import ClusterError, GpustateError, RefusedError
from gpustate.manifests.kinds import title
from gpustate.manifests.ownership import DEPLOY, is_owned
from gpustate.reconcile.plugin_restart import runs_plugin
from gpustate.rollout.access import Accesses
from gpustate.rollout.by_label import misfit
from gpustate.rollout.maintenance import KUBERNETES

if TYPE_CHECKING:
    from gpustate.schedulers.kubernetes import Kubernetes

#: DaemonSets, and Nodes by name and address.
_Listed = tuple[list[Json], dict[str, Json]]

_WAITS = "pods get the template only when they are created again (OnDelete, as after a run that failed or was killed)"
_AGAIN = "gpustate apply POLICY -i INVENTORY --cluster-objects, with the policy of before"
_PLACE = re.compile(r" at \d+")
_COUNTED = ("updated", "desired")
_FLAG = re.compile(r"--mig-strategy[= ](\w+)")


@dataclass(frozen=True)
class StayingObjects:
    """The DaemonSets of the nodes' clusters, each listed once.

    Args:
        access: to the clusters; ``None``: schedulers are ignored.
    """

    access: Accesses | None
    _listed: dict[Kubernetes, _Listed | GpustateError] = field(
        default_factory=dict["Kubernetes", "_Listed | GpustateError"]
    )

    def check(self, node: InventoryNode, way: WayBack) -> None:
        """Refuse a way back to a MIG layout whose GPUs no pod could use.

        Raises:
            RefusedError: why.
        """
        layouts = _layouts(way)
        if not any(layouts):
            return
        try:
            strategies = {_strategy(item) for item in self._daemon_sets(node) if _offers(item)}
        except ClusterError as error:
            raise RefusedError(error.message, place=error.place, fix=error.fix) from error
        for strategy in sorted(strategies):
            problem, _ = misfit(layouts, strategy) if strategy else ("", "")
            if problem:
                raise RefusedError(
                    f"the MIG layout of before run {way.run} does not fit the cluster, whose objects stay: {problem}",
                    fix=f"take nodes and objects back together: {_AGAIN}",
                )

    def notes(self, node: InventoryNode, way: WayBack) -> Iterator[str]:
        """What a person should know of objects that stay."""
        try:
            daemon_sets = self._daemon_sets(node)
        except GpustateError:  # whatever needs the cluster reports it
            return
        owned = [item for item in daemon_sets if is_owned(item)]
        if owned:
            yield f"objects of the cluster stay as they are; to take them back, too: {_AGAIN}"
        if waiting := [title(item) for item in owned if _is_on_delete(item)]:
            yield f"{', '.join(waiting)}: {_WAITS}, on this node too"
        plugins = [item for item in daemon_sets if _offers(item)]
        if any(_layouts(way)) and not all(map(_strategy, plugins)):
            yield (
                "the device plugin reads its MIG strategy from a file: unless it is single or mixed there, pods cannot use "
                "the MIG devices of before"
            )

    def _daemon_sets(self, node: InventoryNode) -> list[Json]:
        """Those of a node's cluster that select its Node.

        Raises:
            GpustateError: the cluster cannot be asked.
        """
        cluster = self.access and cast("Kubernetes | None", self.access(node, KUBERNETES))
        if not cluster:
            return []
        if cluster not in self._listed:
            try:
                self._listed[cluster] = cluster.nodes.api.daemon_sets(), cluster.nodes.by_name()
            except GpustateError as error:  # it is not waited for again
                self._listed[cluster] = error
        listed = self._listed[cluster]
        if isinstance(listed, GpustateError):
            raise listed
        daemon_sets, items = listed
        item = items.get(node.name) or items.get(node.connection.host or "")
        return [
            daemon_set for daemon_set in daemon_sets if item is None or _selects(daemon_set, item)
        ]


def outdated(cluster: Kubernetes) -> dict[str, str]:
    """Own DaemonSets of a cluster whose pods have not all got their template, and no longer get it by themselves.

    Raises:
        ClusterError: they cannot be listed.
    """
    owned = [
        daemon_set
        for daemon_set in cluster.nodes.daemon_sets()
        if is_owned(daemon_set) and _is_on_delete(daemon_set)
    ]
    counts = {
        title(daemon_set): [
            daemon_set.get("status", {}).get(f"{kind}NumberScheduled", 0) for kind in _COUNTED
        ]
        for daemon_set in owned
    }
    return {
        name: f"{updated} of {desired} pods have its template: {_WAITS}"
        for name, (updated, desired) in counts.items()
        if updated < desired
    }


def _is_on_delete(daemon_set: Json) -> bool:
    return bool(daemon_set["spec"].get("updateStrategy", {}).get("type") == "OnDelete")


def _layouts(way: WayBack) -> list[tuple[str, ...]]:
    """The MIG profiles of each GPU to which a node goes back, if that may be another layout; empty for one without MIG mode."""
    if "mig" not in way.changed.intersection(state.name for state in way.states):
        return []
    before = way.before.get("mig", {})
    instances = before.get("instances") or {}
    return [
        tuple(_PLACE.sub("", text) for text in instances.get(number) or ("no device",))
        if mode.endswith(("on", "on after a reset"))
        else ()
        for number, mode in (before.get("modes") or {}).items()
    ]


def _selects(daemon_set: Json, node: Json) -> bool:
    """Whether it has a pod on a Node, once all programs run again that gpustate keeps away."""
    labels = node["metadata"].get("labels") or {}
    selector = daemon_set["spec"]["template"]["spec"].get("nodeSelector") or {}
    return all(
        labels.get(key) == value or (key.startswith(DEPLOY) and labels.get(key) != "false")
        for key, value in selector.items()
    )


def _offers(daemon_set: Json) -> bool:
    return runs_plugin(daemon_set["spec"]["template"])


def _strategy(daemon_set: Json) -> str:
    """The MIG strategy of a device plugin; empty: a file decides."""
    strategy = "none"
    for container in daemon_set["spec"]["template"]["spec"]["containers"]:
        words = " ".join([*(container.get("command") or ()), *(container.get("args") or ())])
        variables = {
            variable["name"]: variable.get("value") or "" for variable in container.get("env") or ()
        }
        flag = _FLAG.search(words)
        if value := flag[1] if flag else variables.get("MIG_STRATEGY"):
            return value
        if "CONFIG_FILE" in variables or "--config-file" in words:
            strategy = ""
    return strategy
