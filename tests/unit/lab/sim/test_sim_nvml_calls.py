"""Every NVML function that NVIDIA's programs bind, and what those with a meaning answer."""

from __future__ import annotations

import ctypes
import inspect
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pynvml
import pytest

from gpustate_lab import programs
from gpustate_lab.sim import hardware, models
from gpustate_lab.sim.native import PAYLOAD, Libraries
from tests.unit.lab.sim.conftest import FakeRoot

GO_MODULES = (
    "device-plugin",
    "container-toolkit-1.17.8",
    "container-toolkit-1.18.2",
    "container-toolkit-1.20.1",
)
GO_NVML = "github.com/NVIDIA/go-nvml"


@pytest.fixture
def nvml(
    libraries: Libraries, node_root: FakeRoot, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """nvidia-ml-py on a node with a full H100 board, initialized."""
    node_root.describe("8xH100")
    node_root.load()
    monkeypatch.setattr(pynvml, "CDLL", lambda _name: ctypes.CDLL(str(libraries.nvml)))
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlInit()
    yield pynvml
    pynvml.nvmlShutdown()
    pynvml._nvmlGetFunctionPointer_cache.clear()


def exported(libraries: Libraries) -> set[str]:
    lines = subprocess.run(
        ["nm", "-D", "--defined-only", str(libraries.nvml)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return {line.split()[-1] for line in lines}


def missing_of(names: set[str], libraries: Libraries) -> list[str]:
    assert len(names) > 300, "the binding names more functions than that"
    return sorted(names - exported(libraries))


def test_every_function_that_nvidia_ml_py_binds_exists(libraries: Libraries) -> None:
    source = inspect.getsource(pynvml)
    names = set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', source))
    assert missing_of(names, libraries) == []


@pytest.mark.parametrize("module", GO_MODULES)
def test_every_function_that_go_nvml_binds_exists(libraries: Libraries, module: str) -> None:
    folder = go_module(module, GO_NVML)
    if folder is None:
        pytest.skip(f"{GO_NVML} is in Go's module cache once the lab has built {module}")
    names: set[str] = set()
    for file in (folder / "pkg" / "nvml").glob("*.go"):
        text = file.read_text(encoding="utf-8")
        names |= set(re.findall(r"\bC\.(nvml[A-Z]\w*)\(", text))
        names |= set(re.findall(r'LookupSymbol\("(nvml[A-Z]\w*)"\)', text))
    assert missing_of(names, libraries) == []


def go_module(module: str, path: str) -> Path | None:
    """Where Go keeps the version of a dependency that a pinned module requires, if it does."""
    go = programs._go_on_path()
    if go is None:
        return None
    required = (programs.module(module).folder / "go.mod").read_text()
    version = re.search(rf"{re.escape(path)} (v\S+)", required)
    assert version is not None
    argv = [go, "env", "GOMODCACHE"]
    cache = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    escaped = re.sub(r"[A-Z]", lambda letter: f"!{letter[0].lower()}", path)
    folder = Path(cache, f"{escaped}@{version[1]}")
    return folder if folder.is_dir() else None


def test_no_function_is_both_unsupported_and_written() -> None:
    folder = PAYLOAD / "lib"
    names = re.findall(
        r"^UNSUPPORTED\((\w+)\)$", (folder / "nvml_unsupported.def").read_text(), re.M
    )
    assert names == sorted(set(names))
    written = "".join(file.read_text() for file in folder.glob("nvml*.c"))
    assert [name for name in names if re.search(rf"\b{name}\(", written)] == []


def test_an_unsupported_function_says_so_and_needs_initialized_nvml(
    libraries: Libraries, nvml: ModuleType
) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetFanSpeed(handle)
    script = f"import ctypes; print(ctypes.CDLL({str(libraries.nvml)!r}).nvmlVgpuInstanceGetUUID())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert int(done.stdout) == nvml.NVML_ERROR_UNINITIALIZED


@pytest.mark.parametrize("key", models.models())
def test_what_nvml_says_of_a_board_is_what_the_model_says(
    nvml: ModuleType, node_root: FakeRoot, key: str
) -> None:
    node_root.describe(f"1x{key}")
    model = models.models()[key]
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM) == model.max_sm_clock_mhz
    assert nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM) == model.max_memory_clock_mhz
    assert nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) < model.max_sm_clock_mhz
    assert nvml.nvmlDeviceGetSupportedMemoryClocks(gpu) == [model.max_memory_clock_mhz]
    assert nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) == model.power_limit_w * 1000
    assert nvml.nvmlDeviceGetNumGpuCores(gpu) % model.sm_count == 0
    assert nvml.nvmlDeviceGetBusType(gpu) == nvml.NVML_BUS_TYPE_PCIE
    info = nvml.nvmlPciInfoExt_v1_t(version=nvml.nvmlPciInfoExt_v1)
    nvml.nvmlDeviceGetPciInfoExt(gpu, ctypes.byref(info))
    assert (info.pciDeviceId >> 16, info.baseClass) == (int(model.device_id, 16), 3)
    assert model.device_id.upper() in nvml.nvmlDeviceGetBoardPartNumber(gpu)
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) > 0
    assert nvml.nvmlDeviceGetMemoryErrorCounter(gpu, 1, 1, 2) == 0
    retires = model.nvml_architecture < nvml.NVML_DEVICE_ARCH_AMPERE
    if retires:
        assert nvml.nvmlDeviceGetRetiredPages(gpu, 0) == []
    else:
        with pytest.raises(nvml.NVMLError_NotSupported):
            nvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu)
        assert nvml.nvmlDeviceGetRowRemapperHistogram(gpu).none == 0


