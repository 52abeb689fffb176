"""nouveau is kept out of the three places it can come from, and restored."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpustate import Disruption, NodeFacts, PciGpu, ops
from gpustate.formats import modprobe
from gpustate.states import nouveau
from gpustate.states.nouveau import CONF_PATH, DRACUT_PATH, HOOK_PATH, NouveauBlacklisted
from gpustate.testing import FakeNode, converge

KERNELS: tuple[str, ...] = ("6.1.0-1", "6.1.0-2")


class World:
    """The two kernels' initramfs and the tools, as the fragments would find them."""

    def __init__(
        self, *, found: str = "nouveau", tools: str = "initramfs-tools", named: str = ""
    ) -> None:
        self.found: dict[str, str] = dict.fromkeys(KERNELS, found)
        self.ours: set[str] = set()
        self.tools = tools
        self.named = named

    def images(self, _node: FakeNode) -> tuple[int, str]:
        return 0, "".join(
            f"{k}|/boot/initrd.img-{k}|{found}|{'1' if k in self.ours else ''}\n"
            for k, found in self.found.items()
        )

    def tool(self, node: FakeNode) -> tuple[int, str]:
        return 0, f"{self.tools}\n" + ("executable\n" if HOOK_PATH in node.files else "")

    def rebuild(self, node: FakeNode, kernels: tuple[str, ...]) -> None:
        for kernel in kernels:
            kept_out = HOOK_PATH in node.files or DRACUT_PATH in node.files
            self.found[kernel] = "" if kept_out else "nouveau"
            (self.ours.add if CONF_PATH in node.files else self.ours.discard)(kernel)


class Node(FakeNode):
    """A node whose initramfs is really rebuilt by the step."""

    def __init__(self, world: World, *, driver: str | None = None, **more: Any) -> None:
        gpu = PciGpu("0000:01:00.0", "2330", "030200", driver)
        super().__init__(
            facts=NodeFacts(os_id="debian", os_version="12", systemd=True, pci=(gpu,)),
            shell={
                "lsinitramfs": world.images,
                "mkinitramfs": world.tool,
                "grep -sHE": (0, world.named),
            },
            **more,
        )
        self.world = world

    def carry_out(self, step: Any) -> None:
        super().carry_out(step)
        if isinstance(step, ops.RebuildInitramfs):
            self.world.rebuild(self, step.kernels)


def test_plan_costs_a_reboot_only_while_the_module_is_loaded() -> None:
    state = NouveauBlacklisted()
    loaded = state.plan(state.probe(Node(World(), driver="nouveau", modules=["nouveau"])))
    assert loaded.disruption is Disruption.REBOOT
    assert {"loaded", "bound"} <= loaded.fields
    assert state.plan(state.probe(Node(World()))).disruption is Disruption.NONE


def test_the_images_are_rebuilt_before_anything_is_unloaded() -> None:
    state = NouveauBlacklisted()
    node = Node(World(), modules=["nouveau"])
    observed = state.probe(node)
    names = [type(step).__name__ for step in state.apply(observed, state.plan(observed))]
    assert names.index("RebuildInitramfs") < names.index("UnloadModules") < names.index("Reboot")


@pytest.mark.parametrize("driver", ["nouveau", "nova-core", "NovaCore", "nova_core"])
def test_every_name_of_the_kernels_own_drivers_counts_as_bound(driver: str) -> None:
    observed = NouveauBlacklisted().probe(Node(World(), driver=driver, modules=["nova_core"]))
    assert observed.bound == ("0000:01:00.0",)
    assert observed.loaded == ("nova_core",)


def test_only_the_images_that_hold_a_module_are_rebuilt() -> None:
    state, world = NouveauBlacklisted(), World()
    world.found[KERNELS[0]] = ""
    observed = state.probe(Node(world))
    steps = list(state.apply(observed, state.plan(observed)))
    assert [s.kernels for s in steps if isinstance(s, ops.RebuildInitramfs)] == [(KERNELS[1],)]


def test_a_torn_image_is_rebuilt() -> None:
    state = NouveauBlacklisted()
    observed = state.probe(Node(World(found="unreadable")))
    assert "initramfs" in state.plan(observed).fields


def test_a_kill_between_files_and_images_leaves_a_plan_for_the_images() -> None:
    state, node = NouveauBlacklisted(), Node(World())
    observed = state.probe(node)
    for step in list(state.apply(observed, state.plan(observed)))[:2]:
        node.carry_out(step)
    assert state.plan(state.probe(node)).fields == {"initramfs"}


def test_a_kill_in_the_middle_of_taking_it_away_is_made_good() -> None:
    node = Node(World())
    list(converge(NouveauBlacklisted(), node))
    absent = NouveauBlacklisted(ensure="absent")
    observed = absent.probe(node)
    for step in list(absent.apply(observed, absent.plan(observed)))[:-1]:
        node.carry_out(step)
    assert absent.plan(absent.probe(node)).fields == {"ours_in_initramfs"}


