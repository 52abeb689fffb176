"""Labels of Nodes are parameters of states: which count, which are refused, and which are left to others."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gpustate import Policy, registry
from gpustate.core.encode import plain
from gpustate.core.facts import NodeFacts, NodeView
from gpustate.core.inventory import Connection, Inventory, InventoryNode
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome, StateResult
from gpustate.core.policy import resolve
from gpustate.core.state import AnyState
from gpustate.errors import ClusterError
from gpustate.formats.pci_gpus import PciGpu
from gpustate.manifests.settings import ClusterSettings, Component, PluginConfig
from gpustate.plan.make import Observations
from gpustate.rollout.access import Accesses
from gpustate.rollout.by_label import PLUGIN, ByLabel, by_label, of_every_label
from gpustate.schedulers.mig_state import CONFIG
from gpustate.states.device_plugin import DevicePluginConfigured
from gpustate.states.labels import GpuLabelsWritten
from gpustate.states.mig import MigLayoutApplied
from gpustate.states.nouveau import NouveauBlacklisted

STATE = "nvidia.com/mig.config.state"
LAYOUTS = """\
version: v1
mig-configs:
  halves:
    - devices: all
      mig-enabled: true
      mig-devices: {3g.40gb: 2}
  balanced:
    - devices: all
      mig-enabled: true
      mig-devices: {1g.10gb: 2, 3g.40gb: 1}
  first:
    - devices: [0]
      mig-enabled: true
      mig-devices: {3g.40gb: 2}
    - devices: [1]
      mig-enabled: false
  empty:
    - devices: all
      mig-enabled: true
      mig-devices: {}
  whole:
    - devices: all
      mig-enabled: false
"""


class FakeCluster:
    """Nodes with labels; notes what ended."""

    def __init__(self, manager: str = "") -> None:
        self.manager = manager
        self.written: list[tuple[str, str, str]] = []

    def daemon_sets(self) -> list[dict[str, Any]]:
        namespace, _, name = self.manager.partition("/")
        return [{"metadata": {"namespace": namespace, "name": name}}] if name else []

    @property
    def mig(self) -> FakeCluster:
        return self

    @property
    def nodes(self) -> FakeCluster:
        return self

    def end(self, name: str, config: str, state: str) -> None:
        self.written.append((name, config, state))


class FakeAccess:
    """The Nodes of machines, by the inventory's names."""

    def __init__(self, cluster: FakeCluster, **labels: dict[str, str]) -> None:
        self.cluster = cluster
        self.labels = labels
        self.meta: dict[str, Any] = {}
        self.error: ClusterError | None = None
        self.has_clusters = True

    def nodes(self) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return {
            name: (
                self.cluster,
                {"metadata": {"name": f"node-{name}", "labels": labels, **self.meta}},
            )
            for name, labels in self.labels.items()
        }


def made(policy: Policy, access: FakeAccess) -> ByLabel:
    nodes = tuple(InventoryNode(name, connection=Connection(host=name)) for name in ("a", "b"))
    return by_label(policy, Inventory("i", nodes), cast(Accesses, access))


def mig_of(found: ByLabel, name: str) -> MigLayoutApplied:
    node = next(one for one in found.inventory.nodes if one.name == name)
    states = resolve(found.policy, node, registry.names()).states
    return next(one for one in states if isinstance(one, MigLayoutApplied))


def layouts(**more: Any) -> MigLayoutApplied:
    return MigLayoutApplied("whole", file="layouts", contents={"layouts": LAYOUTS}, **more)


def test_a_label_selects_a_layout_and_lets_pods_be_drained() -> None:
    found = made(Policy(layouts()), FakeAccess(FakeCluster(), a={CONFIG: "halves"}, b={}))
    assert (mig_of(found, "a").config, mig_of(found, "a").in_use) == ("halves", "drain")
    assert (mig_of(found, "b").config, mig_of(found, "b").in_use) == ("whole", "refuse")
    assert set(found.mig) == {"a"}
    assert found.mig["a"].name == "node-a"


def test_a_policy_that_reboots_for_a_layout_goes_on_doing_so() -> None:
    policy = Policy(layouts(in_use="reboot"))
    found = made(policy, FakeAccess(FakeCluster(), a={CONFIG: "halves"}))
    assert mig_of(found, "a").in_use == "reboot"


