"""GPUs are divided by the machine that boots an image: its program, run by sh over the lab's simulated driver."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from migsim import Simulated, driver

from gpustate import ops
from gpustate.bake import first_boot
from gpustate.core.inventory import InventoryNode
from gpustate.core.queries import ShippedFile
from gpustate.mig import builtin, live, saved
from gpustate.mig import plan as planner
from gpustate.states.mig import MigLayoutApplied, scripts
from gpustate.states.mig.firstboot import layout_lines
from gpustate.states.mig.observed import UNIT_PATH, Observed
from gpustate_lab.sim import models
from gpustate_lab.sim.native import Libraries

IMAGE = Observed({}, {}, image=True)
RESTORE = ShippedFile("restore", "gpustate.nodeside", "mig_restore.sh").load().decode()
Boot = Callable[[MigLayoutApplied], str]


@pytest.fixture
def node(tmp_path: Path, libraries: Libraries) -> Iterator[Simulated]:
    with driver(tmp_path / "root", libraries) as made:
        yield made


@pytest.fixture
def boot(node: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Boot:
    """Boots an image of the machine: what the first boot says of itself at its end."""
    bin_, g = tmp_path / "bin", tmp_path / "g"
    bin_.mkdir()
    (bin_ / "nvidia-smi").symlink_to(node.libraries.smi)
    (bin_ / "libnvidia-ml.so.1").symlink_to(node.libraries.nvml)
    (bin_ / "systemctl").write_text(
        f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\ncase $1 in is-*) exit 1 ;; esac\n'
    )
    (bin_ / "systemctl").chmod(0o755)
    monkeypatch.setattr(first_boot, "UNIT_LINK", str(tmp_path / "link"))

    def run(state: MigLayoutApplied) -> str:
        for gpu in live.in_order(node.report()):
            place = tmp_path / "sys/bus/pci/devices" / gpu.pci
            place.mkdir(parents=True, exist_ok=True)
            (place / "device").write_text(f"0x{gpu.device_id}\n")
            (place / "driver").unlink(missing_ok=True)
            (place / "driver").symlink_to("../../drivers/nvidia")
        divide, nodes = state.first_boot(replace(IMAGE, folder=f"{g}/mig"))
        assert isinstance(divide, ops.Run)
        assert nodes.label == scripts.nodes().label  # /dev is this machine's
        here = replace(divide, text=divide.text.replace(UNIT_PATH, f"{tmp_path}/unit"))
        image = InventoryNode(
            "image",
            vars={"gpustate_state_folder": str(g), "gpustate_sys_root": str(tmp_path / "sys")},
        )
        files, work = first_boot.compiled([(state, (here,))], [state], image)
        assert work == ("mig: apply the MIG layout of this machine",)
        for path, text in files.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text)
        environment = {
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(bin_),
            "GPUSTATE_LAB_ROOT": str(node.root),
        }
        subprocess.run(
            ["sh", g / "firstboot/run"],
            env=environment,
            capture_output=True,
            check=False,
            timeout=120,
        )
        return (g / "firstboot/result").read_text().strip()

    return run


@pytest.mark.parametrize("gpu", ["H100", "A100", "B200"])
def test_what_the_first_boot_leaves_is_what_an_apply_would_leave(
    node: Simulated, boot: Boot, tmp_path: Path, gpu: str
) -> None:
    node.describe(models.models()[gpu], models.models()[gpu])
    state = MigLayoutApplied("all-balanced")
    assert boot(state) == "done"
    gpus = live.in_order(node.report())
    config = builtin.config_file().config("all-balanced")
    made = planner.plan(config, live.layout(gpus, (), ()))
    assert not made
    addresses = {number: one.pci for number, one in enumerate(gpus)}
    assert (tmp_path / "g/mig/layout").read_text() == saved.after(made.gpus, addresses)
    assert (tmp_path / "g/mig/restore").read_text() == RESTORE
    assert (tmp_path / "unit").read_text() == scripts.unit_text(f"{tmp_path}/g/mig")
    assert "--no-reload enable gpustate-mig.service" in (tmp_path / "calls").read_text()
    before = saved.config((tmp_path / "g/mig/before").read_text(), addresses, "before")
    assert [entry.enabled for entry in before.entries] == [False, False]
    now = node.layout()
    assert boot(state) == "done", "twice does nothing"
    assert node.layout() == now


def test_an_image_without_mig_ends_mig_mode_and_leaves_nothing(
    node: Simulated, boot: Boot, tmp_path: Path
) -> None:
    node.describe(models.models()["H100"])
    assert boot(MigLayoutApplied("all-balanced")) == "done"
    for left in ("g/mig/layout", "g/mig/restore", "g/mig/before"):
        (tmp_path / left).unlink()
    node.reboot()
    assert boot(MigLayoutApplied("all-disabled")) == "done"
    assert node.layout().gpus[0].enabled is False
    assert not (tmp_path / "g/mig/layout").exists()


@pytest.mark.parametrize("lost", [False, True])
def test_gpus_are_told_apart_by_their_number(
    node: Simulated, boot: Boot, tmp_path: Path, lost: bool
) -> None:
    file = tmp_path / "parted.yaml"
    file.write_text(
        "version: v1\nmig-configs:\n  first:\n  - {devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 2}}\n"
        "  - {devices: [1], mig-enabled: false}\n"
    )
    if lost:  # the driver has it, and NVML does not
        first = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
        first.mkdir(parents=True)
        (first / "driver").symlink_to("../../drivers/nvidia")
    node.describe(*[models.models()["H100"]] * (1 if lost else 2))
    assert boot(MigLayoutApplied("first", file=str(file))) == "done"
    assert [gpu.counts() for gpu in node.layout().gpus] == ([{}] if lost else [{"3g.40gb": 2}, {}])


def test_a_gpu_that_cannot_be_divided_so_fails_the_first_boot_and_is_named(
    node: Simulated, boot: Boot
) -> None:
    node.describe(models.models()["H100"])
    result = boot(MigLayoutApplied("all-1g.5gb"))
    assert result.startswith("failed: mig: apply the MIG layout of this machine: ")
    assert "GPU 00000000:1B:00.0 (0x2330) cannot be divided as all-1g.5gb says" in result
    assert node.layout().gpus[0].enabled is False


def test_filters_by_board_are_left_to_an_apply(tmp_path: Path) -> None:
    file = tmp_path / "parted.yaml"
    file.write_text(
        'version: v1\nmig-configs:\n  b:\n  - {device-filter: ["0x233010DE:0x16C110DE"], devices: all, mig-enabled: false}\n'
    )
    state = MigLayoutApplied("b", file=str(file))
    assert list(state.first_boot(IMAGE)) == []
    assert list(MigLayoutApplied("all-balanced", ensure="absent").first_boot(IMAGE)) == []
    lines = layout_lines(builtin.config_file().config("all-1g.10gb"))
    assert lines is not None
    assert lines["*", "2330"].count("instance @ 19 ") == 7
