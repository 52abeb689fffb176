"""What the lab's cluster is made of, without a cluster."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from gpustate.errors import LabError
from gpustate_lab import network
from gpustate_lab.kubernetes import controlplane, machine, virtual
from gpustate_lab.kubernetes.certificates import Authority
from gpustate_lab.kubernetes.client import Client
from gpustate_lab.kubernetes.layout import Layout
from gpustate_lab.network import Network
from gpustate_lab.spec import CGROUP_DRIVERS


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path, "try", Network("00000000", IPv4Network("10.217.5.0/24")))


def test_an_identity_is_signed_once(tmp_path: Path) -> None:
    first = Authority(tmp_path).issue("one", "ann").certificate.read_bytes()
    assert Authority(tmp_path).issue("one", "ann").certificate.read_bytes() == first


def test_pods_services_and_nodes_of_all_labs_have_addresses_of_their_own() -> None:
    labs = [Network("", IPv4Network(f"10.217.{third}.0/24")) for third in range(256)]
    clusters = [lab.cluster for lab in labs]
    assert len(set(clusters)) == 256
    assert all(cluster.subnet_of(network.CLUSTERS) for cluster in clusters)
    lab = labs[7]
    pods = [lab.pods(number) for number in range(1, 201)]
    assert all(one.subnet_of(lab.cluster) and not one.overlaps(lab.services) for one in pods)
    assert len(set(pods)) == 200
    assert str(lab.api_address) == "100.65.255.1"
    assert lab.services.subnet_of(lab.cluster)


def test_a_lab_with_a_cluster_goes_round_addresses_of_its_pods_that_are_taken() -> None:
    taken = [IPv4Network("100.64.0.9/32"), IPv4Network("10.217.1.0/24")]
    assert str(network.choose_subnet(taken)) == "10.217.0.0/24"
    assert str(network.choose_subnet(taken, cluster=True)) == "10.217.2.0/24"


@pytest.mark.parametrize("driver", CGROUP_DRIVERS)
def test_a_kubelet_that_may_not_lower_its_oom_score_keeps_the_one_it_has(
    driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "may_lower_oom_score", lambda: False)
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert machine.kubelet_configuration(driver)["oomScoreAdj"] == own
    monkeypatch.setattr(machine, "may_lower_oom_score", lambda: True)
    assert "oomScoreAdj" not in machine.kubelet_configuration(driver)


def test_an_api_server_that_does_not_answer_is_a_clear_error(layout: Layout) -> None:
    identity = layout.authority.issue("lab", "lab")
    client = Client("https://127.0.0.1:1", layout.authority.certificate, identity, timeout_s=2)
    with pytest.raises(LabError, match=r"API server https://127\.0\.0\.1:1 is unreachable"):
        client.get("/readyz")


def test_a_program_of_the_lab_stays_when_the_cache_has_another_one(tmp_path: Path) -> None:
    source = tmp_path / "cache" / "program"
    source.parent.mkdir()
    source.write_text("old")
    controlplane.link_program(source, tmp_path / "programs")
    source.unlink()
    source.write_text("new")
    assert (tmp_path / "programs/program").read_text() == "old"
    controlplane.link_program(source, tmp_path / "programs")
    assert (tmp_path / "programs/program").read_text() == "new"


def test_a_virtual_node_has_gpus_and_keeps_off_what_does_not_tolerate_it() -> None:
    node = virtual.manifest(7)
    assert node["metadata"]["name"] == "virtual7"
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert node["spec"]["taints"] == [virtual.TAINT]
    assert not virtual.is_ready(node)