def test_without_a_state_the_cluster_settings_have_the_layouts() -> None:
    template = {"config": "whole", "file": "layouts", "contents": {"layouts": LAYOUTS}}
    policy = Policy(NouveauBlacklisted(), cluster=ClusterSettings(mig=template))
    found = made(policy, FakeAccess(FakeCluster(), a={CONFIG: "halves"}, b={}))
    assert mig_of(found, "a").config == "halves"
    assert mig_of(found, "a").only is None
    assert mig_of(found, "b").only is not None
    without = made(policy, FakeAccess(FakeCluster(), a={}, b={}))
    assert [state.name for state in without.policy.states] == ["nouveau"]
    off = Policy(NouveauBlacklisted(), cluster=ClusterSettings())
    assert made(off, FakeAccess(FakeCluster(), a={CONFIG: "halves"})).mig == {}


def test_a_layout_that_the_file_lacks_is_refused_and_recorded_as_failed() -> None:
    cluster = FakeCluster()
    found = made(Policy(layouts()), FakeAccess(cluster, a={CONFIG: "havles"}))
    assert found.checks
    assert "no configuration 'havles'" in found.mig["a"].refused
    assert "did you mean halves" in found.mig["a"].refused
    assert mig_of(found, "a").only is not None
    result = NodeResult("a", states=[StateResult("mig", Outcome.NOT_APPLICABLE)])
    found.ended(result)
    assert cluster.written == [("node-a", "havles", "failed")]
    assert result.notes == [found.mig["a"].refused]
    assert (result.status, result.reason) == (NodeStatus.REFUSED, found.mig["a"].refused)


def test_an_installed_mig_manager_is_left_alone() -> None:
    cluster = FakeCluster("gpu-operator/nvidia-mig-manager")
    found = made(Policy(layouts()), FakeAccess(cluster, a={CONFIG: "halves"}))
    assert found.mig == {}
    assert mig_of(found, "a").only is not None
    result = NodeResult("a")
    found.ended(result)
    assert cluster.written == []
    assert "NVIDIA's MIG manager (DaemonSet gpu-operator/nvidia-mig-manager)" in result.notes[0]


@pytest.mark.parametrize(
    ("status", "outcome", "state"),
    [
        (NodeStatus.OK, Outcome.CHANGED, "success"),
        (NodeStatus.OK, Outcome.UNCHANGED, "success"),
        (NodeStatus.FAILED, Outcome.CHANGED, "success"),
        (NodeStatus.FAILED, Outcome.FAILED, "failed"),
        (NodeStatus.REFUSED, Outcome.REFUSED, "failed"),
        (NodeStatus.REFUSED, Outcome.PENDING, "failed"),
        (NodeStatus.OK, Outcome.NOT_APPLICABLE, None),
        (NodeStatus.LOCKED, Outcome.PENDING, None),
        (NodeStatus.INTERRUPTED, Outcome.INTERRUPTED, None),
        (NodeStatus.UNREACHABLE, None, None),
    ],
)
def test_the_state_is_that_of_the_layout(
    status: NodeStatus, outcome: Outcome | None, state: str | None
) -> None:
    cluster = FakeCluster()
    found = made(Policy(layouts()), FakeAccess(cluster, a={CONFIG: "halves"}))
    rows = [StateResult("mig", outcome)] if outcome else []
    found.ended(NodeResult("a", status=status, states=rows))
    assert [one[2] for one in cluster.written] == ([state] if state else [])


def test_what_is_recorded_already_is_not_written_again() -> None:
    cluster = FakeCluster()
    labels = {CONFIG: "halves", STATE: "success"}
    found = made(Policy(layouts()), FakeAccess(cluster, a=labels))
    found.ended(NodeResult("a", states=[StateResult("mig", Outcome.UNCHANGED)]))
    assert cluster.written == []
    found.mig["a"].open = True
    found.ended(NodeResult("a", states=[StateResult("mig", Outcome.CHANGED)]))
    assert cluster.written == [("node-a", "halves", "success")]


@pytest.mark.parametrize(
    ("manager", "ended"), [("gpustate", [("node-a", "", "")]), ("nvidia-mig-manager", [])]
)
def test_the_state_of_a_removed_label_is_removed_if_gpustate_wrote_it(
    manager: str, ended: list[tuple[str, str, str]]
) -> None:
    cluster = FakeCluster()
    access = FakeAccess(cluster, a={STATE: "failed"})
    fields = {"f:metadata": {"f:labels": {f"f:{STATE}": {}}}}
    access.meta = {"managedFields": [{"manager": manager, "fieldsV1": fields}]}
    found = made(Policy(layouts()), access)
    assert mig_of(found, "a").config == "whole"
    result = NodeResult("a", states=[StateResult("mig", Outcome.UNCHANGED)])
    found.ended(result)
    assert cluster.written == ended
    note = f"label {CONFIG} of Node node-a is absent: apply removes its {STATE}=failed"
    assert result.notes == [note] * len(ended)


