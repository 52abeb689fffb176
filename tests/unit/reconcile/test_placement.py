"""Nodes on which a DaemonSet starts no pod are named, with what keeps it off and the next move."""

from __future__ import annotations

import pytest

from gpustate.documents import Json
from gpustate.manifests.build import build
from gpustate.manifests.settings import STARTUP_TAINT, ClusterSettings
from gpustate.reconcile.placement import absences, device_plugin_obstacle, lines
from gpustate.reconcile.planning import Action, Change

PLUGIN = "nvidia.com/gpu.deploy.device-plugin"
GFD = "nvidia.com/gpu.deploy.gpu-feature-discovery"
LABELS = {PLUGIN: "true", GFD: "true"}
IMAGES = {"devicePlugin": "example.com/plugin:1", "gfd": "example.com/plugin:1"}
ITEMS = build(ClusterSettings(images=IMAGES), {})


def node(name: str, labels: Json | None = None, *taints: Json) -> Json:
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": {"taints": list(taints)}}


def taint(key: str, value: str = "true", effect: str = "NoSchedule") -> Json:
    return {"key": key, "value": value, "effect": effect}


def told(*nodes: Json, labels: Json | None = None, items: list[Json] | None = None) -> list[str]:
    changes = [Change(item, Action.UNCHANGED) for item in items or ITEMS]
    names = [one["metadata"]["name"] for one in nodes]
    wanted = dict.fromkeys(names, LABELS if labels is None else labels)
    for one in nodes:
        kept = {**LABELS, **one["metadata"]["labels"]}
        meta = {"name": one["metadata"]["name"], "labels": kept}
        changes.append(Change({"kind": "Node", "metadata": meta}, Action.UPDATE))
    return lines(absences(changes, nodes, wanted))


@pytest.mark.parametrize(
    ("labels", "taints", "words"),
    [
        ({}, [], []),
        ({}, [taint("nvidia.com/gpu"), taint(STARTUP_TAINT)], []),
        ({}, [taint("node.kubernetes.io/unschedulable")], []),
        ({}, [taint("dedicated", effect="PreferNoSchedule")], []),
        (
            {},
            [taint("gpu")],
            [
                "node/gpu1: no pod of daemonset/gpu-feature-discovery, daemonset/nvidia-device-plugin-daemonset: "
                "taint gpu=true:NoSchedule is not tolerated; remove it, or add to daemonsets.tolerations: "
                "{key: gpu, operator: Exists}"
            ],
        ),
        (
            {PLUGIN: "paused-for-driver-upgrade"},
            [],
            [
                f"node/gpu1: no pod of daemonset/nvidia-device-plugin-daemonset: label {PLUGIN}=paused-for-driver-upgrade; "
                f"if nobody wants that any more: kubectl label node gpu1 --overwrite {PLUGIN}=true"
            ],
        ),
        ({PLUGIN: "false"}, [], []),
    ],
)
def test_what_keeps_pods_off_is_named(labels: Json, taints: list[Json], words: list[str]) -> None:
    assert told(node("gpu1", labels, *taints)) == words


def test_a_selector_that_no_label_meets_is_named() -> None:
    items = [dict(item) for item in ITEMS]
    for item in items:
        if item["kind"] == "DaemonSet":
            pod = item["spec"]["template"]["spec"]
            selector = {**pod["nodeSelector"], "pool": "a"}
            item["spec"] = {**item["spec"], "template": {"spec": {**pod, "nodeSelector": selector}}}
    assert told(node("gpu1", {"pool": "a"}), items=items) == []
    (line,) = told(node("gpu1"), items=items)
    assert "nodeSelector pool=a, the Node has no pool; label it, or change the selector" in line


def test_nodes_that_are_alike_share_a_line_and_others_have_none() -> None:
    tainted = [node(f"gpu{number}", {}, taint("gpu")) for number in (1, 2, 3, 4)]
    (line,) = told(*tainted)
    assert line.startswith("node/gpu[1-4]: no pod of ")
    assert told(node("cpu1", {}, taint("gpu")), labels={}) == []


def test_the_worker_of_node_feature_discovery_has_a_key_of_its_own() -> None:
    items = build(ClusterSettings(images=IMAGES, node_feature_discovery={}), {})
    found = told(node("gpu1", {}, taint("gpu")), items=items)
    assert [line for line in found if "add to node-feature-discovery.worker.tolerations" in line]


def test_a_device_plugin_that_is_not_gpustates_is_judged_by_its_own_pod() -> None:
    one = node("gpu1", {PLUGIN: "true"}, taint("gpu"))
    assert device_plugin_obstacle(one)[0] == "taint gpu=true:NoSchedule is not tolerated"
    everywhere = {"spec": {"tolerations": [{"operator": "Exists"}]}}
    assert device_plugin_obstacle(one, [everywhere]) == ("", "")
