"""Health of each GPU, from NVML and from the kernel log since the module was loaded.

A finding is *failed* if the GPU must not get work any more, and *warning* if it still works and needs
attention. Temporary conditions (clocks, a PCIe link that saves power) are never more than a warning. A value
that a GPU does not report is no finding.

Surprising: a pending row remapping is not a fault, and work continues; a failed one requires a replacement.
An Xid that requires a reset fails a GPU only until the driver reports a recovery action of none.

This module also runs on the nodes themselves: standard library only, Python 3.9.

Sources:
    docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt: RMA policy (row-remapping failure flag), error recovery
    and response flags (remapping pending, recovery actions), 64 page retirements at most;
    nvml.h: nvmlDeviceGpuRecoveryAction_t, nvmlClocksEventReason...; :mod:`gpustate.formats.xids`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from gpustate.diagnosis import remedies as remedies
from gpustate.formats import xids
from gpustate.formats.nvml_report import Gpu, GpuHealth, NvmlFacts, error_name
from gpustate.formats.xids import Xid

FAILED = "failed"
WARNING = "warning"

RESET = xids.ACTIONS["RESET_GPU"][1]
REPLACE = (
    "run NVIDIA's field diagnostic and replace the GPU; until then exclude it: "
    "gpustate node quarantine -l NODE --gpu INDEX --for 7d --reason WHY"
)
#: What NVML says of a GPU without an NVLink fabric.
NO_FABRIC = ("", "not supported", "n/a")
#: Most pages that a GPU can retire.
MOST_RETIRED_PAGES = 64

_ACTIONS = {
    1: (FAILED, "a reset of the GPU", RESET),
    2: (FAILED, "a reboot of the node", "drain the node and reboot it"),
    3: (
        FAILED,
        "that peer-to-peer traffic stops",
        f"stop the processes that use peer-to-peer access to this GPU; if that does not help, reset it: {xids.RESET_COMMAND}",
    ),
    4: (
        WARNING,
        "a drain and a reset of the GPU",
        f"let its jobs finish, then reset it: {xids.RESET_COMMAND}",
    ),
    5: (FAILED, "a recovery of the IMEX domain", "recover the IMEX domain: nvidia-imex-ctl -N"),
    6: (FAILED, "a reset of its PCIe bus", "drain the GPU and reset its bus, or reboot the node"),
    7: (FAILED, "a reboot of the system", "drain the node and reboot it"),
}
_CLOCKS = {
    0x8: "hardware slowdown",
    0x20: "thermal, by the driver",
    0x40: "thermal, by the hardware",
    0x80: "power brake of the machine",
}
_IDLE = 0x1


@dataclass(frozen=True)
class Finding:
    """One problem of one GPU.

    ``gpu`` is its index, ``None`` for a GPU that the kernel log names and NVML does not.
    """

    gpu: int | None
    pci: str
    what: str
    level: str  # failed, warning
    evidence: str
    remedy: str
    source: str = ""

    @property
    def text(self) -> str:
        """One line without the remedy."""
        name = f"GPU {self.gpu}" if self.gpu is not None else "a GPU"
        name = "NVSwitch" if self.what == "sxid" else name
        return f"{name} ({self.pci}): {self.evidence}" if self.pci else f"{name}: {self.evidence}"


def judge(
    nvml: NvmlFacts, log: tuple[Xid, ...] = (), ran: Collection[str] = ()
) -> tuple[Finding, ...]:
    """Return the findings, GPU by GPU; failed ones first for each.

    Args:
        nvml: the GPUs.
        log: Xids since the module was loaded.
        ran: UUIDs of GPUs on which the kernel of the validation ran after these.
    """
    findings: list[Finding] = []
    most = _nvlinks_of_peers(nvml)
    for gpu in nvml.gpus:
        entries = tuple(xid for xid in log if gpu.pci and gpu.pci.startswith(f"{xid.pci}."))
        logged = list(_log(gpu, entries, ran=gpu.uuid in ran))
        rows = [*_memory(gpu), *_mode(gpu), *_itself(gpu, most.get(gpu.name, 0))]
        rows += logged if gpu.error is None else [_lost(gpu, gpu.error, logged)]
        findings += sorted(rows, key=lambda row: row.level)
    addresses = {gpu.pci.rpartition(".")[0] for gpu in nvml.gpus}
    every = bool(nvml.gpus) and all(gpu.uuid in ran for gpu in nvml.gpus)
    for xid in log:
        if xid.pci not in addresses:
            findings += _log(Gpu(-1, pci=f"{xid.pci}.0"), (xid,), ran=xid.of_switch and every)
    return tuple(findings)


def failed(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Findings that make a GPU unusable."""
    return tuple(finding for finding in findings if finding.level == FAILED)