def config(**data: str) -> PluginConfig:
    return PluginConfig("plugin", "one", data)


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        (ClusterSettings(), True),
        (ClusterSettings(mig_strategy="none"), True),
        (ClusterSettings(mig_strategy="single"), False),
        (ClusterSettings(device_plugin=Component(env={"MIG_STRATEGY": "mixed"})), False),
        (ClusterSettings(device_plugin=Component(args=("--mig-strategy=mixed",))), False),
        (ClusterSettings(device_plugin=Component(enabled=False)), False),
        (ClusterSettings(config=config(one="version: v1")), True),
        (ClusterSettings(config=config(one="version: v1\nflags: {migStrategy: mixed}")), False),
        (ClusterSettings(config=PluginConfig("plugin")), False),
        (None, False),
    ],
)
def test_a_layout_that_the_device_plugin_does_not_offer_is_warned_of(
    settings: ClusterSettings | None, warned: bool
) -> None:
    found = made(Policy(layouts(), cluster=settings), FakeAccess(FakeCluster(), a={CONFIG: "halves"}))  # fmt: skip
    facts = plain(NodeFacts(pci=(PciGpu("0000:1b:00.0", "2330", "030200", "nvidia"),)))
    for outcome in (Outcome.PENDING, Outcome.CHANGED, Outcome.UNCHANGED):
        result = NodeResult("a", states=[StateResult("mig", outcome)], facts=facts)
        found.describe(result)
        assert len(result.notes) == warned
        assert all(
            note.startswith("MIG layout halves: the device plugin's MIG strategy is none")
            and "set mig.strategy to single or mixed" in note
            for note in result.notes
        )
    for name, outcome in (("a", Outcome.REFUSED), ("a", Outcome.NOT_APPLICABLE), ("b", Outcome.CHANGED)):  # fmt: skip
        result = NodeResult(name, states=[StateResult("mig", outcome)], facts=facts)
        found.describe(result)
        assert result.notes == []


@pytest.mark.parametrize(
    ("own", "warned"),
    [
        ((), True),
        ((GpuLabelsWritten(),), True),
        ((GpuLabelsWritten(mig_strategy="mixed"),), False),
        ((DevicePluginConfigured(config={"version": "v1"}),), True),
        ((DevicePluginConfigured(config={"version": "v1", "flags": {"migStrategy": "single"}}),), False),
        (
            (
                DevicePluginConfigured(
                    configs={"a": {"version": "v1"}, "b": {"version": "v1", "flags": {"migStrategy": "mixed"}}},
                    default="b",
                ),
            ),
            False,
        ),
    ],
)  # fmt: skip
def test_a_policy_without_cluster_objects_names_the_strategy_that_a_layout_needs(
    own: tuple[AnyState, ...], warned: bool
) -> None:
    found = made(Policy(layouts(), *own), FakeAccess(FakeCluster(), a={CONFIG: "halves"}, b={}))
    gpu = PciGpu("0000:1b:00.0", "2330", "030200", "nvidia")

    def notes(name: str, outcome: Outcome, *agents: str) -> list[str]:
        facts = plain(NodeFacts(pci=(gpu,), agents=agents))
        result = NodeResult(name, states=[StateResult("mig", outcome)], facts=facts)
        found.describe(result)
        return result.notes

    for outcome in (Outcome.PENDING, Outcome.CHANGED):
        assert len(notes("a", outcome, "kubelet")) == warned
    for words in notes("a", Outcome.PENDING, "kubelet"):
        assert words.startswith("MIG layout halves: pods get its devices only if")
    assert notes("a", Outcome.UNCHANGED, "kubelet") == []
    assert notes("a", Outcome.PENDING) == notes("a", Outcome.PENDING, "slurmd") == []
    assert notes("b", Outcome.PENDING, "kubelet") == []


