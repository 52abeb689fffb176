"""The first broken link is the cause, with evidence and a next move."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpustate.diagnosis import chain, chain_data, chain_probe, container_checks, health, remedies
from gpustate.formats.nvml_report import Gpu, MigDevice, NvmlFacts
from gpustate.formats.quarantine import Entry, Quarantine
from gpustate.probes import cri_status
from gpustate.probes.cri_status import CriHandler, CriStatus

DATA = Path(__file__).parents[2] / "data/nvidia"
V = "580.65.06"
ADDRESSES = ("0000:1b:00.0", "0000:43:00.0")
UUIDS = ("GPU-a", "GPU-b")
NVML = NvmlFacts(
    source="nvml",
    driver_version=V,
    nvml_version="13." + V,
    cuda_version="13.0",
    gpus=tuple(
        Gpu(index=i, uuid=UUIDS[i], pci=ADDRESSES[i], minor=i, fabric_state="completed")
        for i in (0, 1)
    ),
)
SWITCH = chain_data.PciSeen("0000:05:00.0", "22a3", "068000", "nvidia-nvswitch")
GOOD = chain.ChainObservation(
    boot_id="b",
    kernel="6.1.0-28-amd64",
    pci=tuple(chain_data.PciSeen(one, "2330", "030200", "nvidia") for one in ADDRESSES),
    loaded=V,
    open_module=True,
    module_gpus=tuple(chain_data.ModuleGpu(ADDRESSES[i], i, UUIDS[i]) for i in (0, 1)),
    on_disk=V,
    nvml_library=chain_data.Library("/usr/lib/libnvidia-ml.so.1", f"/usr/lib/libnvidia-ml.so.{V}"),
    cuda_library=chain_data.Library("/usr/lib/libcuda.so.1", f"/usr/lib/libcuda.so.{V}"),
    packages=(("libcuda1", V),),
    majors=(("nvidia", 195), ("nvidia-uvm", 510)),
    nodes=(
        ("/dev/nvidia0", chain_data.DeviceNode(True, 195, 0)),
        ("/dev/nvidia1", chain_data.DeviceNode(True, 195, 1)),
        ("/dev/nvidiactl", chain_data.DeviceNode(True, 195, 255)),
        ("/dev/nvidia-uvm", chain_data.DeviceNode(True, 510, 0)),
    ),
    nvml=NVML,
    ctk=chain_data.Program("/usr/bin/nvidia-ctk", 0, "NVIDIA Container Toolkit CLI version 1.17.8"),
    runtime_binary=chain_data.Program("/usr/bin/nvidia-container-runtime", 0, "runc version 1.1.5"),
    containerd=chain_data.Containerd(
        "/usr/bin/containerd", True, 0, "", (("nvidia", "/usr/bin/nvidia-container-runtime", True),)
    ),
    cdi=(chain_data.CdiSpec("/var/run/cdi/nvidia.yaml", ("0", "1", "all"), ()),),
    cuda=tuple(chain.CudaResult(uuid, True, 0.4) for uuid in UUIDS),
    containers=(
        chain.ContainerResult(
            "containerd 1.7.24, handler nvidia",
            devices=("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"),
            files=(f"/usr/lib/libcuda.so.{V}",),
            gpus=UUIDS,
            cuda_ok=2,
        ),
    ),
    runtime_digest="d",
)
assert GOOD.containerd is not None
CONTAINERD = GOOD.containerd
assert GOOD.ctk is not None
MIG = replace(
    NVML,
    gpus=(
        NVML.gpus[0],
        replace(
            NVML.gpus[1],
            mig_current=True,
            mig_pending=True,
            mig_devices=(MigDevice("MIG-x"), MigDevice("MIG-y")),
        ),
    ),
)


def broken(observed: chain.ChainObservation, wanted: chain.Expected | None = None) -> chain.Check:
    """The first check that fails by its own observation, whatever end-to-end tests have shown."""
    found = chain.first_broken(chain.judge(observed, wanted))
    assert found is not None
    return found


def test_a_good_node_has_no_broken_link() -> None:
    checks = chain.evaluate(GOOD)
    assert tuple(check.name for check in checks) == chain.LINKS
    assert {check.outcome for check in checks} == {"ok"}
    assert chain.first_broken(checks) is None
    assert all(check.evidence for check in checks)
    assert checks[0].evidence == "2 GPUs on PCI, none bound to nouveau"
    managed = chain.evaluate(replace(GOOD, manager=True))[chain.LINKS.index("fabric")]
    assert managed.evidence == "complete on 2 GPUs; Fabric Manager runs"


def without_fabric(gpus: tuple[Gpu, ...] = NVML.gpus) -> NvmlFacts:
    """GPUs that report no fabric, as A100."""
    return replace(NVML, gpus=tuple(replace(gpu, fabric_state="not supported") for gpu in gpus))


@pytest.mark.parametrize(
    ("change", "outcome", "evidence"),
    [
        ({}, "not applicable", "the GPUs report no NVLink fabric"),
        ({"pci": (*GOOD.pci, SWITCH), "manager": True}, "ok", "Fabric Manager runs"),
        ({"pci": (*GOOD.pci, SWITCH)}, "ok", "does not run; CUDA runs all the same"),
        ({"pci": (*GOOD.pci, replace(SWITCH, driver="vfio-pci"))}, "not applicable", "no NVLink"),
    ],
    ids=["no switches", "manager", "cuda", "switches of a VM"],
)
def test_fabric_manager_is_a_line_of_its_own(
    change: dict[str, object], outcome: str, evidence: str
) -> None:
    observed = replace(GOOD, nvml=without_fabric(), **change)  # type: ignore[arg-type]
    check = chain.evaluate(observed)[chain.LINKS.index("fabric")]
    assert check.outcome == outcome
    assert evidence in check.evidence


CDI_STALE = remedies.CDI_STALE.replace("FILE", "/var/run/cdi/nvidia.yaml")
CASES = [
    (
        {
            "nvml": replace(
                NVML, gpus=(NVML.gpus[0], replace(NVML.gpus[1], fabric_state="in progress"))
            ),
            "cuda": None,
        },
        "fabric",
        "the NVLink fabric is not up: GPU 1: in progress",
        remedies.cuda(802),
    ),
    (
        {"nvml": without_fabric(), "pci": (*GOOD.pci, SWITCH), "cuda": ()},
        "fabric",
        "the node has NVSwitches, and Fabric Manager does not run",
        remedies.cuda(802),
    ),
    ({"pci": ()}, "pci", "no NVIDIA GPU on PCI", remedies.NO_GPU),
    (
        {"pci": (replace(GOOD.pci[0], driver="nouveau"), GOOD.pci[1])},
        "pci",
        "0000:1b:00.0 is bound to nouveau",
        remedies.FOREIGN_DRIVER,
    ),
    (
        {"kubelet": True, "containerd": replace(CONTAINERD, disabled="cri", handlers=())},
        "runtime",
        "containerd serves no pods: disabled_plugins lists cri",
        remedies.CRI_DISABLED,
    ),
    (
        {"loaded": ""},
        "driver",
        f"nvidia {V} is installed for kernel 6.1.0-28-amd64, but not loaded",
        remedies.NOT_LOADED,
    ),
    (
        {"loaded": "", "on_disk": ""},
        "driver",
        "no nvidia module for kernel 6.1.0-28-amd64",
        remedies.NO_MODULE,
    ),
    (
        {"loaded": "570.86.15"},
        "driver",
        f"loaded 570.86.15, module file {V}, libnvidia-ml {V}",
        remedies.RELOAD,
    ),
    (
        {"packages": (("libcuda1", "570.86.15"),), "nvml_library": None, "cuda_library": None},
        "driver",
        "libcuda1 570.86.15",
        remedies.ONE_SET,
    ),
    (
        {"nvml": NvmlFacts(error=18, error_text="mismatch")},
        "libraries",
        "NVML 18: mismatch",
        remedies.RELOAD,
    ),
    ({"nvml": NvmlFacts(error=12)}, "libraries", "NVML 12: library not found", remedies.nvml(12)),
    (
        {"nvml": replace(NVML, confidential="on", confidential_ready=False), "cuda": None},
        "libraries",
        "confidential computing is on, and the GPUs accept no work yet",
        remedies.CONFIDENTIAL,
    ),
    ({"nvml": NvmlFacts(error=127)}, "libraries", "NVML 127:", remedies.nvml(127)),
    (
        {"nvml": replace(NVML, gpus=(NVML.gpus[0], Gpu(index=1, error=15)))},
        "libraries",
        "GPU 1: GPU is lost (NVML 15); no answer: 0000:43:00.0",
        remedies.nvml(15),
    ),
    (
        {"nvml": replace(NVML, gpus=NVML.gpus[:1])},
        "libraries",
        "NVML sees 1 of 2 GPUs; not 0000:43:00.0",
        remedies.LOST,
    ),
    ({"cuda_library": None}, "libraries", "libcuda.so.1 is not installed", remedies.NO_LIBCUDA),
    (
        {"nodes": GOOD.nodes[1:]},
        "device-nodes",
        "/dev/nvidia0 is missing",
        remedies.device_nodes(["/dev/nvidia0"]),
    ),
    (
        {"nodes": (("/dev/nvidia0", chain_data.DeviceNode(False, 0, 0)), *GOOD.nodes[1:])},
        "device-nodes",
        "/dev/nvidia0 is not a device",
        remedies.device_nodes([]),
    ),
    (
        {"majors": (("nvidia", 195), ("nvidia-uvm", 511))},
        "device-nodes",
        "/dev/nvidia-uvm is 510:0 instead of 511:0",
        remedies.device_nodes([]),
    ),
    (
        {"majors": (("nvidia", 195),)},
        "device-nodes",
        "nvidia-uvm is not loaded",
        remedies.UVM_NOT_LOADED,
    ),
    ({"ctk": None}, "toolkit", "nvidia-ctk is not installed", remedies.NO_TOOLKIT),
    (
        {"ctk": replace(GOOD.ctk, status=127, first_line="undefined symbol")},
        "toolkit",
        "/usr/bin/nvidia-ctk --version ended with 127: undefined symbol",
        remedies.TOOLKIT_BROKEN,
    ),
    (
        {"containerd": replace(CONTAINERD, active=False, enabled=True)},
        "runtime",
        "containerd is not running",
        remedies.CONTAINERD_DOWN,
    ),
    (
        {"containerd": replace(CONTAINERD, dump_status=1, dump_error="toml: line 3")},
        "runtime",
        "ended with 1: toml: line 3",
        remedies.CONTAINERD_CONFIG,
    ),
    (
        {"containerd": replace(CONTAINERD, handlers=())},
        "runtime",
        "no runtime handler for GPUs",
        remedies.NO_HANDLER,
    ),
    (
        {
            "containerd": replace(
                CONTAINERD, handlers=(("nvidia", "/usr/bin/nvidia-container-runtime", False),)
            )
        },
        "runtime",
        "/usr/bin/nvidia-container-runtime, which does not exist",
        remedies.HANDLER_BINARY,
    ),
    (
        {"containerd": replace(CONTAINERD, handlers=(("nvidia", "/usr/bin/true", True),))},
        "runtime",
        "handler nvidia runs /usr/bin/true, not nvidia-container-runtime",
        remedies.HANDLER_BINARY,
    ),
    ({"cdi": (), "cdi_kept": True}, "cdi", "no CDI specification", remedies.CDI),
    (
        {"cdi": (replace(GOOD.cdi[0], missing=("/usr/lib/libcuda.so.570.86.15",)),)},
        "cdi",
        "names missing files: /usr/lib/libcuda.so.570.86.15",
        CDI_STALE,
    ),
    ({"cdi": (replace(GOOD.cdi[0], devices=("0", "all")),)}, "cdi", "no device for 1", CDI_STALE),
    ({"nvml": MIG}, "cdi", "no device for 1:0, 1:1", CDI_STALE),
    ({"cuda": None}, "cuda", "has not run", remedies.EARLIER),
    (
        {
            "cuda": (
                GOOD.cuda[0],
                chain.CudaResult("GPU-b", False, 0.1, 802, "cuInit: CUDA_ERROR_SYSTEM_NOT_READY"),
            )
        }
        if GOOD.cuda
        else {},
        "cuda",
        "GPU-b: cuInit: CUDA_ERROR_SYSTEM_NOT_READY (CUDA 802); 1 of 2 devices ok",
        remedies.cuda(802),
    ),
    ({"containers": None}, "container", "no container was started", remedies.EARLIER),
    (
        {"containers": (chain.ContainerResult("docker 28", error="no space left on device"),)},
        "container",
        "docker 28: the disk is full: no space for a container or its image",
        container_checks.classify("no space left on device").fix(),
    ),
    (
        {"cuda": (chain.CudaResult("GPU-a", True, 0.4),)},
        "cuda",
        "did not run on GPU-b",
        remedies.EARLIER,
    ),
    (
        {"nvml": replace(NVML, gpus=(replace(NVML.gpus[0], remap_failed=True), *NVML.gpus[1:]))},
        "health",
        "GPU 0 (0000:1b:00.0): row remapping failed",
        health.REPLACE.replace("INDEX", "0"),
    ),
    (
        {"quarantine": Quarantine(problem="quarantine.json cannot be read (x)")},
        "health",
        "quarantine.json cannot be read",
        remedies.QUARANTINE_FILE,
    ),
]


def out_of_use(
    observed: chain.ChainObservation, index: int, *, until: int = 200, why: str = "RMA 4711"
) -> chain.ChainObservation:
    """The same, with one GPU in quarantine at the node's time 100."""
    gpu = GOOD.nvml.gpus[index]
    entry = Entry(gpu.uuid, gpu.pci, why, until, 50, "somebody")
    return replace(observed, quarantine=Quarantine((entry,), 100))