def _finding(
    gpu: Gpu, kind: str, level: str, evidence: str, remedy: str, source: str = ""
) -> Finding:
    index = gpu.index if gpu.index >= 0 else None
    text = remedy.replace("INDEX", str(index)) if index is not None else remedy
    return Finding(index, gpu.pci, kind, level, evidence, text, source)


def _lost(gpu: Gpu, error: int, logged: list[Finding]) -> Finding:
    """A GPU that does not answer; what the log has of it is evidence, and needs no step of its own."""
    evidence = [f"{error_name(error)} (NVML {error})", *(finding.evidence for finding in logged)]
    return _finding(gpu, "no-answer", FAILED, "; ".join(evidence), remedies.nvml(error), "nvml.h")


def _memory(gpu: Gpu) -> Iterator[Finding]:
    policy = "docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt, RMA policy"
    flags = "docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt, error recovery and response flags"
    if gpu.remap_failed:
        yield _finding(gpu, "row-remap", FAILED, "row remapping failed", REPLACE, policy)
    if gpu.remap_pending:
        evidence = "row remapping is pending until a reset"
        yield _finding(gpu, "row-remap", WARNING, evidence, RESET, flags)
    health = gpu.health or GpuHealth()
    if health.retired_pages is not None and health.retired_pages >= MOST_RETIRED_PAGES:
        evidence = f"{health.retired_pages} pages retired, the maximum"
        yield _finding(gpu, "page-retirement", FAILED, evidence, REPLACE, policy)
    if health.retirement_pending:
        evidence = "page retirement is pending until a reset"
        yield _finding(gpu, "page-retirement", WARNING, evidence, RESET, policy)
    if health.ecc_uncorrectable:
        evidence = (
            f"{health.ecc_uncorrectable} uncorrectable memory errors since the driver was loaded"
        )
        yield _finding(gpu, "ecc", WARNING, evidence, RESET, flags)


def _mode(gpu: Gpu) -> Iterator[Finding]:
    if gpu.compute_mode == "Prohibited":
        evidence = "compute mode Prohibited: no program may use it"
        remedy = "if that is not intended: nvidia-smi -i INDEX -c DEFAULT; otherwise exclude the GPU: gpustate node quarantine -l NODE --gpu INDEX --for 7d --reason WHY"
        yield _finding(gpu, "compute-mode", FAILED, evidence, remedy, "nvml.h")


def _itself(gpu: Gpu, links: int) -> Iterator[Finding]:
    health = gpu.health
    if health is None:
        return
    if health.recovery_action in _ACTIONS:
        level, action, remedy = _ACTIONS[health.recovery_action]
        evidence = f"the driver requests {action}"
        yield _finding(gpu, "recovery-action", level, evidence, remedy, "nvml.h")
    yield from _pcie(gpu, health)
    reasons = health.clock_reasons or 0
    slow = [word for bit, word in _CLOCKS.items() if reasons & bit]
    if slow:
        evidence = f"clocks are throttled: {', '.join(slow)}"
        remedy = "check fans, coolant, inlet air and power supplies; show the reasons: nvidia-smi -q -d PERFORMANCE"
        yield _finding(gpu, "clocks", WARNING, evidence, remedy, "nvml.h")
    yield from _nvlink(gpu, health, links)


