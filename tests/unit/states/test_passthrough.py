"""VFIO and Kata hosts, in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from gpustate import Disruption, NodeFacts, ops
from gpustate.core.queries import Answer
from gpustate.formats import grub
from gpustate.probes.kernel_cmdline import CommandLine, CommandLineQuery
from gpustate.states.kata import KataHostReady
from gpustate.states.vfio import PROGRAM_PATH, UNIT, UNIT_PATH, VfioBound
from gpustate.testing import FakeNode, check_contract, converge

STEPLESS = {"kata": "its default names no runtime", "vfio": "its default names no device"}

GPU = "0000:1b:00.0"
ON = ("intel_iommu=on", "iommu=pt")
LINE = CommandLine(
    running=("ro", "quiet"), menu=(("6.1", ("ro", "quiet")),), way="grub", cpu="GenuineIntel"
)
BOUND = f"device={GPU}|vfio-pci|vfio-pci|vfio-pci|7|0\nmember=7|{GPU}|vfio-pci\nmodule=1\n"
FREE = f"device={GPU}|||vfio-pci|7|0\nmember=7|{GPU}|\nmodule=1\n"
NVIDIA = f"device={GPU}|nvidia|(null)|vfio-pci||0\nmodule=1\n"


def node(line: CommandLine = LINE, look: str = NVIDIA, **more: Any) -> FakeNode:
    def menu(node: FakeNode) -> None:
        found: CommandLine = node.answers["CommandLineQuery"]
        text = node.files.get(grub.drop_in_path("vfio")) or node.files.get(
            grub.drop_in_path("kata")
        )
        words = ON if text else ()
        entries = tuple((k, ("ro", "quiet", *words)) for k, _ in found.menu)
        node.answers["CommandLineQuery"] = replace(found, menu=entries, drop_in=text, pending=False)

    def bound(node: FakeNode) -> None:
        node.shells["chosen() {"] = (0, BOUND)

    def released(node: FakeNode) -> None:
        node.shells["chosen() {"] = (0, NVIDIA.replace("(null)", ""))

    settings: dict[str, Any] = {
        "facts": NodeFacts(kernel="6.17.0-5-generic", systemd=True),
        "answers": {"CommandLineQuery": line},
        "shell": {
            "chosen() {": (0, look),
            "dev/kvm": (0, "kvm=1\ngroups=1\ncontainerd=1\ntdx=Y\n"),
        },
        "runs": {
            "record that the GRUB": lambda _: None,
            "regenerate the GRUB": menu,
            "bind the devices": bound,
            "bind the devices to their original drivers": released,
        },
    }
    return FakeNode(**{**settings, **more})


def rebooted(node: FakeNode, look: str = BOUND) -> None:
    """The node comes back with the arguments of its menu, and the unit has run."""
    found: CommandLine = node.answers["CommandLineQuery"]
    node.answers["CommandLineQuery"] = replace(found, running=found.menu[0][1])
    node.shells["chosen() {"] = (0, look)


STATE = VfioBound(devices=(GPU,))


def test_a_device_that_nobody_drives_is_bound_at_once() -> None:
    line = replace(LINE, running=("ro", *ON), menu=(("6.1", ("ro", *ON)),))
    one = node(line, FREE)
    first, second = converge(STATE, one)
    assert first.disruption is Disruption.NONE
    assert one.reboots == 0
    assert not second
    assert grub.drop_in_path("vfio") not in one.files, "these arguments are foreign"


def test_removal_gives_devices_and_files_back() -> None:
    one = node()
    list(converge(STATE, one))
    rebooted(one)
    *_, last = converge(VfioBound(devices=(GPU,), ensure="absent"), one)
    assert not last
    assert one.files == {}
    assert UNIT not in one.enabled


def test_a_menu_that_was_not_written_is_written() -> None:
    one = node()
    list(converge(STATE, one))
    rebooted(one)
    found: CommandLine = one.answers["CommandLineQuery"]
    one.answers["CommandLineQuery"] = replace(found, menu=LINE.menu, pending=True)
    first, second = converge(STATE, one)
    assert first.fields == {"menu_lacks", "pending"}
    assert not second


VFIO_REFUSALS = [
    (LINE, "", "no PCI device"),
    (LINE, NVIDIA.replace("module=1\n", ""), "the running kernel has no vfio-pci"),
    (replace(LINE, menu=(("6.1", ("intel_iommu=off",)),)), NVIDIA, "intel_iommu=off"),
    (replace(LINE, way="grubby"), NVIDIA, "grubby --update-kernel=ALL"),
    (replace(LINE, way=""), NVIDIA, "no update-grub"),
    (LINE, NVIDIA.replace("||0", "||1"), "console"),
    (LINE, FREE + "member=7|0000:1b:00.1|snd_hda_intel\n", "0000:1b:00.1 (snd_hda_intel)"),
]


@pytest.mark.parametrize(("line", "look", "word"), VFIO_REFUSALS)
def test_what_stands_in_the_way_is_named(line: CommandLine, look: str, word: str) -> None:
    reason = STATE.refuse(STATE.probe(node(line, look)))
    assert reason is not None
    assert word in reason


def test_a_device_of_a_running_machine_is_not_taken_away() -> None:
    absent = VfioBound(devices=(GPU,), ensure="absent")
    one = node(look=BOUND + "used=1\n", files={UNIT_PATH: "x", PROGRAM_PATH: "y"})
    assert "shut it down" in (absent.refuse(absent.probe(one)) or "")


def test_who_hands_all_gpus_over_is_told_what_follows() -> None:
    (plan,) = converge(VfioBound(devices=("gpus",)), node(), rounds=0)
    assert any("nvidia.ko will not load" in note for note in plan.notes)


@pytest.mark.parametrize(
    "parameters",
    [
        {"devices": ("0000:1B:00.0",)},
        {"devices": ("'; reboot; '",)},
        {"devices": ("",)},
        {"arguments": ("a b",)},
        {"arguments": ("x=$(id)",)},
    ],
)
def test_wrong_parameters_are_errors_before_any_node_is_reached(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        VfioBound(**parameters)


def test_the_fragment_of_the_command_line_is_read_as_it_is_printed() -> None:
    text = (
        "running=BOOT_IMAGE=/vmlinuz-6.1 ro quiet\nway=grub\npending=1\ncpu=AuthenticAMD\n"
        "drop=\n|# ours\n|x=1\n\tlinux\t/boot/vmlinuz-6.1 root=/dev/sda1 ro amd_iommu=on\n"
    )
    found = CommandLineQuery("vfio").parse(Answer(0, text.encode()))
    assert found.drop_in == "# ours\nx=1\n"
    assert found.menu == (("6.1", ("root=/dev/sda1", "ro", "amd_iommu=on")),)
    assert found.pending
    assert found.running_lacks(("amd_iommu=on",)) == ("amd_iommu=on",)
    assert found.menu_lacks(("amd_iommu=on",)) == ()


# --- Kata ----------------------------------------------------------------------------------------

TDX = ("intel_iommu=on", "modprobe.blacklist=nouveau", "kvm_intel.tdx=1", "nohibernate")


def test_a_confidential_host_gets_its_arguments() -> None:
    one = node()
    state = KataHostReady(runtime="confidential")
    plan = state.plan(state.probe(one))
    assert plan.disruption is Disruption.REBOOT
    for word in TDX:
        assert word in str(next(c.after for c in plan.changes if c.field == "drop_in"))
    assert any(isinstance(step, ops.Reboot) for step in state.apply(state.probe(one), plan))


def test_a_kata_host_that_is_ready_needs_nothing() -> None:
    line = replace(LINE, running=TDX, menu=(("6.17", TDX),))
    for runtime in ("kata", "confidential"):
        state = KataHostReady(runtime=runtime)
        observed = state.probe(node(line))
        assert not state.plan(observed)
        assert state.refuse(observed) is None


KATA_REFUSALS = [
    ("kata", "groups=1\ncontainerd=1\n", {}, "/dev/kvm"),
    ("kata", "kvm=1\ngroups=1\n", {}, "containerd"),
    ("kata", "kvm=1\ngroups=1\ncontainerd=1\ndriver=loaded\n", {}, "NVIDIA driver is loaded"),
    ("kata", "kvm=1\ncontainerd=1\n", {}, "VT-d"),
    ("confidential", "kvm=1\ngroups=1\ncontainerd=1\ntdx=N\n", {}, "TDX is off"),
    ("confidential", "kvm=1\ngroups=1\ncontainerd=1\ntdx=Y\n", {"kernel": "6.8.0"}, "6.17"),
]


@pytest.mark.parametrize(("runtime", "look", "facts", "word"), KATA_REFUSALS)
def test_what_the_host_lacks_is_named(
    runtime: Any, look: str, facts: dict[str, Any], word: str
) -> None:
    line = replace(LINE, running=TDX, menu=(("6.17", TDX),))
    host = NodeFacts(**{"kernel": "6.17.0", "systemd": True, **facts})
    state = KataHostReady(runtime=runtime)
    reason = state.refuse(state.probe(node(line, facts=host, shell={"dev/kvm": (0, look)})))
    assert reason is not None
    assert word in reason


@pytest.mark.parametrize(
    "state", [STATE, KataHostReady(runtime="confidential"), VfioBound(), KataHostReady()]
)
def test_they_keep_the_contract_of_every_state(state: Any) -> None:
    check_contract(state, node())