@pytest.mark.parametrize(
    "change",
    [
        {"nvml": replace(NVML, gpus=(NVML.gpus[0], replace(NVML.gpus[1], remap_failed=True)))},
        {
            "nvml": replace(NVML, gpus=(NVML.gpus[0], Gpu(index=1, error=15, pci=ADDRESSES[1]))),
            "cuda": (
                chain.CudaResult("GPU-a", True, 0.4),
                chain.CudaResult("GPU-b", False, 0.4, 100, "x"),
            ),
        },
        {"cuda": (chain.CudaResult("GPU-a", True, 0.4),)},
    ],
    ids=["remap", "lost", "not run"],
)
def test_a_gpu_in_quarantine_breaks_nothing_until_its_end(change: dict[str, object]) -> None:
    bad = replace(GOOD, **change)  # type: ignore[arg-type]
    assert chain.first_broken(chain.evaluate(bad)) is not None
    held = out_of_use(bad, 1)
    assert chain.first_broken(chain.evaluate(held)) is None
    told = next(check for check in chain.evaluate(held) if check.name == "health")
    assert told.evidence.startswith("1 GPU healthy; in quarantine: GPU-b until 1970-01-01T00:03Z")
    assert "GPU-b" not in chain.cuda_devices(held)
    assert chain.first_broken(chain.evaluate(out_of_use(bad, 1, until=99))) is not None
    others = out_of_use(bad, 0)
    assert chain.first_broken(chain.evaluate(others)) is not None