@pytest.mark.parametrize(
    ("layout", "settings", "words"),
    [
        (
            "balanced",
            ClusterSettings(mig_strategy="single"),
            "the layout has 1g.10gb, 3g.40gb; set mig.strategy to mixed",
        ),
        ("first", ClusterSettings(mig_strategy="single"), "the layout has 3g.40gb, no MIG;"),
        ("empty", ClusterSettings(mig_strategy="single"), "GPUs in MIG mode get no device"),
        ("empty", ClusterSettings(mig_strategy="mixed"), "GPUs in MIG mode get no device"),
        ("empty", ClusterSettings(mig_strategy="none"), ""),
        (
            "balanced",
            ClusterSettings(config=config(one="version: v1\nflags: {migStrategy: single}")),
            "the layout has 1g.10gb, 3g.40gb;",
        ),
        ("balanced", ClusterSettings(mig_strategy="mixed"), ""),
        ("first", ClusterSettings(), ""),
        ("halves", ClusterSettings(mig_strategy="single"), ""),
        ("whole", ClusterSettings(mig_strategy="single"), ""),
        ("balanced", None, ""),
    ],
)
def test_a_layout_that_keeps_the_device_plugin_from_starting_is_refused(
    layout: str, settings: ClusterSettings | None, words: str
) -> None:
    found = made(Policy(layouts(), cluster=settings), FakeAccess(FakeCluster(), a={CONFIG: layout}))
    node = next(one for one in found.inventory if one.name == "a")
    states = resolve(found.policy, node, registry.names()).states
    gpus = tuple(PciGpu(f"0000:{bus}:00.0", "2330", "030200", "nvidia") for bus in ("1b", "1c"))
    observed = Observations(NodeView("a", (), {}, NodeFacts(pci=gpus)))
    reasons = [str(one) for check in found.checks if (one := check(states, observed))]
    assert len(reasons) == bool(words)
    assert all(f"MIG layout {layout}: " in one and words in one for one in reasons)


def test_a_removal_is_of_layouts_that_only_labels_have_selected() -> None:
    policy = Policy(NouveauBlacklisted(), cluster=ClusterSettings(mig={"config": "all-disabled"}))
    removed = of_every_label(policy).with_ensure("absent")
    (state,) = (one for one in removed.states if one.name == "mig")
    assert state.absent
    assert state.only is None
    for other in (Policy(NouveauBlacklisted()), Policy(layouts(), cluster=policy.cluster)):
        assert of_every_label(other) is other


def test_a_label_that_cannot_be_read_stops_the_run_where_it_decides() -> None:
    access = FakeAccess(FakeCluster(), a={CONFIG: "halves"})
    access.error = ClusterError("does not answer")
    with pytest.raises(ClusterError, match=r"labels nvidia.com/mig.config of the Nodes cannot be"):
        made(Policy(layouts()), access)
    policy = Policy(NouveauBlacklisted(), cluster=ClusterSettings(mig={"config": "all-disabled"}))
    assert made(policy, access).mig == {}
    access.has_clusters = False
    assert made(Policy(layouts()), access).mig == {}


def test_a_label_selects_the_configuration_of_the_device_plugin() -> None:
    configs: dict[str, dict[str, Any]] = {
        "one": {"version": "v1"},
        "two": {"version": "v1", "flags": {}},
    }
    policy = Policy(DevicePluginConfigured(configs=configs, default="one"))
    access = FakeAccess(FakeCluster(), a={PLUGIN: "two"}, b={PLUGIN: "three"})
    found = made(policy, access)
    nodes = {node.name: resolve(found.policy, node, registry.names()) for node in found.inventory}
    assert nodes["a"].states[0].selected == "two"  # type: ignore[attr-defined]
    assert nodes["b"].states[0].selected == ""  # type: ignore[attr-defined]
    assert "nvidia.com/device-plugin.config=three of Node node-b is not used" in found.notes["b"]
    assert not found.wrong


def test_a_node_whose_device_plugin_cannot_start_for_its_label_is_refused() -> None:
    configs: dict[str, dict[str, Any]] = {"one": {"version": "v1"}}
    config = PluginConfig("plugin", "one", {"one": "version: v1"})
    policy = Policy(
        DevicePluginConfigured(configs=configs, default="one"),
        cluster=ClusterSettings(config=config),
    )
    found = made(policy, FakeAccess(FakeCluster(), a={PLUGIN: "one"}, b={PLUGIN: "three"}))
    for name, status in (("a", NodeStatus.OK), ("b", NodeStatus.REFUSED)):
        result = NodeResult(name)
        found.ended(result)
        assert result.status is status
    assert "set one that the policy has: one" in result.reason


def test_nodes_with_equal_labels_share_their_states() -> None:
    access = FakeAccess(FakeCluster(), a={CONFIG: "halves"}, b={CONFIG: "halves"})
    found = made(Policy(layouts()), access)
    assert mig_of(found, "a") is mig_of(found, "b")
