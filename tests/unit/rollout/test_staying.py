"""Nodes go back and objects of their cluster stay: to which MIG layouts a node must not go back, and what is noted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpustate.core.inventory import Connection, InventoryNode
from gpustate.documents import Json
from gpustate.engine.before import WayBack
from gpustate.errors import ClusterError, RefusedError
from gpustate.manifests import build as manifests
from gpustate.manifests.kinds import key
from gpustate.manifests.ownership import DEVICE_PLUGIN, OWNER
from gpustate.manifests.settings import ClusterSettings, Component, PluginConfig
from gpustate.rollout.access import Accesses
from gpustate.rollout.staying import StayingObjects
from gpustate.states.mig import MigLayoutApplied

#: Mode and instances of each GPU.
Layout = dict[str, tuple[str, tuple[str, ...]]]

NODE = InventoryNode("a", connection=Connection(host="10.0.0.1"))
WHOLE: Layout = {"0": ("off", ()), "1": ("off", ())}
BALANCED: Layout = {"0": ("on", ("1g.10gb at 0", "1g.10gb at 1", "3g.40gb at 4"))}
UNIFORM: Layout = {"0": ("on", ("3g.40gb at 0", "3g.40gb at 4")), "1": ("on", ("3g.40gb at 0",))}
HALF: Layout = {"0": ("on", ("3g.40gb at 0",)), "1": ("off", ())}
EMPTY: Layout = {"0": ("off, on after a reset", ())}


def way(layout: Layout, *, changed: bool = True) -> WayBack:
    observed = {
        "modes": {number: mode for number, (mode, _) in layout.items()},
        "instances": {number: list(instances) for number, (_, instances) in layout.items()},
    }
    changes = frozenset({"mig", "driver"} if changed else {"driver"})
    return WayBack(
        "r1", (MigLayoutApplied("all-disabled"),), before={"mig": observed}, changed=changes
    )


def plugin(**settings: Any) -> Json:
    """The DaemonSet of gpustate's own device plugin."""
    component = settings.pop("component", Component(image="p:v1"))
    off = Component(enabled=False)
    made = manifests.build(
        ClusterSettings(device_plugin=component, feature_discovery=off, **settings), {}
    )
    return next(one for one in made if key(one) == ("DaemonSet", DEVICE_PLUGIN))


class Cluster:
    """Its DaemonSets, and one Node with labels."""

    def __init__(self, *daemon_sets: Json, **labels: str) -> None:
        self.found, self.lists = list(daemon_sets), 0
        self.error: ClusterError | None = None
        deploy = {"nvidia.com/gpu.deploy.device-plugin": "paused-by-gpustate"}
        self.node = {"metadata": {"name": "a", "labels": {**deploy, **labels}}}
        self.nodes = SimpleNamespace(api=self, by_name=lambda: {"a": self.node})

    def daemon_sets(self) -> list[Json]:
        self.lists += 1
        if self.error is not None:
            raise self.error
        return self.found


def staying(cluster: Cluster | None) -> StayingObjects:
    return StayingObjects(cast(Accesses, lambda node, kind: cluster))


def refusal(layout: Layout, cluster: Cluster | None) -> str:
    try:
        staying(cluster).check(NODE, way(layout))
    except RefusedError as error:
        return f"{error.message}; {error.fix}"
    return ""


@pytest.mark.parametrize(
    ("strategy", "layout", "why"),
    [
        ("", WHOLE, ""),
        ("", BALANCED, "as whole GPUs"),
        ("none", HALF, "as whole GPUs"),
        ("none", EMPTY, "as whole GPUs"),
        ("none", {}, ""),
        ("mixed", BALANCED, ""),
        ("mixed", HALF, ""),
        ("mixed", WHOLE, ""),
        ("mixed", EMPTY, "GPUs in MIG mode get no device"),
        ("single", UNIFORM, ""),
        ("single", WHOLE, ""),
        ("single", BALANCED, "one profile on all GPUs of a node, and the layout has 1g.10gb, 3g"),
        ("single", HALF, "one profile on all GPUs"),
    ],
)
def test_a_node_goes_back_to_a_layout_that_the_strategy_in_the_cluster_offers(
    strategy: str, layout: Layout, why: str
) -> None:
    found = refusal(layout, Cluster(plugin(mig_strategy=strategy)))
    assert (why in found) if why else not found
    if why:
        assert "the MIG layout of before run r1 does not fit the cluster" in found
        assert "gpustate apply POLICY -i INVENTORY --cluster-objects" in found


def test_a_layout_that_no_run_changed_stays_whatever_the_strategy_is() -> None:
    cluster = Cluster(plugin())
    staying(cluster).check(NODE, way(BALANCED, changed=False))
    staying(None).check(NODE, way(BALANCED))
    StayingObjects(None).check(NODE, way(BALANCED))
    assert not cluster.lists


def test_only_device_plugins_of_the_node_count() -> None:
    other = plugin()
    other["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "whole"}
    assert not refusal(BALANCED, Cluster(other, pool="divided"))
    assert refusal(BALANCED, Cluster(other, pool="whole"))
    off = {"nvidia.com/gpu.deploy.device-plugin": "false"}
    assert not refusal(BALANCED, Cluster(plugin(), **off))
    unknown = Cluster(other)
    unknown.nodes.by_name = dict  # its Node has another name and address
    assert refusal(BALANCED, unknown)
    discovery = {
        "spec": {"template": {"spec": {"containers": [{"name": "gpu-feature-discovery"}]}}}
    }
    assert not refusal(BALANCED, Cluster(discovery))


def test_the_strategy_is_that_of_a_flag_a_variable_or_a_file() -> None:
    of_chart = plugin()
    (container,) = of_chart["spec"]["template"]["spec"]["containers"]
    container |= {"command": ["nvidia-device-plugin"], "args": ["--mig-strategy=mixed"]}
    assert not refusal(BALANCED, Cluster(of_chart))
    by_file = Cluster(plugin(config=PluginConfig("c", "d", {"d": "version: v1\n"})))
    assert not refusal(BALANCED, by_file)
    (_, note) = staying(by_file).notes(NODE, way(BALANCED))
    assert note.startswith("the device plugin reads its MIG strategy from a file: unless")
    assert len(list(staying(by_file).notes(NODE, way(WHOLE)))) == 1


def test_what_stays_is_noted_and_what_a_killed_run_left_is_named() -> None:
    cluster = Cluster(plugin(mig_strategy="mixed"))
    (note,) = staying(cluster).notes(NODE, way(WHOLE))
    assert note.startswith("objects of the cluster stay as they are; to take them back, too: gpu")
    cluster.found[0]["spec"]["updateStrategy"] = {"type": "OnDelete"}
    (_, note) = staying(cluster).notes(NODE, way(WHOLE))
    assert note.startswith(f"daemonset/{DEVICE_PLUGIN}: pods get the template only when")
    for name in OWNER:
        cluster.found[0]["metadata"]["labels"].pop(name)
    assert not list(staying(cluster).notes(NODE, way(WHOLE)))


def test_a_cluster_that_does_not_answer_is_asked_once() -> None:
    cluster = Cluster()
    cluster.error = ClusterError("it does not answer")
    objects = staying(cluster)
    assert not list(objects.notes(NODE, way(WHOLE)))
    with pytest.raises(RefusedError, match="it does not answer"):
        objects.check(NODE, way(BALANCED))
    assert cluster.lists == 1
