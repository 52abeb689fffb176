"""The ask for GPUs, its fragment run by a real sh against stub libraries."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from stublibraries import VERSION

from gpustate.core.queries import Answer
from gpustate.errors import ProbeError
from gpustate.probes.gpu_facts import NVML_FACTS, PYNVML, GpuFacts, NvmlFacts, parse
from gpustate_lab.sim import hardware, models, native


class World:
    """Folders that stand for a node; programs are found in ``bin`` alone."""

    def __init__(self, folder: Path, libraries: native.Libraries) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        timeout = shutil.which("timeout")
        assert timeout is not None
        (self.bin / "timeout").symlink_to(timeout)
        (self.bin / "python3").symlink_to(Path(sys.executable).resolve())
        lib = folder / "lib"
        lib.mkdir()
        shutil.copy(libraries.nvml, lib / "libnvidia-ml.so.1")
        self.smi = libraries.smi
        hardware.write(folder, "gpu1", models.parse_gpus("2xA100"), set())
        module = folder / "run/gpustate-lab/sys/module/nvidia"
        module.mkdir(parents=True)
        (module / "version").write_text(VERSION + "\n")
        (folder / "dev").mkdir()
        for name in ("ctl", "0", "1"):
            (folder / f"dev/nvidia{name}").touch()
        for file in (PYNVML, NVML_FACTS):
            path = folder / "lib" / file.digest / file.name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(file.load())

    def load(self) -> None:
        proc = self.folder / "proc/driver/nvidia"
        proc.mkdir(parents=True)
        (proc / "version").write_text(
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  x\n"
        )

    def query(self) -> NvmlFacts:
        query = GpuFacts()
        environment = {
            "PATH": str(self.bin),
            "PROC": str(self.folder / "proc"),
            "SHIPPED": str(self.folder / "lib"),
            "LD_LIBRARY_PATH": str(self.folder / "lib"),
            "GPUSTATE_LAB_ROOT": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            ["/bin/sh", "-c", query.script()],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        return query.parse(Answer(done.returncode, done.stdout))


@pytest.fixture
def world(tmp_path: Path, libraries: native.Libraries) -> World:
    return World(tmp_path, libraries)


def test_nvml_is_asked_by_the_nodes_own_python(world: World) -> None:
    world.load()
    facts = world.query()
    assert facts.works
    assert (facts.source, facts.driver_loaded, facts.driver_version) == ("nvml", True, VERSION)
    assert [gpu.architecture for gpu in facts.gpus] == ["ampere", "ampere"]


def test_without_a_loaded_driver_no_program_is_started(world: World) -> None:
    for program in world.bin.iterdir():
        program.unlink()
    facts = world.query()
    assert facts.driver_loaded is False
    assert facts.error in (9, 12)  # 9 where this machine has libnvidia-ml itself


def test_where_python_is_missing_nvidia_smi_is_asked(world: World) -> None:
    world.load()
    by_nvml = world.query()
    (world.bin / "python3").unlink()
    (world.bin / "nvidia-smi").symlink_to(world.smi)
    by_smi = world.query()
    assert by_smi.source == "nvidia-smi"
    for ours, theirs in zip(by_nvml.gpus, by_smi.gpus, strict=True):
        for field in (
            "uuid",
            "pci",
            "name",
            "serial",
            "memory_mib",
            "mig_current",
            "ecc",
            "remap_failed",
        ):
            assert getattr(ours, field) == getattr(theirs, field), field


def test_where_pythons_library_is_incomplete_nvidia_smi_is_asked(world: World) -> None:
    world.load()
    (world.bin / "python3").unlink()
    (world.bin / "python3").write_text("#!/bin/sh\nexit 69\n")
    (world.bin / "python3").chmod(0o755)
    (world.bin / "nvidia-smi").symlink_to(world.smi)
    assert world.query().source == "nvidia-smi"


def test_where_the_files_could_not_be_shipped_nvidia_smi_is_asked(world: World) -> None:
    world.load()
    shutil.rmtree(world.folder / "lib" / PYNVML.digest)
    (world.bin / "nvidia-smi").symlink_to(world.smi)
    assert world.query().source == "nvidia-smi"


@pytest.mark.parametrize("gpus", [2, 8, 16])
def test_nvml_is_given_more_time_the_more_gpus_it_has_to_initialise(
    world: World, gpus: int
) -> None:
    world.load()
    for number in range(gpus):
        (world.folder / f"proc/driver/nvidia/gpus/0000:{number:02x}:00.0").mkdir(parents=True)
    limits = world.folder / "limits"
    for program in ("timeout", "python3"):
        (world.bin / program).unlink()
        (world.bin / program).write_text(f'#!/bin/sh\necho "$3" >>{limits}\nexit 69\n')
        (world.bin / program).chmod(0o755)
    world.query()
    assert int(limits.read_text().split()[0]) == GpuFacts().timeout_s + 5 * gpus + 10


def test_nothing_to_ask_with_is_a_fact_of_its_own(world: World) -> None:
    world.load()
    (world.bin / "python3").unlink()
    assert world.query().error in (12, 127)  # 127 where this machine has libnvidia-ml itself


def test_it_ships_what_it_runs() -> None:
    script = GpuFacts().script()
    for file in GpuFacts().ships:
        assert f"{file.digest}/{file.name}" in script
    assert b"nvmlInit" in PYNVML.load()


@pytest.mark.parametrize(
    "text", ["", "nonsense", "nvml={}", "loaded=1\nnvml=[]\n", "loaded=1\nnvml={\n"]
)
def test_an_answer_that_makes_no_sense_is_a_probe_error(text: str) -> None:
    with pytest.raises(ProbeError):
        GpuFacts().parse(Answer(0, text.encode()))


def test_the_stand_in_is_a_node_without_a_driver() -> None:
    assert not GpuFacts().placeholder().works
    assert os.sep not in GpuFacts().placeholder().library


def test_what_is_told_of_a_report_is_one_line_whatever_the_node_said() -> None:
    with pytest.raises(ProbeError, match="report is invalid") as caught:
        parse('loaded=1\nnvml={"a\\u2028b\\u001b[2J": 1}\n')
    assert "a\\u2028b\\x1b[2J" in str(caught.value)
