"""The NVLink fabric where the GPUs tell nothing of it: Fabric Manager decides."""

from __future__ import annotations

from pathlib import Path

import pytest
from brokennodes import Change, both, file, masked, without
from nodetrees import ADDRESSES, Tree, World

from gpustate.diagnosis import chain
from gpustate.explain import walk

FABRIC = "nvidia-fabricmanager"
PID = "run/nvidia-fabricmanager/nv-fabricmanager.pid"


def stopped(world: World) -> None:
    world.unit(FABRIC, "inactive/dead/enabled")


def runs(world: World) -> None:
    world.files |= {PID: "70\n", "proc/70/comm": "nv-fabricmanage\n"}


def no_switches(world: World) -> None:
    world.pci = {address: world.pci[address] for address in ADDRESSES}


def passed_through(world: World) -> None:
    for address in set(world.pci) - set(ADDRESSES):
        world.pci[address] = (*world.pci[address][:2], "vfio-pci")


def found(change: Change, folder: Path) -> walk.Diagnosis:
    world = World()
    world.a100()
    change(world)
    view = Tree(world, folder).view()
    diagnosis = walk.diagnose(view)
    validated = chain.first_broken(chain.evaluate(view.observed))
    assert (validated and validated.name) == (diagnosis.broken and diagnosis.broken.name)
    return diagnosis


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (stopped, "fabric-manager-down"),
        (lambda w: w.unit(FABRIC, "failed/failed/enabled", "no NVSwitch"), "fabric-manager-down"),
        (masked(FABRIC), "fabric-manager-masked"),
        (without(FABRIC), "fabric-manager-missing"),
    ],
)
def test_a100_boards_need_a_fabric_manager_whatever_proof_is_kept(
    change: Change, cause: str, tmp_path: Path
) -> None:
    diagnosis = found(change, tmp_path / "node")
    assert diagnosis.broken is not None
    assert (diagnosis.broken.name, diagnosis.name) == ("fabric", cause)


@pytest.mark.parametrize(
    "change",
    [
        runs,
        both(without(FABRIC), no_switches),
        both(stopped, passed_through),
        both(stopped, file("run/nvidia/validations/.driver-ctr-ready")),
        both(stopped, file("proc/driver/nvidia/params", "NvLinkDisable: 1\n")),
        both(stopped, runs),
    ],
)  # fmt: skip
def test_a_board_that_does_without_one_is_not_accused(change: Change, tmp_path: Path) -> None:
    diagnosis = found(change, tmp_path / "node")
    assert diagnosis.broken is None, f"{diagnosis.name}: {diagnosis.broken}"


def test_a_proof_does_not_outlive_the_fabric_manager_it_was_made_with(tmp_path: Path) -> None:
    world = World()
    world.a100()
    runs(world)
    tree = Tree(world, tmp_path / "node")
    assert tree.view().observed.cuda
    (tree.top / PID).unlink()
    assert tree.view().observed.cuda is None
