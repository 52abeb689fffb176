"""The program that gives a node its layout, run by sh over the simulated nvidia-smi of the lab."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from migsim import Simulated, driver

from gpustate.core.queries import ShippedFile
from gpustate.formats import nvsmi
from gpustate.mig import builtin, layout, live, plan, saved
from gpustate_lab.sim import models
from gpustate_lab.sim.native import Libraries

PROGRAM = ShippedFile("restore", "gpustate.nodeside", "mig_restore.sh")
Restore = Callable[..., tuple[int, str]]


@pytest.fixture
def node(tmp_path: Path, libraries: Libraries) -> Iterator[Simulated]:
    with driver(tmp_path / "root", libraries) as made:
        yield made


@pytest.fixture
def restore(node: Simulated, tmp_path: Path) -> Restore:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "nvidia-smi").symlink_to(node.libraries.smi)
    (bin_ / "libnvidia-ml.so.1").symlink_to(node.libraries.nvml)
    (tmp_path / "restore").write_bytes(PROGRAM.load())

    def run(text: str, **variables: str) -> tuple[int, str]:
        (tmp_path / "layout").write_text(text)
        environment = {
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(bin_),
            "GPUSTATE_LAB_ROOT": str(node.root),
            **variables,
        }
        done = subprocess.run(
            ["sh", tmp_path / "restore", tmp_path / "layout"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def wanted(node: Simulated, name: str) -> str:
    gpus = live.in_order(node.report())
    made = plan.plan(builtin.config_file().config(name), live.layout(gpus, (), ()))
    return saved.after(made.gpus, {number: gpu.pci for number, gpu in enumerate(gpus)})


def counts(now: layout.Layout) -> list[dict[str, int]]:
    return [gpu.counts() for gpu in now.gpus]


@pytest.mark.parametrize("gpu", ["H100", "A100", "B200"])
def test_a_layout_is_made_and_made_once(node: Simulated, restore: Restore, gpu: str) -> None:
    node.describe(models.models()[gpu], models.models()[gpu])
    text = wanted(node, "all-balanced")
    code, said = restore(text)
    assert code == 0, said
    first = node.layout()
    assert [sum(one.values()) for one in counts(first)] == [4, 4]
    assert said.count("made ") == 16
    assert restore(text) == (0, "")
    assert node.layout() == first


def test_what_is_missing_after_an_interruption_is_made_in_its_place(
    node: Simulated, restore: Restore
) -> None:
    text = wanted(node, "all-balanced")
    restore(text)
    before = {(one.profile, one.start) for one in node.layout().gpus[0].instances}
    gone = node.layout().gpus[0].instances[1]
    node.carry_out(
        0, {"do": "destroy-compute-instance", "gpu_instance": gone.id, "compute_instance": 0}
    )
    node.carry_out(0, {"do": "destroy-gpu-instance", "gpu_instance": gone.id})
    last = node.layout().gpus[0].instances[-1]
    node.carry_out(
        0, {"do": "destroy-compute-instance", "gpu_instance": last.id, "compute_instance": 0}
    )
    assert restore(text)[0] == 0
    after = node.layout().gpus[0]
    assert {(one.profile, one.start) for one in after.instances} == before
    assert sum(after.counts().values()) == 4


def test_small_compute_instances_and_empty_ones_are_made(node: Simulated, restore: Restore) -> None:
    text = (
        "gpu 00000000:1B:00.0 on\n"
        "instance 00000000:1B:00.0 9 4 3g.40gb 2c.3g.40gb,1c.3g.40gb\n"
        "instance 00000000:1B:00.0 15 0 1g.20gb 1g.20gb\n"
        "instance 00000000:1B:00.0 19 3 1g.10gb -\n"
    )
    assert restore(text)[0] == 0
    gpu = node.layout().gpus[0]
    assert gpu.counts() == {"1c.3g.40gb": 1, "2c.3g.40gb": 1, "1g.20gb": 1}
    assert [(one.profile, one.start) for one in gpu.instances] == [
        ("1g.20gb", 0),
        ("1g.10gb", 3),
        ("3g.40gb", 4),
    ]
    assert restore(text) == (0, "")


def test_an_ampere_mode_that_nobody_can_reset_waits_and_says_so(
    node: Simulated, restore: Restore
) -> None:
    node.describe(models.models()["A100"], faults=frozenset({"no-reset:0"}))
    code, said = restore(wanted(node, "all-balanced"))
    assert code == 1
    assert "MIG mode on waits for a reset or a reboot" in said
    gpu = node.layout().gpus[0]
    assert (gpu.enabled, gpu.pending_mode, gpu.instances) == (False, True, ())
    node.reboot()
    assert node.layout().gpus[0].enabled is True, "an Ampere board keeps its mode"
    assert restore(wanted(node, "all-balanced"))[0] == 0


def test_an_ampere_gpu_that_is_in_use_is_not_reset(node: Simulated, restore: Restore) -> None:
    node.describe(models.models()["A100"])
    node.hold("cuda 0000:1b:00.0 1000")
    code, said = restore(wanted(node, "all-enabled"))
    assert (code, node.layout().gpus[0].enabled) == (1, False)
    assert "In use by another client" in said
    node.hold()
    assert restore(wanted(node, "all-enabled"))[0] == 0


def test_one_gpu_that_cannot_does_not_keep_the_others(node: Simulated, restore: Restore) -> None:
    node.describe(models.models()["H100"], models.models()["H100"])
    text = wanted(node, "all-3g.40gb")
    node.hold("cuda 0000:1b:00.0 1000")
    code, said = restore(text)
    assert (code, counts(node.layout())) == (1, [{}, {"3g.40gb": 2}])
    assert "00000000:1B:00.0: MIG mode on waits" in said or "1B" in said


@pytest.mark.parametrize("left_out", [False, True])
def test_a_lost_gpu_is_named_at_once_and_the_others_are_divided(
    node: Simulated, restore: Restore, left_out: bool
) -> None:
    node.describe(*[models.models()["H100"]] * 3)
    text = wanted(node, "all-3g.40gb")
    node.describe(*[models.models()["H100"]] * 3, faults=frozenset({"gpu-off-bus:1"}))
    lost = sorted({line.split()[1] for line in text.splitlines() if line.startswith("gpu ")})[1]
    started = time.monotonic()
    code, said = restore(text, lost=lost if left_out else "")
    assert time.monotonic() - started < 20, "the boot waits for it"
    assert (code, f"GPU {lost} does not tell" in said) == ((0, False) if left_out else (1, True))
    assert counts(live.layout(live.in_order(node.report()))) == [{"3g.40gb": 2}] * 2, said


def test_nothing_is_destroyed(node: Simulated, restore: Restore) -> None:
    restore(wanted(node, "all-7g.80gb"))
    code, said = restore(
        "gpu 00000000:1B:00.0 on\ninstance 00000000:1B:00.0 19 0 1g.10gb 1g.10gb\n"
    )
    assert code == 1
    assert "1g.10gb at 0 cannot be made: Failed to create GPU instances: Insufficient" in said
    assert counts(node.layout()) == [{"7g.80gb": 1}]


def test_a_file_of_a_layout_reads_back_as_what_was_asked(node: Simulated, restore: Restore) -> None:
    restore(wanted(node, "all-balanced"))
    gpus = live.in_order(node.report())
    addresses = {number: gpu.pci for number, gpu in enumerate(gpus)}
    text = saved.current_lines(node.layout().gpus[0], addresses[0])
    again = saved.config(text, addresses, "before")
    assert not plan.plan(again, node.layout())


def test_nvidia_smi_tells_the_same_instances_as_nvml(node: Simulated, restore: Restore) -> None:
    restore(
        "gpu 00000000:1B:00.0 on\n"
        "instance 00000000:1B:00.0 9 4 3g.40gb 2c.3g.40gb,1c.3g.40gb\n"
        "instance 00000000:1B:00.0 20 0 1g.10gb+me 1g.10gb+me\n"
    )
    environment = {
        "PATH": f"{node.root.parent / 'bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(node.root.parent / "bin"),
        "GPUSTATE_LAB_ROOT": str(node.root),
    }
    done = subprocess.run(
        ["sh", "-c", nvsmi.SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    assert nvsmi.parse(done.stdout).gpus[0].mig_instances == node.report().gpus[0].mig_instances
    assert len(node.report().gpus[0].mig_instances) == 2