def test_a_gpu_in_quarantine_is_one_part_of_the_evidence_even_if_no_gpu_answers() -> None:
    silent = replace(GOOD, nvml=replace(NVML, gpus=()))
    for observed, first in ((GOOD, "1 GPU healthy"), (silent, "no GPU answers")):
        held = replace(observed, quarantine=out_of_use(GOOD, 1, why="fans; twice").quarantine)
        told = next(check for check in chain.evaluate(held) if check.name == "health")
        parts = told.evidence.split("; ")
        assert parts[0] == first
        assert parts[1].startswith("in quarantine: GPU-b until ")
        assert "fans, twice" in parts[1]
        assert len(parts) == 2


def test_a_proof_falls_when_a_quarantine_begins_or_ends_and_when_a_gpu_turns_bad() -> None:
    plain, held = chain.key(GOOD, GOOD.expected), chain.key(out_of_use(GOOD, 1), GOOD.expected)
    assert plain.moved(held) == "GPU-b is in quarantine"
    assert held.moved(plain) == "the quarantine of GPU-b has ended"
    bad = replace(NVML, gpus=(NVML.gpus[0], replace(NVML.gpus[1], remap_failed=True)))
    assert (
        plain.moved(chain.key(replace(GOOD, nvml=bad), GOOD.expected))
        == "the health of GPUs has changed: GPU-b row-remap"
    )


@pytest.mark.parametrize(("change", "link", "evidence", "remedy"), CASES)
def test_the_first_broken_link_is_named_with_evidence_and_remedy(
    change: dict[str, object], link: str, evidence: str, remedy: str
) -> None:
    check = broken(replace(GOOD, **change))  # type: ignore[arg-type]
    assert check.name == link
    assert evidence in check.evidence
    assert check.remedy == remedy


def test_every_link_but_none_more_has_a_case() -> None:
    assert {case[1] for case in CASES} == set(chain.LINKS)


def test_a_count_the_inventory_gives_is_held_against_pci() -> None:
    check = broken(GOOD, chain.Expected(gpus=8))
    assert (check.name, check.evidence) == (
        "pci",
        "2 GPUs on PCI (0000:1b:00.0, 0000:43:00.0), 8 expected",
    )


