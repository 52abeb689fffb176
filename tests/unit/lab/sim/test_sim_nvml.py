"""The stub NVML, asked by the real nvidia-ml-py, and the nvidia-smi over it."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pynvml
import pytest
from stublibraries import VERSION

from gpustate_lab.sim.native import Builder, Libraries
from tests.unit.lab.sim.conftest import FakeRoot


@pytest.fixture
def nvml(libraries: Libraries, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """nvidia-ml-py that finds the stub where it looks for libnvidia-ml.so.1."""
    monkeypatch.setattr(pynvml, "CDLL", lambda _name: ctypes.CDLL(str(libraries.nvml)))
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    yield pynvml
    pynvml._nvmlGetFunctionPointer_cache.clear()


def smi(libraries: Libraries, *arguments: str) -> tuple[int, str]:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries.nvml.parent)}
    done = subprocess.run(
        [libraries.smi, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    return done.returncode, done.stdout


def test_nvidia_ml_py_reads_what_the_description_says(
    nvml: ModuleType, node_root: FakeRoot
) -> None:
    node_root.describe("1xT4,1xH100", ["remap-pending:1"])
    node_root.load()
    nvml.nvmlInit()
    assert nvml.nvmlSystemGetDriverVersion() == VERSION
    assert nvml.nvmlSystemGetNVMLVersion() == f"13.{VERSION}"
    assert nvml.nvmlSystemGetCudaDriverVersion() == 13000
    assert nvml.nvmlDeviceGetCount() == 2
    t4, h100 = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
    assert nvml.nvmlDeviceGetName(t4) == "Tesla T4"
    assert nvml.nvmlDeviceGetCudaComputeCapability(h100) == (9, 0)
    assert nvml.nvmlDeviceGetArchitecture(h100) == nvml.NVML_DEVICE_ARCH_HOPPER
    assert nvml.nvmlDeviceGetMemoryInfo(h100).total == 81559 << 20
    assert nvml.nvmlDeviceGetMemoryInfo(h100, nvml.nvmlMemory_v2).used == 0
    pci = nvml.nvmlDeviceGetPciInfo(h100)
    assert (pci.busId, pci.pciDeviceId) == ("00000000:43:00.0", 0x233010DE)
    assert nvml.nvmlDeviceGetRemappedRows(h100) == (0, 1, 1, 0)
    assert nvml.nvmlDeviceGetMigMode(h100) == [0, 0]
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetMigMode(t4)
    by_uuid = nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(h100))
    by_address = nvml.nvmlDeviceGetHandleByPciBusId("0000:43:00.0")
    assert nvml.nvmlDeviceGetIndex(by_uuid) == nvml.nvmlDeviceGetIndex(by_address) == 1
    nvml.nvmlShutdown()


def test_an_unloaded_or_other_module_is_told_apart(nvml: ModuleType, node_root: FakeRoot) -> None:
    node_root.describe("1xT4")
    with pytest.raises(nvml.NVMLError_DriverNotLoaded):
        nvml.nvmlInit()
    node_root.load("580.178.04")
    with pytest.raises(nvml.NVMLError_LibRmVersionMismatch):
        nvml.nvmlInit()


def test_a_gpu_falls_off_the_bus_under_a_running_process(
    nvml: ModuleType, node_root: FakeRoot
) -> None:
    node_root.describe("2xT4")
    node_root.load()
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(1)
    node_root.describe("2xT4", ["gpu-off-bus:1"])
    with pytest.raises(nvml.NVMLError_GpuIsLost):
        nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
    assert nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0)) == "Tesla T4"
    nvml.nvmlShutdown()


@pytest.mark.skipif(os.geteuid() != 0, reason="persistence mode is set as root")
def test_persistence_mode_is_kept_between_processes(
    nvml: ModuleType, libraries: Libraries, node_root: FakeRoot
) -> None:
    node_root.describe("2xT4")
    node_root.load()
    nvml.nvmlInit()
    nvml.nvmlDeviceSetPersistenceMode(nvml.nvmlDeviceGetHandleByIndex(1), 1)
    query = ("--query-gpu=persistence_mode", "--format=csv,noheader")
    assert smi(libraries, *query) == (0, "Disabled\nEnabled\n")
    assert smi(libraries, "-pm", "0")[0] == 0
    assert smi(libraries, *query) == (0, "Disabled\nDisabled\n")
    nvml.nvmlShutdown()


def test_only_gpus_whose_node_exists_are_seen(libraries: Libraries, node_root: FakeRoot) -> None:
    node_root.describe("4xT4")
    node_root.load()
    node_root.write("dev/nvidiactl", "")
    node_root.write("dev/nvidia2", "")
    code, text = smi(libraries, "-L")
    assert (code, text.count("Tesla T4")) == (0, 1)


def test_the_fabric_is_complete_once_a_manager_of_the_same_version_runs(
    libraries: Libraries, node_root: FakeRoot
) -> None:
    query = ("-i", "0", "--query-gpu=fabric.state,fabric.status", "--format=csv,noheader")
    node_root.describe("8xH100")
    node_root.load()
    assert smi(libraries, *query)[1] == "In Progress, [N/A]\n"
    holder = f"run/gpustate-lab/holders/{os.getpid()}"
    node_root.write(holder, "fabric 570.211.01 0\n")
    assert smi(libraries, *query)[1] == "In Progress, [N/A]\n"
    node_root.write(holder, f"fabric {VERSION} 0\n")
    assert smi(libraries, *query)[1] == "Completed, Success\n"
    node_root.describe("8xH100", ["fabric-stuck"])
    assert smi(libraries, *query)[1] == "In Progress, [N/A]\n"


@pytest.mark.parametrize(
    ("faults", "loaded", "arguments", "code", "said"),
    [
        ((), None, (), 9, "couldn't communicate with the NVIDIA driver"),
        ((), "570.211.01", (), 18, "Driver/library version mismatch\nNVML library version: 580.65"),
        (("gpu-off-bus:1",), VERSION, (), 15, "GPU1: 0000:43:00.0: GPU is lost"),
        ((), VERSION, ("--query-gpu=nope", "--format=csv"), 2, '"nope" is not a valid field'),
        ((), VERSION, ("--frobnicate",), 2, "Invalid combination of input arguments"),
        ((), VERSION, ("-i", "7", "-L"), 6, "No devices were found"),
        ((), VERSION, (), 0, "Driver Version: 580.65.06"),
        ((), VERSION, ("-q",), 0, "Attached GPUs                             : 2"),
    ],
)
def test_nvidia_smi_ends_as_the_real_one(
    libraries: Libraries,
    node_root: FakeRoot,
    faults: tuple[str, ...],
    loaded: str | None,
    arguments: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    node_root.describe("2xT4", faults)
    if loaded is not None:
        node_root.load(loaded)
    observed = smi(libraries, *arguments)
    assert observed[0] == code
    assert said in observed[1]


def test_nvidia_smi_without_its_library_ends_with_12(libraries: Libraries, tmp_path: Path) -> None:
    done = subprocess.run(
        [libraries.smi],
        capture_output=True,
        text=True,
        check=False,
        env={"LD_LIBRARY_PATH": str(tmp_path)},
    )
    assert done.returncode == 12
    assert "couldn't find libnvidia-ml.so" in done.stdout


def test_csv_carries_units_unless_asked_not_to(libraries: Libraries, node_root: FakeRoot) -> None:
    node_root.describe("1xT4")
    node_root.load()
    query = "--query-gpu=memory.total,power.limit,mig.mode.current"
    assert smi(libraries, query, "--format=csv")[1].splitlines() == [
        "memory.total [MiB], power.limit [W], mig.mode.current",
        "15360 MiB, 70.00 W, [N/A]",
    ]
    assert smi(libraries, query, "--format=csv,noheader,nounits")[1] == "15360, 70.00, [N/A]\n"


def test_the_libraries_run_on_debian_12(builder: Builder, libraries: Libraries) -> None:
    """Debian 12 has glibc 2.36; a symbol of a newer one would keep the node from loading it."""
    for path in (libraries.nvml, libraries.cuda, libraries.smi, builder.workload()):
        listed = subprocess.run(["objdump", "-T", path], capture_output=True, text=True, check=True)
        versions = re.findall(r"GLIBC_2\.([0-9]+)", listed.stdout)
        assert versions
        assert max(map(int, versions)) <= 36
