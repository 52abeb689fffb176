"""Boards whose switches are not on PCI, as the simulator describes them."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest
from stublibraries import VERSION

from gpustate_lab.sim import hardware, models
from gpustate_lab.sim.native import Libraries
from tests.unit.lab.sim.conftest import FakeRoot


def describe(gpus: str, node: str = "node1") -> dict[str, Any]:
    return hardware.describe(node, models.parse_gpus(gpus), set())


def test_switches_of_a_b200_board_are_told_from_a_network_card_by_their_data_only() -> None:
    data = describe("8xB200")
    assert data["nvswitches"] == []
    managing = [one for one in data["bridges"] if "SW_MNG" in one["vpd"]]
    (card,) = [one for one in data["bridges"] if one not in managing]
    assert len(managing) == 4
    same = ("vendor", "device_id", "pci_class", "subsystem_id")
    assert all(one[key] == card[key] for one in managing for key in same)
    addresses = [one["pci_address"] for one in [*data["gpus"], *data["bridges"]]]
    assert len(set(addresses)) == len(addresses)


def test_all_trays_are_of_one_rack() -> None:
    one, other = describe("4xGB200"), describe("4xGB200", "node2")
    assert one["rack"] == other["rack"]
    assert one["gpus"][0]["uuid"] != other["gpus"][0]["uuid"]
    assert one["nvswitches"] == one["bridges"] == []


@pytest.mark.parametrize("gpus", ["4xH100NVL", "8xH100PCIE", "3xGB200", "7xB200", "8xL40S"])
def test_cards_and_parts_of_boards_have_no_fabric(gpus: str) -> None:
    data = describe(gpus)
    assert data["board"] is data["rack"] is None
    assert data["nvswitches"] == data["bridges"] == []


def smi(libraries: Libraries, *arguments: str) -> str:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries.nvml.parent)}
    words = [str(libraries.smi), "-i", "0", "--format=csv,noheader", *arguments]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


def test_a_b200_board_wants_the_subnet_manager_beside_fabric_manager(
    libraries: Libraries, node_root: FakeRoot
) -> None:
    query = "--query-gpu=fabric.state,fabric.status,fabric.clusterUuid"
    node_root.describe("8xB200")
    node_root.load()
    holder = f"run/gpustate-lab/holders/{os.getpid()}"
    node_root.write(holder, f"fabric {VERSION} 0\n")
    assert smi(libraries, query) == "In Progress, [N/A], [N/A]"
    node_root.write(holder, f"fabric {VERSION} 0\nnvlsm subnet 0\n")
    assert smi(libraries, query) == "Completed, Success, 00000000-0000-0000-0000-000000000000"


def test_the_fabric_of_a_rack_is_complete_by_itself_and_has_a_name(
    libraries: Libraries, node_root: FakeRoot
) -> None:
    query = "--query-gpu=fabric.state,fabric.status,fabric.cliqueId,fabric.clusterUuid"
    node_root.describe("4xGB200")
    node_root.load()
    rack = describe("4xGB200")["rack"]
    shown = f"Completed, Success, {rack['clique']}, {rack['cluster_uuid']}"
    assert smi(libraries, query) == shown
    node_root.describe("4xGB200", ["fabric-stuck"])
    assert smi(libraries, query) == "In Progress, [N/A], [N/A], [N/A]"