def test_gpus_of_virtual_machines_are_not_counted() -> None:
    held = chain_data.PciSeen("0000:52:00.0", "2330", "030200", "vfio-pci")
    checks = chain.evaluate(replace(GOOD, pci=(*GOOD.pci, held)))
    assert chain.first_broken(checks) is None
    assert "1 GPU bound to vfio for virtual machines" in checks[0].evidence


def test_an_nvswitch_is_no_gpu() -> None:
    switch = chain_data.PciSeen("0000:05:00.0", "22a3", "068000", "nvidia-nvswitch")
    assert chain.first_broken(chain.evaluate(replace(GOOD, pci=(*GOOD.pci, switch)))) is None


NO_TOOLKIT: dict[str, object] = {"ctk": None, "runtime_binary": None, "containerd": None, "cdi": ()}
STOPPED = replace(CONTAINERD, active=False)
PLAIN = chain_data.Containerd("/usr/bin/containerd", True, 0, "", ())


@pytest.mark.parametrize(
    ("wanted", "change", "outcome"),
    [
        (chain.Expected(), {"containerd": PLAIN}, "failed"),
        (chain.Expected(), {"containerd": PLAIN, "other_runtimes": ("podman",)}, "failed"),
        (chain.Expected(), {"containerd": PLAIN, "other_runtimes": ("dockerd",)}, "not applicable"),
        (chain.Expected(), {"containerd": PLAIN, "other_runtimes": ("crio",)}, "not applicable"),
        (
            chain.Expected(),
            {"containerd": PLAIN, "other_runtimes": ("dockerd",), "kubelet": True},
            "failed",
        ),
        (
            chain.Expected(containers="required"),
            {"containerd": PLAIN, "other_runtimes": ("dockerd",)},
            "failed",
        ),
        (chain.Expected(), {"other_runtimes": ("dockerd",)}, "ok"),
    ],
)
def test_a_containerd_of_another_runtime_need_not_have_the_handler(
    wanted: chain.Expected, change: dict[str, object], outcome: str
) -> None:
    checks = {check.name: check for check in chain.judge(replace(GOOD, **change), wanted)}  # type: ignore[arg-type]
    assert checks["runtime"].outcome == outcome


def test_an_idle_containerd_with_the_handler_is_no_fault_while_another_runtime_answers() -> None:
    assert GOOD.containerd is not None
    idle = replace(GOOD, containerd=replace(GOOD.containerd, active=False, enabled=True))
    beside = replace(idle, other_runtimes=("crio",), crio=CriStatus("/c", "ok"))
    outcomes = [
        check.outcome
        for one in (idle, replace(idle, other_runtimes=("crio",)), beside)
        for check in chain.judge(one, chain.Expected())
        if check.name == "runtime"
    ]
    assert outcomes == ["failed", "not applicable", "ok"]


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("v1.6.20", "containerd 1.6 does not inject CDI devices itself, NVIDIA's runtime does"),
        ("1.7.24", "every file exists"),
        ("v2.1.6", "every file exists"),
    ],
)
def test_a_containerd_without_cdi_is_named_beside_the_specification(
    version: str, words: str
) -> None:
    assert GOOD.containerd is not None
    status = CriStatus("/c", "ok", version=version, handlers=(CriHandler("nvidia"),))
    observed = replace(GOOD, containerd=replace(GOOD.containerd, cri=status))
    check = {one.name: one for one in chain.evaluate(observed, chain.Expected())}["cdi"]
    assert check.outcome == "ok"
    assert check.evidence.endswith(words)


@pytest.mark.parametrize(
    ("wanted", "change", "outcome"),
    [
        (chain.Expected(containers="none"), {"ctk": None}, "not applicable"),
        (chain.Expected(), NO_TOOLKIT, "not applicable"),
        (chain.Expected(), {**NO_TOOLKIT, "containerd": PLAIN}, "not applicable"),
        (chain.Expected(), {**NO_TOOLKIT, "containerd": PLAIN, "kubelet": True}, "failed"),
        (chain.Expected(), {**NO_TOOLKIT, "containerd": GOOD.containerd}, "failed"),
        (chain.Expected(), {**NO_TOOLKIT, "cdi": GOOD.cdi}, "failed"),
        (chain.Expected(containers="required"), {"ctk": None, "containerd": None}, "failed"),
        (chain.Expected(), {"containerd": None}, "ok"),
    ],
)
def test_the_container_side_is_looked_at_where_it_is_there_or_asked_for(
    wanted: chain.Expected, change: dict[str, object], outcome: str
) -> None:
    checks = {check.name: check for check in chain.judge(replace(GOOD, **change), wanted)}  # type: ignore[arg-type]
    assert checks["toolkit"].outcome == outcome


def test_less_can_be_asked_for() -> None:
    checks = {
        check.name: check.outcome
        for check in chain.evaluate(
            replace(GOOD, cuda=None, cdi=()), chain.Expected(cuda=False, cdi=False, handler="")
        )
    }
    assert checks["cuda"] == checks["cdi"] == checks["runtime"] == "not applicable"


def test_mig_devices_take_the_place_of_their_gpu() -> None:
    assert chain.cuda_devices(replace(GOOD, nvml=MIG)) == ("GPU-a", "MIG-x", "MIG-y")


def test_a_gpu_that_nvml_lost_is_still_to_be_proven() -> None:
    lost = replace(NVML, gpus=(NVML.gpus[0], Gpu(index=1, error=15)))
    assert chain.cuda_devices(replace(GOOD, nvml=lost)) == UUIDS