def _pcie(gpu: Gpu, health: GpuHealth) -> Iterator[Finding]:
    seat = "reseat the GPU or its riser, and compare it with its peers; look for PCIe errors: dmesg | grep AER"
    width, widest = health.pcie_width, health.pcie_width_most
    if width and widest and width < widest:
        evidence = f"PCIe x{width}; GPU and slot support x{widest}"
        yield _finding(gpu, "pcie-width", WARNING, evidence, seat, "nvml.h")
    generation, most = health.pcie_generation, health.pcie_generation_most
    # An idle GPU lowers the speed of its link.
    busy = health.clock_reasons is not None and not health.clock_reasons & _IDLE
    if generation and most and generation < most and busy:
        evidence = f"PCIe generation {generation} under load; GPU and slot support {most}"
        yield _finding(gpu, "pcie-speed", WARNING, evidence, seat, "nvml.h")


def _nvlinks_of_peers(nvml: NvmlFacts) -> dict[str, int]:
    """Most links that are up on any GPU of a model: all GPUs of a board have equally many, PCIe cards their bridges'."""
    most: dict[str, int] = {}
    for gpu in nvml.gpus:
        on_board = gpu.fabric_state not in NO_FABRIC or "SXM" in gpu.name
        if on_board and gpu.health is not None and gpu.health.nvlinks:
            up = gpu.health.nvlinks - len(gpu.health.nvlinks_down)
            most[gpu.name] = max(most.get(gpu.name, 0), up)
    return most


def _nvlink(gpu: Gpu, health: GpuHealth, links: int) -> Iterator[Finding]:
    remedy = "reset the GPU, and replace it if that does not help; show link states and errors: nvidia-smi nvlink -s; nvidia-smi nvlink -e"
    up = (health.nvlinks or 0) - len(health.nvlinks_down)
    if health.nvlinks and up < links:
        down = ", ".join(str(link) for link in health.nvlinks_down[:6])
        evidence = f"{up} NVLinks up, {links} on its peers; down: {down}"
        yield _finding(gpu, "nvlink", FAILED, evidence, remedy, "nvml.h")
    if health.nvlink_recoveries:
        evidence = f"NVLinks recovered {health.nvlink_recoveries} times since the driver was loaded"
        yield _finding(gpu, "nvlink-errors", WARNING, evidence, remedy, "nvml.h")


def _log(gpu: Gpu, log: tuple[Xid, ...], *, ran: bool = False) -> Iterator[Finding]:
    recovery = gpu.health.recovery_action if gpu.health is not None else None
    for xid in log:
        row = xids.find_row(xid.number)
        kind, remedy = xids.ACTIONS[xid.action]
        if kind == xids.REPORT:
            continue
        # What a GPU reports of itself says nothing of the fabric: only a kernel that ran since does.
        itself = recovery == 0 and xid.action != "RESET_FABRIC"
        fixed = gpu.error is None and (itself or (recovery in (0, None) and ran))
        level = FAILED if kind == xids.RESET and not fixed else WARNING
        times = "" if xid.count == 1 else f", {xid.count} times"
        evidence = f"{xid.name} ({xid.action or 'no action named'}){times}"
        if kind == xids.RESET and fixed:
            since = "the driver requests no recovery any more" if itself else "a kernel ran since"
            evidence += f"; {since}"
            remedy = "replace the GPU if it happens again"
        elif kind == xids.RESET and recovery is None:  # nothing tells that this was done
            remedy += f"; then: {remedies.VALIDATE}"
        yield _finding(
            gpu,
            "sxid" if xid.of_switch else "xid",
            level,
            evidence,
            remedy,
            xids.SOURCES[row.source],
        )
