"""NVIDIADrivers for some nodes: by labels of the inventory, of Nodes beside the file, or of the node itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpustate.cli.main import cli
from gpustate.core.facts import NodeFacts, NodeView
from gpustate.core.inventory import InventoryNode
from gpustate.core.policy import Policy, parameters, resolve
from gpustate.core.where import label, parse
from gpustate.errors import PolicyError
from gpustate.gpu_operator.lint import lint
from gpustate.policies import operator
from gpustate.policies.changes import Changes

DRIVER = "apiVersion: nvidia.com/v1alpha1\nkind: NVIDIADriver\nmetadata: {name: %s}\nspec: {%s}\n"
GOLD = DRIVER % ("gold", "version: '550.90.07', nodeSelector: {pool: gold}, rdma: {enabled: true}")
SILVER = DRIVER % ("silver", "version: '580', usePrecompiled: true, nodeSelector: {pool: silver}")
REST = DRIVER % ("rest", "version: 570.86.15, kernelModuleType: open")


def on(policy: Policy, **labels: str) -> dict[str, dict[str, Any]]:
    node = InventoryNode("gpu1", vars={"gpustate_labels": labels})
    found = {one.name: parameters(one) for one in resolve(policy, node).states}
    return {
        name: given
        for name, given in found.items()
        if not given.get("only")
        or parse(given["only"]).holds(NodeView("gpu1", (), node.vars, NodeFacts()))
    }


def test_each_pool_gets_its_driver_and_other_nodes_none() -> None:
    policy = operator.read(f"{GOLD}---\n{SILVER}", "nd.yaml")
    gold, silver, other = on(policy, pool="gold"), on(policy, pool="silver"), on(policy)
    assert gold["driver"]["version"] == "550.90.07"
    assert "peermem" in gold
    assert "peermem" not in silver
    assert (silver["driver"]["branch"], silver["driver"]["precompiled"]) == (580, True)
    assert "version" not in silver["driver"]
    assert set(other) == {"preflight", "validator"}
    assert any(
        "label('pool', 'gold')" in note and "gpustate_labels" in note for note in policy.notes
    )


def test_a_driver_without_a_selector_is_for_the_nodes_of_no_other() -> None:
    policy = operator.read(f"{REST}---\n{SILVER}", "nd.yaml")
    assert on(policy)["driver"]["version"] == "570.86.15"
    silver = on(policy, pool="silver")["driver"]
    assert (silver["branch"], silver.get("version"), silver["module_type"]) == (580, None, "auto")


def test_one_driver_for_some_nodes_asks_for_their_labels() -> None:
    policy = operator.read(GOLD, "nd.yaml")
    assert "driver" in on(policy, pool="gold")
    assert "driver" not in on(policy, pool="silver")
    every = DRIVER % (
        "all",
        "nodeSelector: {nvidia.com/gpu.present: 'true', kubernetes.io/os: linux}",
    )
    assert "driver" in on(operator.read(every, "nd.yaml"))


def test_an_affinity_is_a_condition_too() -> None:
    terms = "[{matchExpressions: [{key: pool, operator: In, values: [gold, bronze]}]}]"
    affinity = (
        "nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: %s}}"
    )
    policy = operator.read(DRIVER % ("x", affinity % terms), "nd.yaml")
    assert "driver" in on(policy, pool="bronze")
    assert "driver" not in on(policy, pool="silver")


def test_nodes_beside_the_file_have_labels_as_well(tmp_path: Path) -> None:
    folder = tmp_path / "nd.d"
    folder.mkdir()
    (folder / "nodes.yaml").write_text(
        "apiVersion: v1\nkind: Node\nmetadata: {name: gpu1, labels: {pool: silver}}\n"
    )
    policy = operator.read(f"{GOLD}---\n{SILVER}", str(tmp_path / "nd.yaml"))
    assert on(policy)["driver"]["branch"] == 580


def test_drivers_come_from_the_folder_beside_a_policy_too(tmp_path: Path) -> None:
    text = (
        "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: p}\n"
        "spec: {driver: {useNvidiaDriverCRD: true}}\n"
    )
    file = tmp_path / "cp.yaml"
    alone = operator.read(text, str(file))
    assert "driver" not in on(alone)
    assert "container-toolkit" in on(alone)
    assert any("none was found: it is not changed" in note for note in alone.notes)
    (tmp_path / "cp.d").mkdir()
    (tmp_path / "cp.d" / "drivers.yaml").write_text(f"{GOLD}---\n{SILVER}")
    assert on(operator.read(text, str(file)), pool="gold")["driver"]["version"] == "550.90.07"


def test_two_drivers_for_the_same_nodes_are_refused() -> None:
    with pytest.raises(PolicyError, match="a second NVIDIADriver for the same nodes"):
        operator.read(f"{GOLD}---\n{GOLD}", "nd.yaml")


def test_a_label_is_what_the_inventory_says_else_what_the_node_shows() -> None:
    facts = NodeFacts(os_id="ubuntu", os_version="22.04", machine="aarch64")
    view = NodeView("n1", (), {"node_labels": {"pool": "a", "ready": True}}, facts)
    assert label("pool", "a").holds(view)
    assert label("ready", "true").holds(view)
    assert label("kubernetes.io/hostname", "n1").holds(view)
    assert label("kubernetes.io/arch", "arm64").holds(view)
    assert label("feature.node.kubernetes.io/system-os_release.VERSION_ID", "22.04").holds(view)
    assert not label("nvidia.com/gpu.present", "true").holds(view)
    assert parse("label('a\\'b', 'c')").text == "label('a\\'b', 'c')"


def test_an_absent_config_map_leaves_out_what_it_would_say_and_no_more() -> None:
    head = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: p}\nspec:\n"
    policy = operator.read(
        head + "  devicePlugin: {config: {name: c, default: any}}\n"
        "  dcgmExporter: {enabled: true, config: {name: m}}\n",
        "cp.yaml",
    )
    found = on(policy)
    assert "driver" in found
    assert not {"device-plugin-config", "gpu-labels", "dcgm-exporter"} & set(found)
    said = " ".join(policy.notes)
    assert "warning: device-plugin-config and gpu-labels left out" in said
    assert "kubectl get configmap m -o yaml > cp.d/m.yaml" in said
    with pytest.raises(PolicyError, match="which is not in this file"):
        operator.read(head + "  driver: {kernelModuleConfig: {name: c}}\n", "cp.yaml")


EU = DRIVER % ("eu", "version: '570', nodeSelector: {region: eu}")


def test_a_node_that_two_drivers_select_is_refused() -> None:
    policy = operator.read(f"{GOLD}---\n{EU}", "nd.yaml")
    assert on(policy, pool="gold")["driver"]["version"] == "550.90.07"
    assert on(policy, region="eu")["driver"]["branch"] == 570
    with pytest.raises(PolicyError, match="select the same node gpu1") as failed:
        on(policy, pool="gold", region="eu")
    assert "NVIDIADriver gold (nd.yaml:1) and NVIDIADriver eu (nd.yaml:6)" in failed.value.message
    assert "label('region', 'eu')" in str(failed.value.fix)
    kept = policy.with_ensure("present")
    with pytest.raises(PolicyError, match="select the same node gpu1"):
        on(kept, pool="gold", region="eu")


def test_a_node_beside_the_file_that_two_drivers_select_is_refused() -> None:
    node = "apiVersion: v1\nkind: Node\nmetadata: {name: gpu9, labels: {pool: gold, region: eu}}\n"
    with pytest.raises(PolicyError, match="select the same node gpu9"):
        operator.read(f"{GOLD}---\n{EU}---\n{node}", "nd.yaml")


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("nodeSelector: {pool: gold}", "nodeSelector: {region: eu}", True),
        ("nodeSelector: {pool: gold}", "nodeSelector: {pool: silver}", False),
        ("nodeSelector: {pool: gold, a: b}", "nodeSelector: {a: b, pool: gold}", True),
        ("nodeSelector: {pool: gold, a: b}", "nodeSelector: {a: c}", False),
        ("nodeSelector: {pool: gold}", "AFFINITY pool NotIn [gold]", False),
        ("nodeSelector: {pool: gold}", "AFFINITY pool In [silver, gold]", True),
        ("AFFINITY pool In [silver]", "AFFINITY pool In [bronze, gold]", False),
        ("nodeSelector: {pool: gold}", "", False),
        ("nodeSelector: {nvidia.com/gpu.present: 'true'}", "nodeSelector: {a: b}", False),
    ],
)
def test_lint_warns_of_selectors_that_a_node_can_match_together(
    one: str, other: str, both: bool
) -> None:
    def spec(text: str) -> str:
        if not text.startswith("AFFINITY"):
            return text
        _, key, how, values = text.split(" ", 3)
        term = f"matchExpressions: [{{key: {key}, operator: {how}, values: {values}}}]"
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        return f"nodeAffinity: {{{required}: {{nodeSelectorTerms: [{{{term}}}]}}}}"

    text = f"{DRIVER % ('a', spec(one))}---\n{DRIVER % ('b', spec(other))}"
    rules = [(found.rule, found.line) for found in lint(text, "nd.yaml").findings]
    assert ("overlap" in [rule for rule, _ in rules]) is both
    if both:
        assert ("overlap", 9) in rules


def test_resolve_notes_that_no_driver_is_for_a_node(tmp_path: Path) -> None:
    file = tmp_path / "nd.yaml"

    def said(text: str, labels: str = "{}") -> str:
        file.write_text(text)
        hosts = tmp_path / "hosts.yml"
        hosts.write_text(f"all: {{hosts: {{gpu1: {{gpustate_labels: {labels}}}}}}}\n")
        done = CliRunner().invoke(cli, ["policy", "resolve", "gpu1", str(file), "-i", str(hosts)])
        assert done.exit_code == 0, done.exception
        return done.output

    two = said(f"{GOLD}---\n{SILVER}")
    assert "gpustate: note: gpu1: no driver is for this node, and its own is kept" in two
    assert f"NVIDIADriver gold ({file}:1): label('pool', 'gold')" in two
    assert "no driver is for" not in said(f"{GOLD}---\n{SILVER}", "{pool: gold}")
    assert "no driver is for" not in said(f"{REST}---\n{GOLD}")


def test_a_change_of_the_command_line_names_the_drivers_that_it_leaves() -> None:
    changes = Changes(set_typed=("driverType=gpu",))
    words = "the command line changes NVIDIADriver gold alone; edit the file for silver"
    assert words in operator.read(f"{GOLD}---\n{SILVER}", "nd.yaml", changes=changes).notes
    alone = operator.read(GOLD, "nd.yaml", changes=changes).notes
    assert not [note for note in alone if "the command line changes" in note]
