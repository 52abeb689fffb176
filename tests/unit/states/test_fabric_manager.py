"""Fabric Manager, in memory."""

from __future__ import annotations

import pytest

from gpustate import Disruption, NodeFacts, PciGpu, ops
from gpustate.states.fabric_manager import UNIT, FabricManagerRunning, loaded_version
from gpustate.testing import FakeNode, check_contract, converge

SWITCH = PciGpu("0000:05:00.0", "22a3", "068000", None)
VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (x)\n"
OFFERED = {"nvidia-fabricmanager": [("595.91.07-1", "vendor"), ("580.65.06-1", "vendor")]}


def node(*, switch: bool = True, **more: object) -> FakeNode:
    settings: dict[str, object] = {
        "facts": NodeFacts(pci=(SWITCH,) if switch else ()),
        "files": {"/proc/driver/nvidia/version": VERSION},
        "candidates": OFFERED,
        "runs": {"wait until the fabric": lambda _: None},
    }
    return FakeNode(**{**settings, **more})  # type: ignore[arg-type]


def test_it_is_installed_in_the_drivers_version_held_and_started() -> None:
    one = node()
    first, second = converge(FabricManagerRunning(), one)
    assert one.installed == {"nvidia-fabricmanager": "580.65.06-1"}
    assert one.held == {"nvidia-fabricmanager"}
    assert one.unit_states[UNIT] == "active"
    assert first.disruption is Disruption.NONE
    assert not second


def test_nothing_is_done_without_nvswitches() -> None:
    one = node(switch=False)
    (plan,) = converge(FabricManagerRunning(), one, rounds=0)
    assert not plan
    assert FabricManagerRunning().refuse(FabricManagerRunning().probe(one)) is None


def test_replacing_one_that_runs_costs_a_drain() -> None:
    one = node(packages={"nvidia-fabricmanager": "595.91.07-1"}, units={UNIT: "active"})
    first, second = converge(FabricManagerRunning(), one)
    assert first.disruption is Disruption.DRAIN
    assert one.installed == {"nvidia-fabricmanager": "580.65.06-1"}
    assert not second


def test_the_name_with_a_branch_leaves_when_the_driver_moves_on() -> None:
    one = node(packages={"nvidia-fabricmanager-570": "570.211.01-1"}, units={UNIT: "active"})
    converged = list(converge(FabricManagerRunning(), one))
    assert one.installed == {"nvidia-fabricmanager": "580.65.06-1"}
    assert not converged[-1]


def test_a_node_whose_repositories_lack_the_version_is_refused_by_name() -> None:
    state = FabricManagerRunning()
    reason = state.refuse(state.probe(node(candidates={})))
    assert reason is not None
    assert "nvidia-fabricmanager 580.65.06" in reason


def test_it_can_be_taken_away() -> None:
    one = node(packages={"nvidia-fabricmanager": "580.65.06-1"}, units={UNIT: "active"})
    *_, last = converge(FabricManagerRunning(ensure="absent"), one)
    assert one.installed == {}
    assert not last
    assert any(isinstance(step, ops.DisableUnit) for step in one.done)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (VERSION, "580.65.06"),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.309.01  Mon\nGCC version: 12.2.0\n",
            "535.309.01",
        ),
        ("", None),
        (None, None),
    ],
)
def test_the_version_is_found_in_both_forms_of_the_file(
    text: str | None, version: str | None
) -> None:
    assert loaded_version(text) == version


def test_it_keeps_the_contract() -> None:
    check_contract(FabricManagerRunning(), node())
