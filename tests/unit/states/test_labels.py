"""The feature file follows what NVML says, and goes again."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpustate import NodeFacts, PciGpu, PolicyError
from gpustate.core.file_queries import FileStat
from gpustate.core.policy import build
from gpustate.core.queries import Answer
from gpustate.errors import ProbeError, RefusedError
from gpustate.formats.quarantine import Entry, Quarantine
from gpustate.probes.gpu_facts import Gpu, NvmlFacts
from gpustate.probes.gpu_labels import Machine, MachineQuery
from gpustate.states.labels import CONFIG_PATH, FOLDER, PATH, GpuLabelsWritten
from gpustate.testing import FakeNode, converge

PCI = PciGpu("0000:1b:00.0", "2330", "030200", "nvidia")
GPU = Gpu(
    0,
    "GPU-1",
    "0000:1b:00.0",
    0,
    "NVIDIA H100 80GB HBM3",
    memory_mib=81559,
    compute_capability="9.0",
)
NVML = NvmlFacts(
    source="nvml", driver_loaded=True, driver_version="580.65.06", cuda_version="13.0", gpus=(GPU,)
)
SHARED = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"


def node(nvml: NvmlFacts = NVML, *, machine: Machine | None = None, **files: str) -> FakeNode:
    return FakeNode(
        facts=NodeFacts(systemd=True, pci=(PCI,)),
        files={name.replace("__", "/"): text for name, text in files.items()},
        answers={"GpuFacts": nvml, "MachineQuery": machine or Machine("DGXH100", ())},
        runs={
            "with the time": lambda fake: fake.files.update({PATH: "nvidia.com/gfd.timestamp=1\n"})
        },
    )


def test_sharing_comes_from_the_device_plugin_s_configuration_on_the_node() -> None:
    fake = node()
    fake.files[CONFIG_PATH] = SHARED
    list(converge(GpuLabelsWritten(), fake))
    assert "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3-SHARED\n" in fake.files[PATH]
    fake.files[CONFIG_PATH] = SHARED.replace("replicas", "replica")
    assert "did you mean replicas" in str(GpuLabelsWritten().refuse(GpuLabelsWritten().probe(fake)))


def test_labels_are_not_written_of_fewer_gpus_than_the_driver_has_unless_one_is_in_quarantine() -> (
    None
):
    fake = node()
    list(converge(GpuLabelsWritten(), fake))
    before = fake.files[PATH]
    other = replace(PCI, address="0000:43:00.0")
    fake.node_facts = replace(fake.node_facts, pci=(PCI, other))
    state = GpuLabelsWritten()
    observed = state.probe(fake)
    assert "NVML sees 1 of the 2 GPUs that the driver has on PCI, not 0000:43:00.0" in str(
        state.refuse(observed)
    )
    assert not state.plan(observed)
    entry = Entry("", "0000:43:00.0", "RMA", 200, 50, "somebody")
    fake.answers["ExcludedGpusQuery"] = Quarantine((entry,), 100)
    assert state.refuse(state.probe(fake)) is None
    fake.answers.pop("ExcludedGpusQuery")
    fake.node_facts = replace(fake.node_facts, pci=(PCI, replace(other, driver="vfio-pci")))
    assert state.refuse(state.probe(fake)) is None
    assert fake.files[PATH] == before


def test_a_configuration_s_path_that_is_relative_is_an_error() -> None:
    with pytest.raises(PolicyError, match="config_path"):
        build(GpuLabelsWritten, {"config_path": "rel"})


def test_the_time_in_the_file_is_no_drift() -> None:
    fake = node()
    list(converge(GpuLabelsWritten(), fake))
    fake.files[PATH] += "nvidia.com/gfd.timestamp=1700000000\n"
    assert not GpuLabelsWritten(timestamp=True).plan(GpuLabelsWritten(timestamp=True).probe(fake))
    fake.files[PATH] = ""
    state = GpuLabelsWritten(timestamp=True)
    observed = state.probe(fake)
    (step,) = state.apply(observed, state.plan(observed))
    assert "gfd.timestamp" in step.script()


def test_gfd_s_own_file_beside_it_is_refused() -> None:
    fake = node()
    fake.files[f"{FOLDER}/gfd"] = "nvidia.com/gpu.product=X\n"
    fake.files[f"{FOLDER}/.hidden"] = "nvidia.com/gpu.product=X\n"
    assert f"{FOLDER}/gfd has labels" in str(
        GpuLabelsWritten().refuse(GpuLabelsWritten().probe(fake))
    )


def test_what_is_no_file_at_its_place_is_refused() -> None:
    fake = node()
    fake.answers["FileStats"] = {PATH: FileStat("link", 0o777, 0, 0, 9, target="/nowhere")}
    with pytest.raises(RefusedError, match="gpustate is a symbolic link to /nowhere"):
        GpuLabelsWritten().probe(fake)


def test_a_driver_that_does_not_answer_leaves_the_file_alone() -> None:
    fake = node(NvmlFacts(error=9, error_text="Driver Not Loaded"))
    fake.files[PATH] = "nvidia.com/gpu.count=1\n"
    state = GpuLabelsWritten()
    observed = state.probe(fake)
    assert "Driver Not Loaded (9)" in str(state.refuse(observed))
    assert not state.plan(observed)


def test_a_label_that_kubernetes_would_refuse_is_left_out_and_named() -> None:
    fake = node(machine=Machine("To be filled by O.E.M.", ()))
    first, _ = converge(GpuLabelsWritten(), fake)
    assert "gpu.machine" not in fake.files[PATH]
    assert any("O.E.M." in note for note in first.notes)


def test_a_node_without_gpus_and_an_image_get_no_file() -> None:
    none = node(NvmlFacts(error=12))
    none.node_facts = NodeFacts(systemd=True)
    assert not GpuLabelsWritten().plan(GpuLabelsWritten().probe(none))
    image = node()
    image.shells |= {"python3": (0, "")}
    image.node_facts = replace(image.node_facts, image=True)
    plan = GpuLabelsWritten().plan(GpuLabelsWritten().probe(image))
    assert not plan
    assert "first apply on the machine" in plan.notes[0]


def test_the_machine_is_read_from_what_the_node_printed() -> None:
    query = MachineQuery()
    config = bytes(256).hex(" ")
    said = Answer(0, f"machine=PowerEdge XE9680\ndevices=1\n {config}\n".encode())
    assert query.parse(said) == Machine("PowerEdge XE9680", ())
    assert query.parse(Answer(0, b"devices=1\n 00\n")) == Machine(None, None)
    for torn in (b"devices=1\n zz\n", b"machine=x\n"):
        with pytest.raises(ProbeError):
            query.parse(Answer(0, torn))


def test_the_configuration_of_each_device_is_read(tmp_path: Path) -> None:
    for name, vendor, size in (("0", "0x10de", 4096), ("1", "0x8086", 256), ("2", "0x10de", 256)):
        device = tmp_path / "bus/pci/devices" / name
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "config").write_bytes(bytes(size))

    def looked() -> Machine:
        done = subprocess.run(
            ["sh", "-c", MachineQuery().script()],
            env={"SYS": str(tmp_path), "PATH": os.environ["PATH"]},
            capture_output=True,
            check=False,
        )
        return MachineQuery().parse(Answer(done.returncode, done.stdout))

    assert looked() == Machine(None, ())
    (tmp_path / "bus/pci/devices/2/config").write_bytes(bytes(64))
    assert looked() == Machine(None, None)


@pytest.mark.parametrize("timestamp", [False, True])
def test_a_file_that_only_root_can_read_is_written_again(timestamp: bool) -> None:
    fake = node()
    state = GpuLabelsWritten(timestamp=timestamp)
    list(converge(GpuLabelsWritten(), fake))
    fake.modes[PATH] = 0o600
    plan = state.plan(state.probe(fake))
    assert plan.fields == {"text"}
    assert "mode 0600" in str(plan.changes[0].before)
    (step,) = state.apply(state.probe(fake), plan)
    assert f"put {PATH} 0644" in step.script()
