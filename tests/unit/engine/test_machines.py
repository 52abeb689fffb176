"""One machine under two names of an inventory."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from filestates import First, here, request

from gpustate.core.inventory import Inventory
from gpustate.core.outcome import NodeStatus
from gpustate.engine import fleet
from gpustate.engine.ledger import LedgerQuery
from gpustate.engine.machines import Machines

MACHINE = Path("/etc/machine-id")
known = pytest.mark.skipif(
    not MACHINE.is_file() or not MACHINE.read_text().strip(), reason="this machine has no id"
)


def two(folders: tuple[Path, Path], path: Path, *, apply: bool) -> fleet.FleetResult:
    nodes = tuple(
        dataclasses.replace(here(folder), name=name)
        for name, folder in zip(("gpu1", "gpu1-old"), folders, strict=True)
    )
    asked = request(nodes[0], First(path=str(path)), apply=apply, forks=1)
    return fleet.run(dataclasses.replace(asked, inventory=Inventory("test", nodes)))


@known
def test_the_second_name_of_a_machine_is_refused_by_an_apply_and_noted_by_a_plan(
    tmp_path: Path,
) -> None:
    folders = (tmp_path / "state", tmp_path / "state")
    planned = two(folders, tmp_path / "a", apply=False)
    assert planned.nodes[0].notes == []
    assert planned.nodes[1].notes[0].startswith("it is the same machine as gpu1; ")
    done = two(folders, tmp_path / "a", apply=True)
    assert [node.status for node in done.nodes] == [NodeStatus.OK, NodeStatus.REFUSED]
    assert done.nodes[1].reason == (
        "it is the same machine as gpu1; exclude one of the two names: -l '!gpu1'"
    )


@known
def test_two_state_folders_of_one_machine_are_two_nodes(tmp_path: Path) -> None:
    done = two((tmp_path / "one", tmp_path / "two"), tmp_path / "a", apply=True)
    assert [node.status for node in done.nodes] == [NodeStatus.OK, NodeStatus.OK]


def test_a_machine_that_cannot_be_told_is_nobodys_other_name() -> None:
    machines = Machines()
    assert [machines.other_name("", name) for name in ("a", "b")] == [None, None]
    assert [machines.other_name("x", name) for name in ("a", "a", "b")] == [None, None, "a"]


def test_an_image_is_no_machine() -> None:
    assert "GPUSTATE_IMAGE" in LedgerQuery().script()