@pytest.mark.parametrize(
    ("file", "version", "is_open"),
    [
        ("proc-version-580.95.05-open", "580.95.05", True),
        ("proc-version-510.54-proprietary", "510.54", False),
    ],
)
def test_the_loaded_version_is_read_from_either_module(
    file: str, version: str, is_open: bool
) -> None:
    line = (DATA / file).read_text().splitlines()[0]
    assert chain_probe.loaded_version(line) == version
    assert chain_probe.parse(f"version={line}\n", NvmlFacts()).open_module is is_open


SPEC = """---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/null
  hooks:
  - args:
    - nvidia-cdi-hook
    hookName: createContainer
    path: /nonexistent/nvidia-cdi-hook
  mounts:
  - containerPath: /usr/lib/libcuda.so.1
    hostPath: /nonexistent/libcuda.so.1
devices:
- containerEdits:
    deviceNodes:
    - hostPath: /dev/zero
      path: /dev/nonexistent0
  name: "0"
- name: all
kind: nvidia.com/gpu
"""


def test_the_fragments_read_a_node(tmp_path: Path) -> None:
    """Run by a real sh over folders that stand for proc and sys; nothing below /dev is looked at."""
    device = tmp_path / "sys/bus/pci/devices/0000:1b:00.0"
    device.mkdir(parents=True)
    for name, text in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
        (device / name).write_text(text + "\n")
    (tmp_path / "sys/bus/pci/drivers/nvidia").mkdir(parents=True)
    (device / "driver").symlink_to("../../drivers/nvidia")
    proc = tmp_path / "proc/driver/nvidia"
    information = proc / "gpus/0000:1b:00.0/information"
    information.parent.mkdir(parents=True)
    information.write_text("Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-a\nDevice Minor: \t 3\n")
    shutil.copy(DATA / "proc-version-580.95.05-open", proc / "version")
    (tmp_path / "proc/devices").write_text(
        "Character devices:\n195 nvidia\n510 nvidia-uvm\n\nBlock devices:\n7 nvidia-block\n"
    )
    lib = tmp_path / "lib"
    lib.mkdir()
    (lib / "libcuda.so.580.95.05").touch()
    (lib / "libcuda.so.1").symlink_to("libcuda.so.580.95.05")
    environment = dict(
        os.environ,
        LC_ALL="C",
        PROC=str(tmp_path / "proc"),
        SYS=str(tmp_path / "sys"),
        L=f"/nonexistent {lib}",
    )
    done = subprocess.run(
        ["sh", "-c", chain_probe.KEY_SCRIPT + chain_probe.CHAIN_SCRIPT],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    observed = chain_probe.parse(done.stdout, NVML)
    assert observed.pci == (chain_data.PciSeen("0000:1b:00.0", "2330", "030200", "nvidia"),)
    assert (observed.loaded, observed.open_module) == ("580.95.05", True)
    assert observed.module_gpus == (chain_data.ModuleGpu("0000:1b:00.0", 3, "GPU-a"),)
    assert observed.majors == (("nvidia", 195), ("nvidia-uvm", 510))
    assert observed.cuda_library is not None
    assert observed.cuda_library.version == "580.95.05"
    assert observed.nvml_library is None
    assert observed.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert len(observed.kernel) > 3


K3S = "/run/k3s/containerd/containerd.sock"
SERVES = CriStatus(K3S, "ok", handlers=(CriHandler("nvidia"), CriHandler("runc")))


@pytest.mark.parametrize("plain", [None, PLAIN])
@pytest.mark.parametrize(
    ("says", "outcome", "words"),
    [
        (SERVES, "ok", "the containerd of k3s serves CRI and has the handler nvidia"),
        (CriStatus(K3S, "unserved", "load failed"), "failed", "runs without its CRI service"),
        (CriStatus(K3S, "silent", "timed out"), "failed", "does not answer: timed out"),
        (
            CriStatus(K3S, "ok", handlers=(CriHandler("runc"),)),
            "failed",
            "the containerd of k3s lacks the runtime handler for GPUs; it has runc",
        ),
    ],
)
def test_the_containerd_of_a_distribution_is_judged_by_what_it_answers(
    plain: chain_data.Containerd | None, says: CriStatus, outcome: str, words: str
) -> None:
    observed = replace(GOOD, containerd=plain, bundled=says, other_runtimes=("k3s",))
    check = {one.name: one for one in chain.judge(observed, chain.Expected())}["runtime"]
    assert check.outcome == outcome
    assert words in check.evidence
    assert ("state k3s" in check.remedy or "restart k3s" in check.remedy) == check.failed


def test_only_sockets_that_somebody_listens_at_are_asked(tmp_path: Path) -> None:
    unix = tmp_path / "unix"
    script = cri_status.BUNDLED_SAYS.replace("/proc/net/unix", str(unix))
    says = 'cri_says() { echo "cri_socket=$1"; echo "cri=ok|containerd|v2.1.5||runc"; }\n'
    rows = "Num RefCount Protocol Flags Type St Inode Path\n0: 2 0 10000 0001 01 9 /run/k0s/containerd.sock\n"
    for text, wanted in ((rows, "/run/k0s/containerd.sock"), ("", None), (rows + ".ttrpc\n", None)):
        unix.write_text(text.replace("sock\n.ttrpc", "sock.ttrpc"))
        done = subprocess.run(
            ["sh", "-c", says + script], stdout=subprocess.PIPE, text=True, check=True
        )
        found = chain_probe.parse(done.stdout, NvmlFacts()).bundled
        assert (found.socket if found else None) == wanted


@pytest.mark.parametrize(
    ("plugin", "name"),
    [('"io.containerd.grpc.v1.cri"', "nvidia"), ("'io.containerd.cri.v1.runtime'", "nvidia")],
)
def test_the_fragment_reads_the_handlers_of_any_containerd(
    tmp_path: Path, plugin: str, name: str
) -> None:
    dump = (
        f"[plugins]\n  [plugins.{plugin}.containerd.runtimes.runc.options]\n      BinaryName = ''\n"
        f"  [plugins.{plugin}.containerd.runtimes.{name}]\n    runtime_type = 'io.containerd.runc.v2'\n"
        f'    [plugins.{plugin}.containerd.runtimes.{name}.options]\n      BinaryName = "/bin/sh"\n'
        f"    [plugins.{plugin}.containerd.runtimes.gone.options]\n      BinaryName = '/nonexistent'\n"
        f"[plugins.other]\n  BinaryName = 'x'\n"
    )
    (tmp_path / "dump").write_text(dump)
    program = tmp_path / "containerd"
    program.write_text(f"#!/bin/sh\n[ \"$1 $2\" = 'config dump' ] && cat {tmp_path}/dump\n")
    program.chmod(0o755)
    script = chain_probe.CHAIN_SCRIPT
    script = script[
        script.index("if program_path=$(command -v containerd)") : script.index("cdi_lines() {")
    ]
    environment = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}")
    done = subprocess.run(
        ["sh", "-c", script], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    containerd = chain_probe.parse(done.stdout, NvmlFacts()).containerd
    assert containerd is not None
    assert containerd.handlers == ((name, "/bin/sh", True), ("gone", "/nonexistent", False))


@pytest.mark.parametrize(
    "wanted",
    [chain.Expected(), chain.Expected(False, 8, "none", "", False), chain.Expected(handler="gpu")],
)
def test_what_a_proof_was_asked_for_is_read_back(wanted: chain.Expected) -> None:
    assert chain.Expected.parse(wanted.text) == wanted


def test_the_fragment_reads_a_cdi_specification_in_both_formats(tmp_path: Path) -> None:
    json_spec = (
        '{\n "kind": "nvidia.com/gpu",\n "devices": [\n  {\n   "name": "GPU-a",\n   "containerEdits": {'
        '"deviceNodes": [\n    {\n     "path": "/dev/null"\n    },\n    {\n     "hostPath": "/nonexistent/b",\n'
        '     "path": "/dev/null"\n    }]}}]}\n'
    )
    (tmp_path / "nvidia.yaml").write_text(SPEC)
    (tmp_path / "other.json").write_text(json_spec)
    # As nvidia-ctk cdi generate --format=json writes it.
    (tmp_path / "short.json").write_text(json.dumps(json.loads(json_spec), separators=(",", ":")))
    (tmp_path / "unrelated.yaml").write_text(
        SPEC.replace("nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu")
    )
    script = chain_probe.CHAIN_SCRIPT[chain_probe.CHAIN_SCRIPT.index("cdi_lines() {") :]
    script = script.replace("/etc/cdi", str(tmp_path)).replace("/var/run/cdi", "/nonexistent")
    done = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    first, second, third = chain_probe.parse(done.stdout, NvmlFacts()).cdi
    assert first.devices == ("0", "all")
    assert first.missing == (
        "/dev/nonexistent0",
        "/nonexistent/libcuda.so.1",
        "/nonexistent/nvidia-cdi-hook",
    )
    assert second.devices == ("GPU-a",)
    assert second.missing == ("/nonexistent/b",)
    assert replace(third, path=second.path) == second


def test_a_disabled_cri_plugin_is_enabled_before_an_apply_is_recommended() -> None:
    """An apply alone registers nothing in a containerd whose file turns the CRI off."""
    first, _, then = remedies.CRI_DISABLED.partition("gpustate apply")
    assert "disabled_plugins" in first
    assert "systemctl restart containerd" in first
    assert then


def test_a_disabled_cri_plugin_is_no_fault_where_no_kubelet_asks() -> None:
    """Docker's package ships containerd that way."""
    assert CONTAINERD is not None
    observed = replace(GOOD, containerd=replace(CONTAINERD, disabled="cri", handlers=()))
    check = next(one for one in chain.evaluate(observed, chain.Expected()) if one.name == "runtime")
    assert check.outcome != chain.FAILED, check


PROVEN = ("driver", "libraries", "fabric", "device-nodes", "toolkit", "runtime", "cdi")
TWINS = [
    ({key: value for key, value in case[0].items() if key != "cuda"}, *case[1:])
    for case in CASES
    if case[1] in PROVEN and case[0].get("nvml") is not MIG
]


def test_a_toolkit_that_was_only_slow_since_the_validation_is_a_note() -> None:
    record = tuple((check.name, check.evidence) for check in chain.evaluate(GOOD))
    for status, broken in ((124, None), (137, None), (1, "toolkit")):
        ctk = chain_data.Program("/usr/bin/nvidia-ctk", status, "")
        first = chain.first_broken(chain.evaluate(replace(GOOD, ctk=ctk, recorded=record)))
        assert (first.name if first else None) == broken


@pytest.mark.parametrize(("change", "link", "evidence", "remedy"), TWINS)
def test_a_node_whose_tests_pass_is_never_failed_by_what_they_stand_for(
    change: dict[str, object], link: str, evidence: str, remedy: str
) -> None:
    twin = replace(GOOD, **change)  # type: ignore[arg-type]
    checks = chain.evaluate(twin)
    assert chain.first_broken(checks) is None
    note = checks[chain.LINKS.index(link)]
    assert note.outcome == chain.OK
    assert note.evidence.endswith(chain.tested(checks)[link])
    assert evidence in note.evidence
    # By the record of that validation it is the same; damage since then is no note.
    record = tuple((check.name, check.evidence) for check in checks)
    assert chain.evaluate(replace(twin, recorded=record)) == checks
    before = tuple((check.name, check.evidence) for check in chain.evaluate(GOOD))
    since = chain.first_broken(chain.evaluate(replace(twin, recorded=before)))
    assert since is not None
    assert (since.name, since.remedy) == (link, remedy)
    # Where the tests fail it is the cause.
    failed = tuple(chain.CudaResult(uuid, False, 0.1, 999, "cuInit") for uuid in UUIDS)
    bad = (chain.ContainerResult("containerd, handler nvidia", error="no such file"),)
    cause = chain.first_broken(chain.evaluate(replace(twin, cuda=failed, containers=bad)))
    assert cause is not None
    assert (cause.name, cause.remedy) == (link, remedy)


KNOWN = tuple(zip(UUIDS, ADDRESSES, strict=True))


@pytest.mark.parametrize(
    ("change", "wanted", "missing"),
    [
        ({"pci": GOOD.pci[:1]}, chain.Expected(), True),
        ({"pci": GOOD.pci[:1]}, chain.Expected(gpus=1), False),  # accepted
        ({"pci": GOOD.pci[:1], "quarantine": Quarantine((Entry("GPU-b", "", "x", 9, 1, "y"),), 2)}, chain.Expected(), False),
        ({"pci": (GOOD.pci[0], replace(GOOD.pci[1], driver="vfio-pci"))}, chain.Expected(), False),
        # Another card in its slot, and the same card in another slot.
        ({"nvml": replace(NVML, gpus=(NVML.gpus[0], replace(NVML.gpus[1], uuid="GPU-c")))}, chain.Expected(), False),
        ({"pci": (GOOD.pci[0], replace(GOOD.pci[1], address="0000:99:00.0"))}, chain.Expected(), False),
    ],
)  # fmt: skip
def test_a_gpu_of_the_last_good_validation_is_missed_until_somebody_accepts_it(
    change: dict[str, object], wanted: chain.Expected, missing: bool
) -> None:
    nvml = replace(NVML, gpus=NVML.gpus[:1]) if len(change.get("pci", UUIDS)) == 1 else NVML  # type: ignore[arg-type]
    observed = replace(GOOD, recorded_gpus=KNOWN, **{"nvml": nvml, **change})  # type: ignore[arg-type]
    check = chain.judge(observed, wanted)[0]
    assert check.failed is missing
    if missing:
        assert check.evidence == f"GPU-b (0000:43:00.0) {remedies.MISSING_GPU}"


def test_a_cycle_of_the_next_boot_fails_a_node_whose_containers_run_now() -> None:
    units = ("docker.service", "nvidia-cdi-refresh.service", "multi-user.target")
    checks = chain.evaluate(replace(GOOD, cycles=(units,)))
    assert {check.name for check in checks if check.failed} == {"runtime"}
    assert next(check for check in checks if check.name == "container").outcome == chain.OK


def test_seven_gpus_on_a_board_with_switches_are_named() -> None:
    seven = tuple(replace(GOOD.pci[0], address=f"0000:0{n}:00.0") for n in range(7))
    assert "8 GPUs, not 7" in chain.judge(replace(GOOD, pci=(*seven, SWITCH)))[0].evidence


def test_a_display_card_without_the_driver_beside_gpus_is_no_loss() -> None:
    card = chain_data.PciSeen("0000:65:00.0", "128b", "030000", "")
    checks = chain.evaluate(replace(GOOD, pci=(*GOOD.pci, card)))
    assert chain.first_broken(checks) is None
    assert "0000:65:00.0" in checks[0].evidence
    alone = replace(GOOD, pci=(card,), cuda=None, containers=None)
    assert [one.address for one in alone.gpus] == ["0000:65:00.0"]
    board = replace(GOOD.pci[1], driver="")
    refused = broken(
        replace(GOOD, pci=(GOOD.pci[0], board), nvml=replace(NVML, gpus=NVML.gpus[:1]))
    )
    assert (refused.name, refused.remedy) == ("libraries", remedies.REFUSED_BOARD)


def test_a_gpu_that_others_use_is_neither_ok_nor_failed() -> None:
    busy = chain.CudaResult("GPU-b", False, 0.1, 46, "cuCtxCreate", users=("4242 (python3)",))
    one = chain.evaluate(replace(GOOD, cuda=(chain.CudaResult("GPU-a", True, 0.4), busy)))
    assert chain.first_broken(one) is None
    assert one[-1].outcome == "ok"
    assert one[-1].evidence.endswith("GPU-b is in use by PID 4242 (python3): not tested")
    every = chain.evaluate(replace(GOOD, cuda=(replace(busy, uuid="GPU-a"), busy)))
    assert every[-1].outcome == "not applicable"
    # A device that refuses and that nobody uses has failed.
    assert chain.judge(replace(GOOD, cuda=(busy, replace(busy, users=()))))[-1].failed


def test_where_a_container_of_the_operator_has_the_driver_nothing_is_to_be_installed() -> None:
    nvml = NvmlFacts(error=12)
    observed = replace(
        GOOD, driver_root="/run/nvidia/driver", nvml=nvml, cuda=None, cuda_library=None
    )
    checks = {check.name: check for check in chain.evaluate(observed)}
    assert chain.first_broken(tuple(checks.values())) is None
    assert checks["libraries"].evidence == checks["cuda"].evidence
    assert "/run/nvidia/driver" in checks["cuda"].evidence
    handler = ("nvidia", "/usr/local/nvidia/toolkit/nvidia-container-runtime", True)
    toolkit = replace(
        GOOD, ctk=None, runtime_binary=None, containerd=replace(CONTAINERD, handlers=(handler,))
    )
    assert chain.judge(toolkit)[chain.LINKS.index("toolkit")].outcome == "ok"


@pytest.mark.parametrize(
    ("programs", "default", "wanted", "name"),
    [
        ({"runc": "", "nvidia": "/usr/bin/nvidia-container-runtime"}, "runc", "auto", "nvidia"),
        ({"nvidia-container-runtime": "/usr/bin/nvidia-container-runtime"}, "nvidia-container-runtime", "auto", "nvidia-container-runtime"),
        ({"gpu": "/opt/nvidia-container-runtime", "nvidia": "/usr/bin/nvidia-container-runtime"}, "gpu", "auto", "gpu"),
        ({"runc": "", "gpu": "/opt/nvidia-container-runtime.cdi"}, "runc", "auto", "gpu"),
        ({"runc": ""}, "runc", "auto", ""),
        ({"gpu": "/opt/nvidia-container-runtime"}, "gpu", "nvidia", ""),
        ({"crun": "", "nvidia": ""}, "", "auto", "nvidia"),
    ],
)  # fmt: skip
def test_the_handler_is_found_by_its_program(
    programs: dict[str, str], default: str, wanted: str, name: str
) -> None:
    assert chain.gpu_handler(programs, default, chain.Expected(handler=wanted)) == name


CONTAINERD_2 = CriStatus("/c", "ok", name="containerd", version="v2.3.7", cdi=True, cdi_folders=("/etc/cdi", "/var/run/cdi"))  # fmt: skip


@pytest.mark.parametrize(
    ("status", "wanted", "outcomes"),
    [
        (CONTAINERD_2, chain.Expected(), ("ok", "ok")),
        (replace(CONTAINERD_2, cdi=False), chain.Expected(), ("failed", "ok")),
        (replace(CONTAINERD_2, cdi=False), chain.Expected(cdi=True), ("failed", "failed")),
        (replace(CONTAINERD_2, cdi_folders=("/opt/cdi",)), chain.Expected(cdi=True), ("failed", "failed")),
        (CONTAINERD_2, chain.Expected(handler="nvidia"), ("failed", "ok")),
    ],
)  # fmt: skip
def test_a_containerd_without_a_handler_is_judged_by_its_cdi(
    status: CriStatus, wanted: chain.Expected, outcomes: tuple[str, str]
) -> None:
    observed = replace(GOOD, containerd=replace(PLAIN, cri=status))
    checks = {check.name: check.outcome for check in chain.judge(observed, wanted)}
    assert (checks["runtime"], checks["cdi"]) == outcomes


@pytest.mark.parametrize(
    ("change", "runtime"),
    [
        ({"containerd": replace(CONTAINERD, active=False), "other_runtimes": ("podman",)}, ""),
        ({"containerd": replace(CONTAINERD, active=False, enabled=True)}, "containerd"),
        ({"containerd": replace(CONTAINERD, active=False), "registered": ("containerd",)}, "containerd"),
        ({"containerd": replace(PLAIN, disabled="cri"), "endpoint": "/run/cri-dockerd.sock", "kubelet": True}, "docker"),
        ({"containerd": STOPPED, "registered": ("containerd",), "other_runtimes": ("dockerd",)}, "containerd"),
        ({"containerd": STOPPED, "registered": ("containerd",), "other_runtimes": ("crio",)}, "crio"),
        ({"containerd": STOPPED, "registered": ("containerd",), "other_runtimes": ("crio",), "down": ("crio",)}, "containerd"),
        ({"containerd": replace(STOPPED, enabled=True), "registered": ("containerd",), "other_runtimes": ("crio",)}, "containerd"),
        ({"containerd": PLAIN, "endpoint": "/var/run/crio/crio.sock"}, "crio"),
        ({"containerd": PLAIN, "bundled": CriStatus("/run/k3s/containerd/containerd.sock", "ok")}, "bundled"),
        ({"other_runtimes": ("dockerd",), "kubelet": True}, "containerd"),
    ],
)  # fmt: skip
def test_the_runtime_that_is_used_is_judged(change: dict[str, object], runtime: str) -> None:
    observed = replace(GOOD, **change)  # type: ignore[arg-type]
    assert chain.serving(observed, chain.Expected()) == runtime


def test_a_handler_of_a_distribution_whose_program_is_gone_fails() -> None:
    gone = CriHandler(
        "nvidia", binary="/usr/local/nvidia/toolkit/nvidia-container-runtime", exists=False
    )
    observed = replace(
        GOOD, containerd=None, bundled=replace(SERVES, handlers=(gone,)), containers=()
    )
    checks = {check.name: check for check in chain.evaluate(observed)}
    assert (checks["runtime"].outcome, checks["runtime"].remedy) == (
        "failed",
        remedies.HANDLER_BINARY,
    )
    assert checks["container"].evidence.startswith(chain.NOT_VALIDATED)


def test_a_gpu_in_mig_mode_without_devices_is_expected_in_no_container() -> None:
    empty = replace(NVML, gpus=(NVML.gpus[0], replace(NVML.gpus[1], mig_current=True)))
    assert container_checks.expected_gpus(replace(GOOD, nvml=empty)) == ("GPU-a",)


def test_nvidia_uvm_is_loaded_by_the_first_program_unless_a_specification_names_it() -> None:
    observed = replace(GOOD, majors=(("nvidia", 195),), cdi=())
    check = chain.judge(observed)[chain.LINKS.index("device-nodes")]
    assert (check.outcome, check.evidence.rpartition("; ")[2]) == (
        "ok",
        "the first CUDA program loads nvidia-uvm",
    )
    unmade = replace(GOOD, nodes=tuple(row for row in GOOD.nodes if row[0] != "/dev/nvidia-uvm"))
    for specs, outcome in (((), "ok"), (GOOD.cdi, "failed")):
        check = chain.judge(replace(unmade, cdi=specs))[chain.LINKS.index("device-nodes")]
        assert check.outcome == outcome, check
        assert "/dev/nvidia-uvm" in check.evidence


def test_a_lost_gpu_has_the_address_that_no_other_has() -> None:
    lost = NvmlFacts(gpus=(NVML.gpus[0], Gpu(index=1, error=15)))
    rows = "".join(f"gpu={a}|{n}|{u}\n" for n, (u, a) in enumerate(KNOWN))
    observed = chain_probe.parse(rows, lost)
    assert [gpu.pci for gpu in observed.nvml.gpus] == list(ADDRESSES)
    assert chain.not_in_nvml(observed) == {}
