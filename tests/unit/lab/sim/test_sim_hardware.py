from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpustate.errors import LabError
from gpustate_lab.sim import hardware, models


def describe(gpus: str, node: str = "node1") -> dict:  # type: ignore[type-arg]
    return hardware.describe(node, models.parse_gpus(gpus), set())


def test_the_same_node_name_gives_the_same_gpus() -> None:
    assert describe("8xH100") == describe("8xH100")
    first = {gpu["uuid"] for gpu in describe("8xH100")["gpus"]}
    other = {gpu["uuid"] for gpu in describe("8xH100", node="node2")["gpus"]}
    assert len(first) == len(other) == 8
    assert not first & other


@pytest.mark.parametrize("gpus", ["16xT4", "8xA100", "8xH100,1xT4", "1xL40S"])
def test_indices_follow_pci_order_and_nothing_is_there_twice(gpus: str) -> None:
    data = describe(gpus)
    addresses = [gpu["pci_address"] for gpu in data["gpus"]]
    assert addresses == sorted(addresses)
    assert [gpu["index"] for gpu in data["gpus"]] == list(range(len(addresses)))
    everything = addresses + [switch["pci_address"] for switch in data["nvswitches"]]
    assert len(set(everything)) == len(everything)
    assert sorted(gpu["minor"] for gpu in data["gpus"]) == list(range(len(addresses)))


def test_minor_numbers_of_an_a100_board_are_not_its_indices() -> None:
    data = describe("8xA100")
    assert [gpu["minor"] for gpu in data["gpus"]] != list(range(8))
    assert len(data["nvswitches"]) == 6


def test_the_description_says_that_it_is_simulated_and_carries_its_faults(tmp_path: Path) -> None:
    faults = {"nouveau", "gpu-off-bus:1", "dkms-build:6.1.0-1-amd64"}
    path = hardware.write(tmp_path, "node1", models.parse_gpus("2xT4"), faults)
    data = json.loads(path.read_text())
    assert path == tmp_path / "etc/gpustate-lab/hardware.json"
    assert data["simulated"] is True
    assert data["faults"] == sorted(faults)


def test_writing_again_replaces_the_faults_and_leaves_nothing_behind(tmp_path: Path) -> None:
    hardware.write(tmp_path, "node1", models.parse_gpus("2xT4"), {"cuda-802"})
    path = hardware.write(tmp_path, "node1", models.parse_gpus("2xT4"), set())
    assert json.loads(path.read_text())["faults"] == []
    assert [entry.name for entry in path.parent.iterdir()] == ["hardware.json"]


def test_nouveau_in_the_initramfs_is_one_line_however_often_it_is_written(tmp_path: Path) -> None:
    listed = tmp_path / "etc/initramfs-tools/modules"
    listed.parent.mkdir(parents=True)
    listed.write_text("# mine\nloop\n")
    for _ in range(2):
        hardware.write(tmp_path, "node1", models.parse_gpus("1xT4"), {"nouveau-initramfs"})
    assert listed.read_text() == "# mine\nloop\nnouveau\n"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("nuveau", "'nuveau'; did you mean 'nouveau'; list all with: gpustate lab fault --list"),
        ("gpu-off-bus", "unknown fault 'gpu-off-bus'; did you mean 'gpu-off-bus:<index>'"),
        ("zzz", "unknown fault 'zzz'; list all with"),
        ("gpu-off-bus:2", "no such GPU .the node has 2"),
        ("gpu-off-bus:x", "no such GPU"),
        ("nouveau:1", "unknown fault"),
        ("dkms-build:../x", "unknown fault"),
    ],
)
def test_a_wrong_fault_is_refused_before_anything_is_written(
    tmp_path: Path, fault: str, message: str
) -> None:
    with pytest.raises(LabError, match=message):
        hardware.write(tmp_path, "node1", models.parse_gpus("2xT4"), {fault})
    assert not list(tmp_path.iterdir())


def test_a_root_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "etc").write_text("a file")
    with pytest.raises(LabError, match="cannot write the hardware description"):
        hardware.write(tmp_path, "node1", models.parse_gpus("1xT4"), set())
