from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustate.errors import LabError
from gpustate_lab.spec import Fault, LabSpec


def test_images_and_gpus_are_dealt_out_in_turn() -> None:
    spec = LabSpec.parse(nodes=3, image="debian12, debian13", gpus="8xH100,none")
    assert [(node.name, node.image, node.gpus) for node in spec.node_specs()] == [
        ("gpu1", "debian12", "8xH100"),
        ("gpu2", "debian13", "none"),
        ("gpu3", "debian12", "8xH100"),
    ]


def test_faults_go_to_the_nodes_they_name() -> None:
    spec = LabSpec.parse(faults=["nouveau@gpu1", "gpu-off-bus:3@gpu1", "cuda-802@gpu2"])
    assert [node.faults for node in spec.node_specs()] == [
        ("nouveau", "gpu-off-bus:3"),
        ("cuda-802",),
    ]


@pytest.mark.parametrize("text", ["nouveau", "@gpu1", "nouveau@", "No@gpu1", "a:@gpu1", "a b@gpu1"])
def test_a_fault_that_names_no_node_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(LabError, match=r"is not NAME\[:ARGUMENT\]@NODE; for example"):
        Fault.parse(text)


def test_a_fault_on_a_node_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(LabError, match=r"no node 'gpu3'.*choose one of gpu1 to gpu2"):
        LabSpec.parse(nodes=2, faults=["nouveau@gpu3"])


@pytest.mark.parametrize("name", ["", "Lab", "1lab", "a/b", "..", "a" * 25, "lab\n", "-lab", "ä"])
def test_a_name_that_is_unsafe_in_a_path_is_refused(name: str) -> None:
    with pytest.raises(LabError, match="invalid lab name"):
        LabSpec(name=name)


@pytest.mark.parametrize("nodes", [-1, 0, 201])
def test_a_number_of_nodes_outside_one_subnet_is_refused(nodes: int) -> None:
    with pytest.raises(LabError, match=r"invalid number of nodes .*; choose 1 to 200"):
        LabSpec(nodes=nodes)


def test_the_default_node_is_ubuntus_with_the_systemd_cgroup_driver() -> None:
    assert [(node.image, node.cgroups) for node in LabSpec.parse(nodes=1).node_specs()] == [
        ("ubuntu2404", "systemd")
    ]


def test_cgroup_drivers_are_dealt_out_in_turn() -> None:
    spec = LabSpec.parse(nodes=3, cgroups="cgroupfs,systemd")
    assert [node.cgroups for node in spec.node_specs()] == ["cgroupfs", "systemd", "cgroupfs"]
    assert LabSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_cgroup_driver_that_does_not_exist_names_those_that_do() -> None:
    with pytest.raises(LabError, match=r"'v2' does not exist; choose one of systemd, cgroupfs"):
        LabSpec.parse(cgroups="v2")


@pytest.mark.parametrize("lists", [{"image": ","}, {"gpus": ""}, {"cgroups": ","}])
def test_an_empty_list_is_refused(lists: dict[str, str]) -> None:
    with pytest.raises(LabError, match="at least one image, one GPU set and one cgroup driver"):
        LabSpec.parse(**lists)  # type: ignore[arg-type]


def test_pods_need_a_cluster_and_are_of_every_node() -> None:
    with pytest.raises(LabError, match="--pods requires a Kubernetes cluster; add --kubernetes"):
        LabSpec.parse(pods=True)
    spec = LabSpec.parse(kubernetes="1.36", pods=True)
    assert all(node.pods for node in spec.node_specs())
    assert LabSpec.from_json(spec.to_json()) == spec


@given(
    nodes=st.integers(1, 200),
    images=st.lists(st.text(min_size=1), min_size=1, max_size=4),
    faults=st.lists(st.tuples(st.sampled_from(["nouveau", "cuda-802"]), st.none() | st.text("12"))),
)
def test_a_spec_survives_json(
    nodes: int, images: list[str], faults: list[tuple[str, str | None]]
) -> None:
    spec = LabSpec(
        nodes=nodes,
        images=tuple(images),
        faults=tuple(Fault(name, f"gpu{nodes}", argument) for name, argument in faults),
    )
    assert LabSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