def test_dracut_gets_a_drop_in_instead_of_a_hook() -> None:
    node = Node(World(tools="dracut"))
    _, after = converge(NouveauBlacklisted(), node)
    assert not after
    assert HOOK_PATH not in node.files
    assert "nova_core" in node.files[DRACUT_PATH]


def test_a_hook_that_lost_its_execute_bit_is_written_again() -> None:
    state, node = NouveauBlacklisted(), Node(World())
    list(converge(state, node))
    node.shells["mkinitramfs"] = (0, "initramfs-tools\n")
    observed = state.probe(node)
    plan = state.plan(observed)
    assert plan.fields == {"hook_executable"}
    (step,) = state.apply(observed, plan)
    assert isinstance(step, ops.PutText)
    assert (step.path, step.mode) == (HOOK_PATH, 0o755)


@pytest.mark.parametrize(
    ("world", "driver", "said"),
    [
        (World(found="no-tool"), None, "cannot be listed"),
        (World(tools=""), None, "neither initramfs-tools nor dracut"),
        (World(found=""), "nouveau", "built into this kernel"),
        (
            World(named="/etc/modprobe.d/aaa.conf:install nouveau /sbin/modprobe -i nouveau\n"),
            None,
            "/etc/modprobe.d/aaa.conf has an install line",
        ),
    ],
)
def test_what_cannot_be_settled_is_refused(world: World, driver: str | None, said: str) -> None:
    state = NouveauBlacklisted()
    assert said in (state.refuse(state.probe(Node(world, driver=driver))) or "")


@pytest.mark.parametrize(
    "line",
    [
        "/etc/modprobe.d/zzz.conf:install nouveau /sbin/modprobe -i nouveau",
        "/etc/modprobe.d/aaa.conf:install nouveau /bin/true",
        f"{CONF_PATH}:install nouveau /bin/false",
    ],
)
def test_install_lines_that_do_not_win_are_no_reason_to_refuse(line: str) -> None:
    state = NouveauBlacklisted()
    assert state.refuse(state.probe(Node(World(named=line)))) is None


def test_a_reboot_has_its_condition_and_where_nouveau_is_not_loaded_there_is_none() -> None:
    state = NouveauBlacklisted()
    plan = state.plan(nouveau.Observed(loaded=("nouveau",), tools=("dracut",)))
    assert (plan.disruption, plan.condition) == (
        Disruption.REBOOT,
        "a program keeps nouveau from being unloaded",
    )
    plan = state.plan(nouveau.Observed(tools=("dracut",)))
    assert plan.disruption is Disruption.NONE
    assert "nouveau is not loaded here: no reboot" in plan.notes


def test_files_that_ask_for_the_module_by_name_are_told() -> None:
    state = NouveauBlacklisted()
    plan = state.plan(state.probe(Node(World(named="/etc/modules:nouveau\n"))))
    assert plan.notes[0].startswith("/etc/modules requests the module by name")


def test_an_image_is_judged_by_its_files_not_by_the_kernel_that_runs() -> None:
    node = Node(World(), driver="nouveau", modules=["nouveau"])
    node.node_facts = NodeFacts(os_id="debian", os_version="12", pci=node.node_facts.pci)
    observed = NouveauBlacklisted().probe(node)
    assert (observed.loaded, observed.bound, observed.running) == ((), (), False)


def test_our_own_file_keeps_every_module_out_even_when_asked_for_by_name() -> None:
    config = modprobe.parse(nouveau.CONF_TEXT)
    assert set(nouveau.MODULES) == config.blacklist
    assert all(config.blocks(name) for name in nouveau.MODULES)


def test_what_earlier_steps_built_with_our_files_is_built_anew_once_they_are_gone(
    tmp_path: Path,
) -> None:
    """The driver's packages go first, and dpkg's trigger builds images for them."""
    node = Node(World())
    list(converge(NouveauBlacklisted(), node))
    absent = NouveauBlacklisted(ensure="absent")
    observed = replace(absent.probe(node), ours_in_initramfs=())
    last = list(absent.apply(observed, absent.plan(observed)))[-1]
    assert isinstance(last, ops.Run)
    boot, programs = tmp_path / "boot", tmp_path / "bin"
    boot.mkdir()
    programs.mkdir()
    old, new = (boot / f"initrd.img-{kernel}" for kernel in KERNELS[:2])
    for image in (old, new):
        image.write_text("etc/modprobe.d/gpustate-nouveau.conf\n")
    (tmp_path / "library").touch()
    os.utime(old, (1, 1))
    os.utime(tmp_path / "library", (2, 2))
    (programs / "lsinitramfs").write_text('#!/bin/sh\ncat "$1"\n')
    (programs / "update-initramfs").write_text(f"#!/bin/sh\necho $3 >>{tmp_path}/built\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    script = f"set -e; effect() {{ :; }}; R={tmp_path}; " + last.script().replace(
        "/boot/", f"{boot}/"
    )
    environment = {"PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", script], check=True, env=environment, timeout=20)
    assert (tmp_path / "built").read_text().split() == [KERNELS[1]]