def test_gpus_of_one_numa_node_are_nearer_than_the_others(nvml: ModuleType) -> None:
    gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(8)]
    description = hardware.describe("node1", models.parse_gpus("8xH100"), set())["gpus"]
    for one, gpu in enumerate(gpus):
        near = [
            index
            for index, other in enumerate(description)
            if index != one and other["numa_node"] == description[one]["numa_node"]
        ]
        found = nvml.nvmlDeviceGetTopologyNearestGpus(gpu, nvml.NVML_TOPOLOGY_NODE)
        assert [nvml.nvmlDeviceGetIndex(other) for other in found] == near
        far = [nvml.nvmlDeviceGetTopologyCommonAncestor(gpu, other) for other in gpus]
        assert far.count(nvml.NVML_TOPOLOGY_NODE) == len(near) == 3
        assert far[one] == nvml.NVML_TOPOLOGY_INTERNAL
    assert list(nvml.nvmlDeviceGetMemoryAffinity(gpus[7], 1, 0)) == [1 << 1]


def test_every_link_of_a_board_leads_to_one_of_its_switches(
    nvml: ModuleType, node_root: FakeRoot
) -> None:
    switches = {
        f"0000{switch['pci_address'].upper()}"
        for switch in hardware.describe("node1", models.parse_gpus("8xH100"), set())["nvswitches"]
    }
    one, other = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
    far = [nvml.nvmlDeviceGetNvLinkRemotePciInfo(one, link) for link in range(18)]
    assert {info.busId for info in far} == switches
    assert nvml.nvmlDeviceGetNvLinkVersion(one, 0) == 6  # NVML_NVLINK_VERSION_4_0
    assert nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == 0
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetNvLinkRemotePciInfo(one, 18)
    node_root.describe("2xH100PCIE")
    assert (
        nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        == nvml.NVML_P2P_STATUS_NOT_SUPPORTED
    )
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetNvLinkVersion(one, 0)


# --- events ---------------------------------------------------------------------------------------


def watch(nvml: ModuleType) -> ctypes.c_void_p:
    """An event set with the Xids of all GPUs."""
    events = nvml.nvmlEventSetCreate()
    for index in range(8):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        assert nvml.nvmlDeviceGetSupportedEventTypes(gpu) & nvml.nvmlEventTypeXidCriticalError
        nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, events)
    return events


