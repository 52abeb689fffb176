"""Nodes from a cluster: which are chosen, their addresses, groups and variables, and several clusters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apigate import Gate
from stubcluster import TOKEN, StubCluster

from gpustate import inventory
from gpustate.core.inventory import Inventory
from gpustate.errors import ClusterError, InventoryError

VENDOR = {"feature.node.kubernetes.io/pci-10de.present": "true"}
CLASS = {"feature.node.kubernetes.io/pci-0302_10de.present": "true"}


class Clusters:
    """Clusters in memory, each behind a server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gates: list[Gate] = []

    def make(self, name: str, **nodes: dict[str, str]) -> StubCluster:
        """Start one; its kubeconfig is ``NAME.json``."""
        cluster = StubCluster({})
        for number, (node, labels) in enumerate(nodes.items()):
            cluster.add_node(node, (f"b{number}", f"m{number}", f"u{number}"), labels)
            addresses = [
                {"type": "Hostname", "address": f"{node}.example.net"},
                {"type": "InternalIP", "address": f"10.0.0.{number + 1}"},
            ]
            cluster.edit_node(node, {"status": {"addresses": addresses}})
        gate = Gate(lambda request: cluster.answer(request))
        gate.open()
        gate.kubeconfig(self.folder, TOKEN, f"{name}.json")
        self.gates.append(gate)
        return cluster


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Clusters]:
    found = Clusters(tmp_path)
    yield found
    for gate in found.gates:
        gate.close()


def load(path: Path, text: str, **options: Any) -> Inventory:
    file = path / "nodes.yml"
    file.write_text(f"plugin: kubernetes\n{text}")
    return inventory.load(str(file), **options)


def test_nodes_with_gpus_are_chosen_by_every_form_of_the_label(
    clusters: Clusters, tmp_path: Path
) -> None:
    clusters.make(
        "east",
        a=VENDOR,
        b=CLASS,
        c={"nvidia.com/gpu.present": "true"},
        d={"nvidia.com/gpu.present": "false"},
        e={"feature.node.kubernetes.io/pci-0200_15b3.present": "true"},
        f={},
    )
    found = inventory.load(f"kubernetes:{tmp_path}/east.json")
    assert [node.name for node in found] == ["a", "b", "c"]
    node = found.nodes[0]
    assert node.connection.host == "10.0.0.1"
    assert node.vars["gpustate_kubeconfig"] == f"{tmp_path}/east.json"
    assert node.labels == VENDOR
    assert node.groups == ("kubernetes",)
    assert found.clusters == ((f"{tmp_path}/east.json", ""),)


def test_a_file_sets_selector_address_groups_and_variables(
    clusters: Clusters, tmp_path: Path
) -> None:
    zone = "topology.kubernetes.io/zone"
    clusters.make("east", a={"pool": "h100", zone: "eu-1a"}, b={"pool": "h100"}, c=VENDOR)
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/zone_eu_1a.yml").write_text("ansible_port: 2222\n")
    found = load(
        tmp_path,
        "kubeconfig: east.json\nselector: pool=h100\naddress: Hostname\n"
        f"groups: [{zone}]\nname: east\nvars: {{ansible_user: ubuntu}}\n",
    )
    assert [node.name for node in found] == ["a", "b"]
    first = found.nodes[0]
    assert set(first.groups) == {"kubernetes", "east", "zone_eu_1a"}
    assert (first.connection.host, first.connection.port, first.connection.user) == (
        "a.example.net",
        2222,
        "ubuntu",
    )
    by_name = load(tmp_path, "kubeconfig: east.json\nselector: pool\naddress: Name\n")
    assert by_name.nodes[0].connection.host == "a"


def test_several_clusters_are_one_inventory(clusters: Clusters, tmp_path: Path) -> None:
    clusters.make("east", a=VENDOR)
    clusters.make("west", a=VENDOR)
    both = "vars: {ansible_user: ubuntu}\nclusters:\n- {kubeconfig: east.json}\n"
    with pytest.raises(InventoryError, match=r"'a' is a Node of .*east.json, too"):
        load(tmp_path, f"{both}- {{kubeconfig: west.json}}\n")
    found = load(
        tmp_path, f"{both}- {{kubeconfig: west.json, prefix: w-, vars: {{ansible_user: x}}}}\n"
    )
    assert [node.name for node in found] == ["a", "w-a"]
    assert [node.connection.user for node in found] == ["ubuntu", "x"]
    listed = inventory.load(f"kubernetes:{tmp_path}/east.json")
    assert len(listed) == 1


