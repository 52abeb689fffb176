"""Causes at the checks ``libraries``, ``fabric``, ``device-nodes``, ``cuda`` and ``rdma``.

Sources:
    nvml.h and cuda.h: the numbers; NVIDIA Fabric Manager user guide; NVIDIA/nvtrust#55 and
    NVIDIA/gpu-operator#356 (Fabric Manager), #2781 (NVLink 5), Azure/AgentBaker#8839 and
    dra-driver-nvidia-gpu#892 (IMEX: idle is healthy, and the host's Fabric Manager must not run);
    Fabric Manager user guide, ABORT_CUDA_JOBS_ON_FM_EXIT: without it no CUDA program starts on A100;
    NVIDIA/gpu-operator#668, #603 (MIG mode); Mellanox/nv_peer_memory#63, NVIDIA/gpu-operator#2868 (peermem).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gpustate.diagnosis import chain
from gpustate.diagnosis import remedies as remedies
from gpustate.explain.causes import Cause, View, evidence_with, numbers, some
from gpustate.explain.clues import Unit
from gpustate.formats import modprobe, xids
from gpustate.formats.nvml_report import Gpu
from gpustate.mig import saved

_FM = "nvidia-fabricmanager"
_unseen = evidence_with("NVML sees")
#: NVML's error in the evidence of the check.
_ERROR = re.compile(r"(?:^|\()NVML ([0-9]+)[:)]")


def _named(gpus: list[Gpu]) -> str:
    return some([f"GPU {gpu.index}" for gpu in gpus])


# --- libraries ----------------------------------------------------------------------------------


def _with_error(*codes: int) -> Callable[[View], str]:
    """Detect a cause by the error of the first GPU that fails the check, or by NVML's own; not by another GPU's."""

    def detect(view: View) -> str:
        error = _ERROR.search(view.broken)
        return view.broken if error is not None and int(error[1]) in codes else ""

    return detect


def _library_gone(view: View) -> str:
    return view.broken if "libcuda.so.1" in view.broken else _with_error(12)(view)


def _library_dangling(view: View) -> str:
    odd = [problem for name, problem in view.observed.odd if name.startswith("lib")]
    return view.broken if any(problem in view.broken for problem in odd) else ""


def _unseen_without_node(view: View) -> str:
    """NVML omits a GPU that it cannot open."""
    broken = _unseen(view)
    return broken if "/dev/nvidia" in broken else ""


def _pending(view: View) -> str:
    waiting = [
        gpu
        for gpu in view.observed.nvml.gpus
        if gpu.mig_pending is not None
        and gpu.mig_current is not None
        and gpu.mig_pending != gpu.mig_current
    ]
    if not waiting:
        return ""
    mode = "on" if waiting[0].mig_pending else "off"
    return f"{_named(waiting)}: MIG mode will be {mode} after a reset of the GPU"


def _empty(view: View) -> str:
    gpus = view.observed.nvml.gpus
    empty = [gpu for gpu in gpus if gpu.mig_current and gpu.mig_pending and not gpu.mig_devices]
    if not empty or len(empty) < len(gpus):  # devices may be created on demand
        return ""
    return f"{_named(empty)}: MIG mode is on, and there are no MIG devices"


def lost_devices(view: View) -> str:
    """GPUs with fewer MIG devices than the layout of the state mig; empty if there are none."""
    counts = saved.device_counts("\n".join(view.clues.all("mig_layout")))
    incomplete: list[str] = []
    for gpu in view.observed.nvml.gpus:
        count = counts.get(gpu.pci.upper().zfill(16), 0)
        if gpu.error is None and not view.observed.held(gpu) and len(gpu.mig_devices) < count:
            incomplete.append(f"GPU {gpu.index} has {len(gpu.mig_devices)} of {count}")
    return f"{some(incomplete)} MIG devices that the state mig created" if incomplete else ""


# --- fabric --------------------------------------------------------------------------------------


def _nvlink5(view: View) -> bool:
    return bool(view.clues.all("sw_mng"))


def _fabric_package(view: View) -> tuple[str, str]:
    """Name and version of the installed Fabric Manager."""
    pairs = [(n, v) for n, v in view.clues.packages.items() if n.startswith(_FM) and "dev" not in n]
    return pairs[0] if pairs else ("", "")


def _journal(unit: Unit) -> str:
    return f"; its journal: {unit.why}" if unit.why else ""


def needs_manager(view: View) -> bool:
    """The node has NVSwitches that need its own Fabric Manager."""
    if not (chain.has_switches(view.observed) or _nvlink5(view)) or view.observed.driver_root:
        return False
    states = {gpu.fabric_state for gpu in view.observed.nvml.gpus} - set(chain.NO_FABRIC)
    cuda_works = any(result.ok for result in view.observed.cuda or ())  # without it, none starts
    return bool(view.broken) or not (states or cuda_works)


def _manager_missing(view: View) -> str:
    installed = _fabric_package(view)[0] or view.clues.unit(_FM).exists
    if installed or not view.clues.units or not needs_manager(view):
        return ""
    return "the node has NVSwitches, and Fabric Manager is not installed"


def manager_version(view: View) -> str:
    """Evidence if Fabric Manager has another version than the loaded driver; empty if it has not."""
    name, version = _fabric_package(view)
    loaded = view.observed.loaded
    if not name or not loaded or version == loaded or not needs_manager(view):
        return ""
    return f"{name} is {version}, and the driver is {loaded}{_journal(view.clues.unit(_FM))}"


def _manager_down(view: View) -> str:
    unit = view.clues.unit(_FM)
    if not needs_manager(view) or not unit.exists or (unit.active == "active" and not unit.failed):
        return ""
    return (
        f"{_FM} is {unit.active or 'not active'} ({unit.enabled or 'not enabled'}){_journal(unit)}"
    )


def _modules_for_nvlink5(view: View) -> str:
    missing = [name for name in ("mlx5_ib", "ib_umad") if name not in view.clues.all("module")]
    if not missing or not _nvlink5(view) or not needs_manager(view):
        return ""
    return f"the switches are managed through {view.clues.first('sw_mng')}, but {' and '.join(missing)} is not loaded"


def _subnet_manager(view: View) -> str:
    if not _nvlink5(view) or not needs_manager(view):
        return ""
    unit = view.clues.unit("nvlsm")
    if "nvlsm" not in view.clues.packages and not unit.exists:
        return "the switches need the NVLink subnet manager, but nvlsm is not installed"
    return f"nvlsm failed{_journal(unit)}" if unit.failed else ""


def on_rack(view: View) -> bool:
    """The node is a compute tray of a rack with switches of its own."""
    return any(
        gpu.name.startswith(("NVIDIA GB200", "NVIDIA GB300", "GB200", "GB300"))
        for gpu in view.observed.nvml.gpus
    )


def _manager_on_rack(view: View) -> str:
    unit = view.clues.unit(_FM)
    if not on_rack(view) or not (unit.failed or unit.active == "active"):
        return ""
    return (
        f"{_FM} is {unit.active} on this node, but the switches of the rack run their own manager"
    )


def _imex(view: View) -> str:
    unit = view.clues.unit("nvidia-imex")
    if not unit.failed or not on_rack(view):
        return ""
    nodes = view.clues.first("imex_nodes")
    where = "" if nodes not in ("", "0") else "; /etc/nvidia-imex/nodes_config.cfg lists no node"
    return f"nvidia-imex failed{_journal(unit)}{where}"


# --- device nodes, CUDA, RDMA --------------------------------------------------------------------


def _uvm_node(view: View) -> str:
    """No CUDA program has run since the boot: nvidia-uvm-tools is missing too."""
    tools = "/dev/nvidia-uvm-tools" in dict(view.observed.nodes)
    return view.broken if view.broken == "/dev/nvidia-uvm is missing" and not tools else ""


def _capability(view: View) -> str:
    """Only device nodes of MIG devices are missing."""
    parts = [part for part in view.broken.split(", ") if "/dev/nvidia" in part]
    return view.broken if parts and all("/dev/nvidia-caps/" in part for part in parts) else ""


def _cuda(view: View, *codes: int | None) -> str:
    failed = chain.cuda_failures(view.observed)
    return view.broken if failed and failed[0].error in codes else ""


def _exclusive(view: View) -> str:
    evidence = _cuda(view, 46)
    daemons = mps_daemons(view)
    return f"{evidence}; no MPS daemon runs that could share it" if evidence and not daemons else ""


def mps_daemons(view: View) -> list[str]:
    """PID and command of every MPS control daemon."""
    return [row for row in view.clues.all("process") if "nvidia-cuda-mps-control" in row]


def _two_daemons(view: View) -> str:
    rows = mps_daemons(view)
    return f"{len(rows)} MPS control daemons run: {some(rows)}" if rows[1:] and view.broken else ""


def _peermem_wanted(view: View) -> str:
    """The file that loads nvidia-peermem at boot; empty if none does."""
    rows = view.clues.fields("autoload", 2)
    return next(
        (path for path, name in rows if modprobe.normal(name).startswith("nvidia_peermem")), ""
    )


def _peermem(view: View) -> str:
    clues = view.clues
    loader = _peermem_wanted(view)
    if (
        not loader
        or not clues.all("rdma")
        or "nvidia_peermem" in clues.all("module")
        or not view.observed.loaded
    ):
        return ""
    message = clues.kernel_message(
        "disagrees about version of symbol ib_", "Unknown symbol ib_", "peermem"
    )
    return f"{loader} loads nvidia-peermem at boot, but it is not loaded" + (
        f"; dmesg: {message}" if message else ""
    )


def _peermem_symbols(view: View) -> str:
    message = view.clues.kernel_message(
        "disagrees about version of symbol ib_", "Unknown symbol ib_"
    )
    return _peermem(view) if message else ""


def check_rdma(view: View) -> chain.Check:
    """GPUDirect RDMA by the kernel module nvidia-peermem, if it is configured."""
    if not _peermem_wanted(view) or not view.clues.all("rdma"):
        return chain.Check("rdma", chain.NOT_APPLICABLE, "nvidia-peermem is not configured")
    return chain.Check("rdma", chain.OK, "nvidia-peermem is loaded")


_FIRST_GOOD = (570, 133, 20)


def _old_for_b200(view: View) -> str:
    loaded = view.observed.loaded
    if not loaded or numbers(loaded) >= _FIRST_GOOD or not (_nvlink5(view) and needs_manager(view)):
        return ""
    return f"driver {loaded} is older than 570.133.20, the first version for these switches"


CAUSES = (
    Cause("gpu-lost", "libraries", _with_error(15), "", ("NVIDIA/k8s-device-plugin#2038",)),
    Cause("nvml-timeout", "libraries", _with_error(10), "", ("NVIDIA/nvidia-container-toolkit#202", "NVIDIA/nvidia-docker#723")),
    Cause("driver-library-dangling", "libraries", _library_dangling,
          remedies.by_apply("reinstall its package, which recreates the link", "driver"), state="driver"),
    Cause("driver-library-missing", "libraries", _library_gone,
          remedies.by_apply("install the driver's libraries in the driver's version", "driver"), state="driver"),
    Cause("driver-library-damaged", "libraries", evidence_with("is truncated"), remedies.TORN, state="driver"),
    Cause("access-blocked", "libraries", _with_error(17, 4), remedies.nvml(17)),
    Cause("nothing-to-ask-nvml-with", "libraries", _with_error(127), remedies.nvml(127)),
    Cause("gpu-without-device-node", "libraries", _unseen_without_node, "", state="driver"),
    Cause("gpu-refused-by-driver", "libraries", evidence_with("refuses"), remedies.REFUSED_BOARD, ("NVIDIA/aicr#1858",)),
    Cause("gpu-not-in-nvml", "libraries", _unseen, remedies.LOST, ("NVIDIA/k8s-device-plugin#231",)),
    Cause("mig-mode-waits-for-a-reset", "libraries", _pending,
          f"drain the GPU and reset it: {xids.RESET_COMMAND}; or " + remedies.by_apply("let an apply reset or reboot", "mig"),
          ("NVIDIA/gpu-operator#668", "NVIDIA/gpu-operator#603"), "mig", explains=False, harmless_if_tested=True),
    Cause("fabric-manager-on-a-rack-node", "fabric", _manager_on_rack,
          "disable it, since this node needs IMEX instead: systemctl disable --now nvidia-fabricmanager",
          ("Azure/AgentBaker#8839",), "fabric-manager", explains=False, harmless_if_tested=True),
    Cause("driver-too-old-for-nvlink5", "fabric", _old_for_b200,
          f"install driver 570.133.20 or newer, for example: {remedies.APPLY} --set driver.branch=580", explains=False),
    Cause("nvlink5-modules-missing", "fabric", _modules_for_nvlink5,
          "load them (on Ubuntu they are in linux-modules-extra) and restart Fabric Manager: modprobe -a mlx5_ib ib_umad && systemctl restart nvidia-fabricmanager",
          ("NVIDIA/gpu-operator#2781",), explains=False),
    Cause("nvlink-subnet-manager-missing", "fabric", _subnet_manager,
          remedies.by_apply("install nvlsm, which starts before Fabric Manager", "nvlsm"), ("siderolabs/extensions#893",), explains=False),
    Cause("fabric-manager-missing", "fabric", _manager_missing,
          remedies.by_apply("install it in the driver's version", "fabric-manager"),
          ("NVIDIA/gpu-operator#356",), "fabric-manager", explains=False),
    Cause("fabric-manager-version", "fabric", manager_version,
          remedies.by_apply("install it in the driver's version", "fabric-manager"),
          ("NVIDIA/nvtrust#55",), "fabric-manager", explains=False),
    Cause("fabric-manager-down", "fabric", _manager_down,
          remedies.by_apply("start it", "fabric-manager"), ("NVIDIA/gpu-operator#356",), "fabric-manager",
          explains=False),
    Cause("imex-failed", "fabric", _imex,
          "list every node of the domain in /etc/nvidia-imex/nodes_config.cfg, identical on all nodes, and start it: systemctl restart nvidia-imex; "
          + remedies.by_apply("or apply", "imex"),
          ("NVIDIA/k8s-dra-driver-gpu#892",), "imex", explains=False),
    Cause("fabric-not-complete", "fabric", evidence_with(),
          "once no job runs: systemctl restart nvidia-fabricmanager; /var/log/fabricmanager.log names the NVLink that is not up"),
    Cause("uvm-not-loaded", "device-nodes", evidence_with("nvidia-uvm is not loaded"), remedies.UVM_NOT_LOADED, state="driver"),
    Cause("uvm-node-not-made", "device-nodes", _uvm_node, "create it: nvidia-modprobe -u -c=0; the first CUDA program creates it too"),
    Cause("mig-capability-without-node", "device-nodes", _capability, remedies.CAPABILITY_NODES, state="driver"),
    Cause("device-node-not-a-device", "device-nodes", evidence_with("not a device"),
          remedies.by_apply("empty it if it is a folder with content; recreate it", "driver"), state="driver"),
    Cause("device-numbers-moved", "device-nodes", evidence_with(" instead of "), "", ("NVIDIA/nvidia-container-toolkit#1828",), "driver"),
    Cause("device-node-missing", "device-nodes", evidence_with("missing"), "", state="driver"),
    Cause("mig-without-devices", "cuda", _empty, remedies.by_apply("create MIG devices, or disable MIG mode", "mig"),
          ("NVIDIA/gpu-operator#322",), "mig", explains=False),
    Cause("fabric-not-ready", "cuda", lambda v: _cuda(v, 802), remedies.cuda(802), ("NVIDIA/nvtrust#55",)),
    Cause("two-mps-daemons", "cuda", _two_daemons,
          "stop all but one, and use the same CUDA_MPS_PIPE_DIRECTORY for clients and daemon: echo quit | CUDA_MPS_PIPE_DIRECTORY=FOLDER nvidia-cuda-mps-control",
          ("NVIDIA/k8s-device-plugin#762",)),
    Cause("gpu-exclusive-and-taken", "cuda", _exclusive, "", ("NVIDIA/k8s-device-plugin#679",)),
    Cause("cuda-compat-in-the-way", "cuda", lambda v: _cuda(v, 803, 804), remedies.cuda(804)),
    Cause("memory-error", "cuda", lambda v: _cuda(v, 214, 700), remedies.cuda(214)),
    Cause("wrong-result", "cuda", lambda v: _cuda(v, None), remedies.cuda(None)),
    Cause("peermem-built-for-another-rdma-stack", "rdma", _peermem_symbols,
          "rebuild the driver's modules against the new RDMA stack: dkms build --force nvidia/VERSION; or use DMA-BUF instead",
          ("Mellanox/nv_peer_memory#63", "NVIDIA/gpu-operator#2868"), explains=False),
    Cause("peermem-not-loaded", "rdma", _peermem,
          "load it: modprobe nvidia-peermem; or use DMA-BUF instead (kernel 5.12, open modules); if it fails: dmesg | grep peermem",
          ("NVIDIA/gpu-operator#2844",), explains=False),
)  # fmt: skip
