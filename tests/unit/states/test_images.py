"""What states make of an image that is baked: nothing runs there, and no GPU decides anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpustate import NodeFacts, ops
from gpustate.core.queries import Answer, Units
from gpustate.formats.nvml_report import NvmlFacts
from gpustate.formats.pci_gpus import meant_for
from gpustate.probes.kernels import Kernels
from gpustate.states.driver import refusals
from gpustate.states.driver.observed import Observed, SecureBoot
from gpustate.states.fabric_manager import CONFIG_PATH, UNIT, FabricManagerRunning
from gpustate.states.nouveau import NouveauBlacklisted
from gpustate.states.persistenced import PersistenceModeEnabled
from gpustate.testing import FakeNode, converge

IMAGE = NodeFacts(os_id="debian", os_version="12", package_manager="apt", image=True)
OFFERED = {"nvidia-fabricmanager": [("580.65.06-1", "vendor")]}


def fabric(gpus: str = "", **more: object) -> FakeNode:
    settings: dict[str, object] = {
        "facts": replace(IMAGE, pci=meant_for(gpus)),
        "files": {CONFIG_PATH: "FABRIC_MODE=0\n"},
        "candidates": OFFERED,
        "shell": {"libnvidia-ml.so.1": (0, "580.65.06\n"), "nvlsm": (0, "")},
        "answers": {"BridgesQuery": 0, "GpuFacts": NvmlFacts(error=12)},
    }
    return FakeNode(**{**settings, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("gpus", ["", "8xH100"])
def test_fabric_manager_is_installed_in_an_image_and_left_off(gpus: str) -> None:
    node = fabric(gpus)
    first, second = converge(FabricManagerRunning(), node)
    assert first.fields == {"package", "version", "held"}
    assert node.installed == {"nvidia-fabricmanager": "580.65.06-1"}
    assert UNIT not in node.enabled
    assert not second


def test_an_image_for_cards_without_nvswitches_gets_no_fabric_manager() -> None:
    (plan,) = converge(FabricManagerRunning(), fabric("4xL40S"), rounds=0)
    assert not plan


def test_an_image_whose_repositories_lack_fabric_manager_is_refused_with_the_ways_out() -> None:
    state = FabricManagerRunning()
    why = state.plan(state.probe(fabric(candidates={}))).refusal or ""
    assert "--gpu" in why
    assert "580.65.06" in why


def test_whether_there_are_nvswitches_is_found_out_at_the_first_boot() -> None:
    state = FabricManagerRunning()
    (step,) = state.first_boot(state.probe(fabric()))
    assert step.in_image is None
    assert "no NVSwitch on PCI" in step.script()


def test_nothing_is_asked_of_gpus_that_an_image_is_only_meant_for() -> None:
    node = FakeNode(
        facts=replace(IMAGE, pci=meant_for("8xH100")),
        files={"/lib/systemd/system/nvidia-persistenced.service": "[Service]\n[Install]\n"},
        units={"nvidia-persistenced.service": "inactive"},
    )
    first, second = converge(PersistenceModeEnabled(), node)
    assert first.fields == {"at_boot"}
    assert not any(isinstance(step, ops.RestartUnit) for step in node.done)
    assert not second


def test_what_is_taken_away_leaves_no_first_boot_work() -> None:
    state = FabricManagerRunning(ensure="absent")
    assert list(state.first_boot(state.probe(fabric()))) == []
    assert list(NouveauBlacklisted(ensure="absent").first_boot(None)) == []  # type: ignore[arg-type]


DRIVER = Observed(
    packages={},
    held=(),
    broken=(),
    headers={"6.1.0": True},
    built={"6.1.0": None},
    loaded=None,
    modules=(),
    library=None,
    pin_text=None,
    options_text=None,
    autoload_text=None,
    parameters={},
    stopped=(),
    manager="apt",
    os_id="debian",
    running="",
    default_kernel="6.1.0",
    gpus=(),
    offers={},
    holders=(),
    in_use=None,
    secure_boot=SecureBoot(),
    build_errors={},
    known_parameters=(),
    installer=False,
    operator=False,
    image=True,
)


def test_what_only_gpus_could_decide_has_to_be_said_for_an_image() -> None:
    assert "module_type" in (refusals.image(DRIVER, 580, "auto") or "")
    assert "branch or version" in (refusals.image(DRIVER, None, "open") or "")
    assert refusals.image(DRIVER, 580, "open") is None
    meant = replace(DRIVER, gpus=meant_for("8xH100"))
    assert refusals.image(meant, None, "auto") is None


def test_an_image_without_a_kernel_is_refused() -> None:
    why = refusals.image(replace(DRIVER, built={}), 580, "open") or ""
    assert "no kernel is installed" in why


def test_kernels_of_an_image_are_those_installed_and_none_runs() -> None:
    out = (
        b"kernel|6.1.0-9|/boot/vmlinuz-6.1.0-9||1|1\nno kernel runs\n"
        b"kernel|6.1.0-18|/lib/modules/6.1.0-18/vmlinuz||1|\n"
    )
    kernels = Kernels().parse(Answer(0, out))
    assert [(k.release, k.running, k.bootable) for k in kernels] == [
        ("6.1.0-9", False, True),
        ("6.1.0-18", False, True),
    ]


def test_units_of_an_image_are_told_by_their_files() -> None:
    said = b"Id=a.service\nLoadState=loaded\nActiveState=inactive\nUnitFileState=enabled\n\n"
    unit = Units(("a.service",)).parse(Answer(0, said))["a.service"]
    assert unit.enabled
    assert not unit.active


def test_gpus_that_an_image_is_for_are_models() -> None:
    assert [gpu.architecture for gpu in meant_for("2xH100,1xL40S")] == ["hopper", "hopper", "ada"]
    assert meant_for("") == ()
    for wrong, said in (("8", "names no model"), ("8xH1000", "H1000"), ("x", "unknown GPU")):
        with pytest.raises(ValueError, match=said):
            meant_for(wrong)
