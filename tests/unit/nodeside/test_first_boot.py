"""What a machine computes at its first boot is what an apply would write, and its modules need only Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpustate import NodeFacts, PciGpu
from gpustate.core.state import AnyState
from gpustate.formats.slurm import Cpu
from gpustate.nodeside import first_boot
from gpustate.ops import Run
from gpustate.ops import first_boot as settling
from gpustate.probes.gpu_facts import Gpu, NvmlFacts
from gpustate.probes.gpu_labels import Machine
from gpustate.probes.slurm_gpus import Places
from gpustate.states.labels import CONFIG_PATH, FOLDER, PATH, GpuLabelsWritten
from gpustate.states.slurm import SlurmGresConfigured
from gpustate.testing import FakeNode

GPU = Gpu(
    *(0, "GPU-1", "0000:1b:00.0", 0, "NVIDIA H100 80GB HBM3"),
    memory_mib=81559,
    compute_capability="9.0",
)
NVML = NvmlFacts(
    source="nvml", driver_loaded=True, driver_version="580.65.06", cuda_version="13.0", gpus=(GPU,)
)
SHARED = "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 4}]}}\n"
DROP_IN = "/etc/systemd/system/slurmd.service.d/gpustate.conf"
FOREIGN = "# mine\nNodeName=other Name=gpu File=/dev/nvidia0\n"


def machine(*, image: bool = False, **files: str) -> FakeNode:
    """A machine with a GPU; ``image``: what it boots, without."""
    return FakeNode(
        facts=NodeFacts(
            systemd=not image,
            image=image,
            pci=() if image else (PciGpu("0000:1b:00.0", "2330", "030200", "nvidia"),),
        ),
        files={name.replace("__", "/"): text for name, text in files.items()},
        shell={"slurmd": (0, "slurmd\n"), "python3": (0, "able\n")},
        answers={
            "GpuFacts": NvmlFacts(error=12) if image else NVML,
            "MachineQuery": Machine("DGXH100", ()),
            "SlurmPlacesQuery": Places(
                "" if image else "n1", (Cpu(0, 0, 0, 0),), {"0000:1b:00.0": "0"}
            ),
        },
    )


def settled(state: AnyState, files: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """What the image tells the program of the first boot: its word and its options."""
    image = machine(image=True)
    image.files |= files
    (step,) = state.first_boot(state.probe(image))
    assert isinstance(step, Run)
    line = next(line for line in step.text.splitlines() if "first_boot.py" in line)
    what, options = line.partition('first_boot.py" ')[2].split(" ", 1)
    return what, json.loads(options[1 : options.rindex("'")])


@pytest.mark.parametrize(
    ("state", "files", "written"),
    [
        (GpuLabelsWritten(), {}, [PATH]),
        (GpuLabelsWritten(), {CONFIG_PATH: SHARED}, [PATH]),
        (GpuLabelsWritten(mig_strategy="mixed"), {CONFIG_PATH: SHARED}, [PATH]),
        (
            SlurmGresConfigured(),
            {},
            ["/etc/slurm/gres.conf", "/etc/slurm/gpustate-node.conf", DROP_IN],
        ),
        (
            SlurmGresConfigured(shards=4, features=("ib",), node_name="gpu-7"),
            {"/etc/slurm/gres.conf": FOREIGN},
            ["/etc/slurm/gres.conf", "/etc/slurm/gpustate-node.conf", DROP_IN],
        ),
        (SlurmGresConfigured(node_file=False), {}, ["/etc/slurm/gres.conf", DROP_IN]),
        (
            SlurmGresConfigured(node_file=False, job_mapping="/jobs"),
            {},
            [
                "/etc/slurm/gres.conf",
                "/etc/slurm/prolog.d/gpustate-jobs.sh",
                "/etc/slurm/epilog.d/gpustate-jobs.sh",
                DROP_IN,
            ],
        ),
    ],
)
def test_an_apply_finds_nothing_to_do_after_the_first_boot(
    state: AnyState, files: dict[str, str], written: list[str]
) -> None:
    what, options = settled(state, files)
    node = machine()
    node.files |= files
    assert state.plan(state.probe(node))
    texts = [text for text in getattr(first_boot, what)(node, options) if text is not None]
    node.files |= dict(zip(written, texts, strict=True))
    assert not state.plan(state.probe(node))


def test_a_machine_without_gpus_gets_no_file_and_rivals_are_not_written_over() -> None:
    what, options = settled(GpuLabelsWritten(), {})
    none = machine(image=True)
    none.node_facts = NodeFacts(systemd=True)
    assert list(getattr(first_boot, what)(none, options)) == [None]
    rival = machine()
    rival.files[f"{FOLDER}/gfd"] = "nvidia.com/gpu.product=x\n"
    with pytest.raises(SystemExit, match="two writers would take turns"):
        list(getattr(first_boot, what)(rival, options))
    what, options = settled(SlurmGresConfigured(), {})
    taken = machine()
    taken.files["/etc/slurm/gres.conf"] = "NodeName=n1 Name=gpu File=/dev/nvidia0\n"
    with pytest.raises(SystemExit, match="already describes GPUs"):
        list(getattr(first_boot, what)(taken, options))


@pytest.mark.parametrize(
    "state", [GpuLabelsWritten(), SlurmGresConfigured()], ids=["labels", "slurm"]
)
def test_an_image_without_a_python_that_can_leaves_it_to_an_apply(state: AnyState) -> None:
    image = machine(image=True)
    image.shells |= {"python3": (0, "")}
    assert list(state.first_boot(state.probe(image))) == []


def test_an_image_whose_sharing_cannot_be_read_leaves_its_labels_to_an_apply() -> None:
    broken = machine(image=True)
    broken.files[CONFIG_PATH] = "sharing: {timeSlicing: {resources: 4}}"
    assert list(GpuLabelsWritten().first_boot(GpuLabelsWritten().probe(broken))) == []
    assert "first apply" in GpuLabelsWritten().plan(GpuLabelsWritten().probe(broken)).notes[0]
    assert (
        list(
            GpuLabelsWritten(ensure="absent").first_boot(
                GpuLabelsWritten().probe(machine(image=True))
            )
        )
        == []
    )


@pytest.mark.parametrize(
    "state", [GpuLabelsWritten(timestamp=True), SlurmGresConfigured()], ids=["labels", "slurm"]
)
def test_the_step_runs_with_python_alone_and_writes_nothing_without_gpus(
    tmp_path: Path, state: AnyState
) -> None:
    (step,) = state.first_boot(state.probe(machine(image=True)))
    assert isinstance(step, Run)
    text = 'fail() { echo "$*"; exit 1; }\nput() { echo "put $1"; cat; }\n' + step.text
    script = tmp_path / "step"
    script.write_text(text)
    for name in ("proc", "sys", "run"):
        (tmp_path / name).mkdir()
    done = subprocess.run(
        ["sh", script],
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "R": str(tmp_path / "run"),
            "G": str(tmp_path),
            "PROC": str(tmp_path / "proc"),
            "SYS": str(tmp_path / "sys"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list((tmp_path / "run").iterdir()) == []


def test_equal_modules_give_an_equal_step() -> None:
    settling._bundle.cache_clear()
    one = settling.compute_files("labels", "{}", {}, "write").text
    settling._bundle.cache_clear()
    assert settling.compute_files("labels", "{}", {}, "write").text == one
    assert len(one) < 200_000


def test_a_query_of_the_machine_runs_once(tmp_path: Path) -> None:
    here = first_boot.LocalNode(str(tmp_path))
    (tmp_path / "x").write_text("one")
    assert here.read_text(str(tmp_path / "x")) == "one"
    (tmp_path / "x").write_text("two")
    assert here.read_text(str(tmp_path / "x")) == "one"
    assert replace(here.facts(), image=False).image is False
