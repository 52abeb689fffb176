"""Nodes of a run on which a DaemonSet starts no pod, and why. Pure.

Surprising: a DaemonSet counts only Nodes that its pods may run on, so it is complete without the others.

Sources:
    kubernetes/kubernetes, pkg/controller/daemon/daemon_controller.go (nodeShouldRunDaemonPod) and
    util/daemonset_util.go (AddOrUpdateDaemonPodTolerations).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpustate.cluster.scheduling import show_taint, unmet_selector, untolerated
from gpustate.documents import Json
from gpustate.manifests.kinds import title
from gpustate.manifests.ownership import DEPLOY, is_of_nfd
from gpustate.manifests.settings import STARTUP_TAINT
from gpustate.plan.ranges import fold
from gpustate.reconcile.planning import Action, Change

#: Of taints of the cluster itself, which every DaemonSet tolerates.
_OF_CLUSTER = "node.kubernetes.io/"
#: Sets the labels of Nodes.
RELABEL = "gpustate apply POLICY -i INVENTORY --cluster-objects"
#: The label of Nodes that turns the device plugin on.
PLUGIN_LABEL = f"{DEPLOY}device-plugin"
#: The pod of gpustate's device plugin, where its DaemonSet cannot be read.
_PLUGIN: Json = {
    "spec": {
        "nodeSelector": {PLUGIN_LABEL: "true"},
        "tolerations": [
            {"key": key, "operator": "Exists"} for key in ("nvidia.com/gpu", STARTUP_TAINT)
        ],
    }
}
_ABSENT = (Action.DELETE, Action.RELEASE, Action.SKIPPED, Action.REFUSED)


@dataclass(frozen=True, slots=True)
class Absence:
    """A Node without the pods of some DaemonSets.

    Args:
        node: its name.
        daemon_sets: as messages name them.
        reason: what keeps the pods away.
        fix: the next move, with NODE for the Node.
    """

    node: str
    daemon_sets: tuple[str, ...]
    reason: str
    fix: str


def obstacle(
    template: Json, node: Json, tolerations: str = "daemonsets.tolerations"
) -> tuple[str, str]:
    """What keeps the pod of a DaemonSet off a Node, and the next move; empty: nothing.

    Args:
        template: of the pod.
        node: the Node.
        tolerations: where a policy has them.
    """
    labels = node["metadata"].get("labels") or {}
    label = _component(template)
    if label and not labels.get(label):
        return f"the Node has no label {label}", RELABEL
    if label and labels[label] != "true":
        fix = f"if nobody wants that any more: kubectl label node NODE --overwrite {label}=true"
        return f"label {label}={labels[label]}", fix
    if unmet := unmet_selector(template, node):
        return unmet, "label it, or change the selector"
    for taint in untolerated(template, node):
        if not taint["key"].startswith(_OF_CLUSTER):
            fix = f"remove it, or add to {tolerations}: {{key: {taint['key']}, operator: Exists}}"
            return f"taint {show_taint(taint)} is not tolerated", fix
    return "", ""


def device_plugin_obstacle(node: Json, templates: Sequence[Json] = ()) -> tuple[str, str]:
    """What keeps the device plugin's pod off a Node, as :func:`obstacle` returns it.

    Args:
        node: the Node.
        templates: of the pods of all device plugins of the cluster; none: they are not known.
    """
    causes = [obstacle(template, node) for template in templates or [_PLUGIN]]
    reason, fix = next((cause for cause in causes if not cause[0]), causes[0])
    return reason, fix.replace("NODE", node["metadata"]["name"])


def absences(
    changes: Sequence[Change], nodes: Sequence[Json], labels: Mapping[str, Mapping[str, str]]
) -> list[Absence]:
    """The Nodes that get no pod of a component.

    Args:
        changes: of all objects, labels of Nodes included.
        nodes: of the cluster.
        labels: by Node, those by which components are for it. ``false`` is a person's, who wants none there.
    """
    items = [change.item for change in changes if change.action not in _ABSENT]
    daemon_sets = [item for item in items if item["kind"] == "DaemonSet"]
    applied = {item["metadata"]["name"]: item for item in items if item["kind"] == "Node"}
    result: list[Absence] = []
    for node in nodes:
        name = node["metadata"]["name"]
        if labels.get(name):
            added = applied.get(name, node)["metadata"].get("labels") or {}
            live = {**(node["metadata"].get("labels") or {}), **added}
            labelled = {**node, "metadata": {**node["metadata"], "labels": live}}
            causes: dict[tuple[str, str], list[str]] = {}
            for daemon_set, cause in _on_node(daemon_sets, labelled, labels[name]):
                causes.setdefault(cause, []).append(title(daemon_set))
            result += [Absence(name, tuple(titles), *cause) for cause, titles in causes.items()]
    return result


def lines(absent: Sequence[Absence]) -> list[str]:
    """One line for Nodes that are alike."""
    groups: dict[tuple[str, str], list[str]] = {}
    for absence in absent:
        words = f"no pod of {', '.join(absence.daemon_sets)}: {absence.reason}"
        groups.setdefault((words, absence.fix), []).append(absence.node)
    return [
        f"{', '.join(fold(f'node/{name}' for name in names))}: {words}; "
        + fix.replace("NODE", " ".join(names) if len(names) < 4 else "NODE")
        for (words, fix), names in groups.items()
    ]


def _on_node(
    daemon_sets: Sequence[Json], node: Json, labels: Mapping[str, str]
) -> Iterator[tuple[Json, tuple[str, str]]]:
    """The DaemonSets without a pod on a Node, and what keeps it off."""
    live = node["metadata"]["labels"]
    selected = [
        (daemon_set, not unmet_selector(daemon_set["spec"]["template"], node))
        for daemon_set in daemon_sets
    ]
    served = {_component(item["spec"]["template"]) for item, matches in selected if matches}
    for daemon_set, matches in selected:
        template = daemon_set["spec"]["template"]
        label = _component(template)
        if label and (labels.get(label) != "true" or live.get(label) == "false"):
            continue  # not for this Node
        if matches or (label and label not in served):
            key = "node-feature-discovery.worker" if is_of_nfd(daemon_set) else "daemonsets"
            cause = obstacle(template, node, f"{key}.tolerations")
            if cause[0]:
                yield daemon_set, cause


def _component(template: Json) -> str:
    """The label of Nodes that turns a component on; empty: it is for every Node that it selects."""
    selector = template["spec"].get("nodeSelector") or {}
    return next((label for label in selector if label.startswith(DEPLOY)), "")