def test_a_cluster_without_gpus_beside_others_is_noted(clusters: Clusters, tmp_path: Path) -> None:
    clusters.make("east", a=VENDOR)
    clusters.make("west", b={})
    both = "clusters:\n- {kubeconfig: east.json}\n- {kubeconfig: west.json%s}\n"
    found = load(tmp_path, both % "")
    assert [node.name for node in found] == ["a"]
    (note,) = found.notes
    words = f"no Node of {tmp_path}/west.json has the label nvidia.com/gpu.present=true, nor one of"
    assert note.startswith(f"{tmp_path}/nodes.yml:2: {words}")
    (note,) = load(tmp_path, both % ", selector: pool=h100").notes
    words = (
        f"no Node of {tmp_path}/west.json has the labels of selector: pool=h100; correct selector"
    )
    assert note.startswith(f"{tmp_path}/nodes.yml:2: {words}")
    (note,) = inventory.load(f"kubernetes:{tmp_path}/east.json,{tmp_path}/west.json").notes
    assert f"no Node of {tmp_path}/west.json has" in note


def test_a_node_without_the_address_is_left_out_with_a_note(
    clusters: Clusters, tmp_path: Path
) -> None:
    cluster = clusters.make("east", a=VENDOR, b=VENDOR)
    cluster.edit_node("b", {"status": {"addresses": []}})
    found = inventory.load(f"kubernetes:{tmp_path}/east.json")
    assert [node.name for node in found] == ["a"]
    assert "Node b of " in found.notes[0]
    assert "it has no address of type InternalIP, but none" in found.notes[0]


def test_a_cluster_without_gpus_is_an_error_unless_it_is_watched(
    clusters: Clusters, tmp_path: Path
) -> None:
    clusters.make("east", a={})
    source = f"kubernetes:{tmp_path}/east.json"
    with pytest.raises(InventoryError) as caught:
        inventory.load(source)
    assert str(caught.value) == (
        f"{source}: no Node of {tmp_path}/east.json has the label nvidia.com/gpu.present=true, nor one of node feature "
        "discovery for NVIDIA's GPUs (feature.node.kubernetes.io/pci-10de.present=true); install node feature "
        "discovery, or choose Nodes with selector in an inventory file (docs/inventories.md)"
    )
    found = inventory.load(source, empty=True)
    assert found.nodes == ()
    assert found.clusters == ((f"{tmp_path}/east.json", ""),)


def test_a_selector_and_addresses_that_leave_no_node_are_named(
    clusters: Clusters, tmp_path: Path
) -> None:
    cluster = clusters.make("east", a=VENDOR)
    with pytest.raises(InventoryError, match="has the labels of selector: pool=h100; correct"):
        load(tmp_path, "kubeconfig: east.json\nselector: pool=h100\n")
    cluster.edit_node("a", {"status": {"addresses": []}})
    with pytest.raises(InventoryError, match=r"no Node can be used; Node a of .* left out"):
        inventory.load(f"kubernetes:{tmp_path}/east.json")


def test_a_missing_right_is_named_with_its_rule(clusters: Clusters, tmp_path: Path) -> None:
    cluster = clusters.make("east", a=VENDOR)
    cluster.denied.add(("list", "", "nodes"))
    with pytest.raises(ClusterError, match=r'resources: \["nodes"\], verbs: \["list"\]'):
        inventory.load(f"kubernetes:{tmp_path}/east.json")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("selectors: a\n", "unknown key 'selectors'"),
        ("selector: [a]\n", "selector is a list, wanted text"),
        ("address: IP\n", "address is 'IP', wanted InternalIP"),
        ("groups: zone\n", "groups is not a list of labels"),
        ("vars: 1\n", "vars is "),
        ("clusters: {}\n", "clusters is "),
        ("clusters: [a]\n", "a cluster is "),
    ],
)
def test_a_wrong_file_is_named_with_its_place(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(InventoryError, match=error) as caught:
        load(tmp_path, text)
    assert "nodes.yml:" in str(caught.value)


def test_other_plugins_are_still_refused(tmp_path: Path) -> None:
    file = tmp_path / "aws.yml"
    file.write_text("plugin: aws_ec2\n")
    with pytest.raises(InventoryError, match="Ansible's inventory plugin 'aws_ec2'"):
        inventory.load(str(file))


def test_the_kubeconfig_is_that_of_kubectl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gpustate.inventory.kubernetes import default_kubeconfig

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", "/a:/b")
    assert default_kubeconfig() == "/a"
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert default_kubeconfig() == "in-cluster"
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").write_text("{}")
    assert default_kubeconfig() == "~/.kube/config"
