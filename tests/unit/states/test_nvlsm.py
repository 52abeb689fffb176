"""The NVLink subnet manager's package and modules, in memory."""

from __future__ import annotations

import pytest

from gpustate import Disruption, NodeFacts, PciGpu, ops
from gpustate.formats.nvml_report import NvmlFacts
from gpustate.formats.pci_gpus import meant_for
from gpustate.states.nvlsm import LOAD_PATH, MODULES, SubnetManagerInstalled
from gpustate.testing import FakeNode, converge

STEPLESS = {"nvlsm": "their NVSwitches are on PCI, and need no subnet manager"}

B200 = tuple(PciGpu(f"0000:{n + 16:02x}:00.0", "2901", "030200", None) for n in range(8))
OFFERED = {"nvlsm": [("2025.10.14-1", "vendor"), ("2025.06.1-1", "vendor")]}


def node(**more: object) -> FakeNode:
    settings: dict[str, object] = {
        "facts": NodeFacts(pci=B200),
        "answers": {"BridgesQuery": 4, "GpuFacts": NvmlFacts(error=9)},
        "candidates": OFFERED,
        "modules": ("mlx5_ib",),
        "shell": {"modinfo": (0, "")},
    }
    return FakeNode(**{**settings, **more})  # type: ignore[arg-type]


def test_modules_are_loaded_before_the_package_is_installed() -> None:
    one = node()
    list(converge(SubnetManagerInstalled(), one))
    kinds = [type(step) for step in one.done]
    assert kinds == [ops.PutText, ops.LoadModules, ops.AptInstall]


def test_an_installed_version_stays_until_another_one_is_asked_for() -> None:
    one = node(packages={"nvlsm": "2025.06.1-1"}, modules=MODULES)
    list(converge(SubnetManagerInstalled(), one))
    assert one.installed == {"nvlsm": "2025.06.1-1"}
    first, second = converge(SubnetManagerInstalled(version="2025.10.14"), one)
    assert first.disruption is Disruption.DRAIN
    assert one.installed == {"nvlsm": "2025.10.14-1"}
    assert not second


def test_a_kernel_without_the_module_is_refused_with_the_package_that_has_it() -> None:
    state = SubnetManagerInstalled()
    why = state.refuse(state.probe(node(shell={"modinfo": (0, "ib_umad\n")}))) or ""
    assert "no module ib_umad" in why
    assert "linux-modules-extra" in why


@pytest.mark.parametrize(
    ("state", "offered", "said"),
    [
        (SubnetManagerInstalled(), {}, "no repository offers nvlsm;"),
        (
            SubnetManagerInstalled(version="2024.1"),
            OFFERED,
            "no repository offers nvlsm 2024.1; there is 2025.10.14-1, 2025.06.1-1; use",
        ),
    ],
)
def test_a_repository_without_it_is_refused(
    state: SubnetManagerInstalled, offered: dict[str, list[tuple[str, str]]], said: str
) -> None:
    assert said in (state.plan(state.probe(node(candidates=offered))).refusal or "")


@pytest.mark.parametrize("bridges", [0])
def test_a_node_without_such_switches_is_left_as_it_is(bridges: int) -> None:
    one = node(answers={"BridgesQuery": bridges, "GpuFacts": NvmlFacts(error=9)}, candidates={})
    (plan,) = converge(SubnetManagerInstalled(), one, rounds=0)
    assert not plan
    state = SubnetManagerInstalled()
    assert state.refuse(state.probe(one)) is None


def test_it_can_be_taken_away() -> None:
    one = node()
    list(converge(SubnetManagerInstalled(), one))
    *_, last = converge(SubnetManagerInstalled(ensure="absent"), one)
    assert one.installed == {}
    assert LOAD_PATH not in one.files
    assert not last


@pytest.mark.parametrize(("gpus", "comes"), [("8xB200", True), ("8xH100", False), ("", False)])
def test_an_image_gets_it_when_it_is_for_such_boards(gpus: str, comes: bool) -> None:
    one = node(facts=NodeFacts(image=True, pci=meant_for(gpus)), modules=())
    _, second = converge(SubnetManagerInstalled(), one)
    assert bool(one.installed) is comes
    assert not one.loaded
    assert not second