def described(nvml: ModuleType, event: object) -> tuple[int, int]:
    """Xid and index of an event's GPU."""
    assert event.eventType == nvml.nvmlEventTypeXidCriticalError  # type: ignore[attr-defined]
    assert event.gpuInstanceId == 0xFFFFFFFF  # type: ignore[attr-defined]
    return event.eventData, nvml.nvmlDeviceGetIndex(event.device)  # type: ignore[attr-defined]


def test_a_fault_that_is_switched_on_is_one_event_of_its_gpu(
    nvml: ModuleType, node_root: FakeRoot
) -> None:
    node_root.describe("8xH100", ["xid-13:1"])
    events = watch(nvml)
    with pytest.raises(nvml.NVMLError_Timeout):  # what happened before is none
        nvml.nvmlEventSetWait_v2(events, 0)
    node_root.describe("8xH100", ["xid-13:1", "xid-79:3", "remap-pending:7"])
    found = [described(nvml, nvml.nvmlEventSetWait_v2(events, 1000)) for _ in range(2)]
    assert found == [(79, 3), (63, 7)]
    with pytest.raises(nvml.NVMLError_Timeout):
        nvml.nvmlEventSetWait_v2(events, 0)
    node_root.describe("8xH100")
    with pytest.raises(nvml.NVMLError_Timeout):
        nvml.nvmlEventSetWait_v2(events, 0)
    node_root.describe("8xH100", ["xid-79:3"])
    assert described(nvml, nvml.nvmlEventSetWait_v2(events, 1000)) == (79, 3)
    nvml.nvmlEventSetFree(events)


def test_waiting_for_an_event_blocks_without_work(nvml: ModuleType, node_root: FakeRoot) -> None:
    events = watch(nvml)
    began, used = time.monotonic(), time.process_time()
    with pytest.raises(nvml.NVMLError_Timeout):
        nvml.nvmlEventSetWait_v2(events, 1200)
    assert 1.2 <= time.monotonic() - began < 5
    assert time.process_time() - used < 0.2

    later = threading.Timer(0.4, node_root.describe, ("8xH100", ["xid-95:0"]))
    later.start()
    began = time.monotonic()
    assert described(nvml, nvml.nvmlEventSetWait_v2(events, 30_000)) == (95, 0)
    assert 0.3 < time.monotonic() - began < 10
    later.join()
    nvml.nvmlEventSetFree(events)


def test_events_that_no_board_has_cannot_be_registered(nvml: ModuleType) -> None:
    events = nvml.nvmlEventSetCreate()
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(0), 1 << 40, events)
    nvml.nvmlEventSetFree(events)


def test_a_container_that_sees_one_gpu_gets_the_faults_of_that_gpu(
    nvml: ModuleType, node_root: FakeRoot
) -> None:
    node_root.write("dev/nvidiactl", "")
    node_root.write("dev/nvidia3", "")
    node_root.describe("8xH100", ["remap-failure:3"])
    assert nvml.nvmlDeviceGetCount() == 1
    only = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetRemappedRows(only)[3] == 1
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(only, nvml.nvmlEventTypeXidCriticalError, events)
    node_root.describe("8xH100", ["xid-79:0", "xid-94:3"])
    assert described(nvml, nvml.nvmlEventSetWait_v2(events, 1000)) == (94, 0)
    nvml.nvmlEventSetFree(events)


def test_every_xid_that_can_be_given_has_a_line_in_the_kernel_log() -> None:
    source = (PAYLOAD / "node" / "dmesg.py").read_text()
    texts = {int(number) for number in re.findall(r"^    (\d+): \"", source, re.M)}
    assert set(hardware.XIDS) <= texts
    given = {int(name[4:-8]) for name in hardware.FAULTS if name.startswith("xid-")}
    assert given == set(hardware.XIDS)
