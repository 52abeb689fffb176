"""NVIDIA's Xid errors, NVIDIA's recommended action for each, and their lines in the kernel log.

Surprising: an Xid is an event, not a state. A reset or a reload of the module fixes a GPU but the line stays. So
only lines since the module was loaded count, and since the last reset that is logged; the GPU itself is queried as well.
The driver logs no reset; NVSentinel does for those that it makes.

This module also runs on the nodes themselves: standard library only, Python 3.9.

Sources:
    of each row; ``catalog`` and ``extra`` are in :data:`SOURCES`; NVIDIA/NVSentinel, gpu-reset/gpu_reset.sh ("GPU reset executed").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

SOURCES = {
    # Its sheet "Catalog" of 2025-10-29: name and immediate action.
    "catalog": "docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html (as of 2025-10-29)",
    # Rows that the sheet gives no action.
    "extra": "docs.nvidia.com/deploy/xid-errors, catalog without an action (as of 2025-10-29)",
    # 175 is logged in place of 119 when the memory subsystem is stuck: kernel_gsp.c, _kgspClassifyGspTimeout.
    "driver": "NVIDIA/open-gpu-kernel-modules 595.45.04, nverror.h",
    # Numbers of NVSwitches and what a fatal one needs.
    "fabric": "docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide, SXid errors; leptonai/gpud#338",
    "events": "docs.nvidia.com/deploy/gpu-operational-events/620, release notes (as of 2026-11-29)",
}

#: Resets a GPU, which nvidia-persistenced keeps open. Without that service the first and the last command do nothing.
RESET_COMMAND = "systemctl stop nvidia-persistenced; nvidia-smi --gpu-reset -i INDEX; systemctl start nvidia-persistenced"
#: Severity and remedy of NVIDIA's actions.
RESET, REPORT, INVESTIGATE = "reset", "report", "look"
ACTIONS = {
    "IGNORE": (REPORT, "nothing to do"),
    "RESTART_APP": (
        REPORT,
        "restart the application; it caused the error, or was hit by a contained one",
    ),
    "RESET_GPU": (RESET, f"drain the GPU and reset it: {RESET_COMMAND}"),
    "RESTART_BM": (RESET, "drain the node and reboot it; power-cycle it if that does not help"),
    "RESTART_VM": (RESET, "restart the virtual machine"),
    "WORKFLOW_XID_48": (RESET, "drain the GPU, reset it, and check for remapped rows"),
    "WORKFLOW_XID_45": (REPORT, "follow the Xid before it; alone, restart Fabric Manager"),
    "WORKFLOW_NVLINK_ERR": (
        INVESTIGATE,
        "check nvidia-smi nvlink -e; reset the GPU, and replace it if the error recurs",
    ),
    "WORKFLOW_NVLINK5_ERR": (
        INVESTIGATE,
        "follow NVIDIA's NVLink 5 workflow for its sub-code; Fabric Manager's log has more",
    ),
    "CHECK_MECHANICALS": (INVESTIGATE, "check the power cables and the seating of the GPU"),
    "CHECK_UVM": (INVESTIGATE, "check dmesg for nvidia-uvm errors"),
    "UPDATE_SWFW": (INVESTIGATE, "use another driver; see gpustate driver outdated"),
    "CONTACT_SUPPORT": (INVESTIGATE, "collect nvidia-bug-report.sh and contact NVIDIA support"),
    "RESET_FABRIC": (
        RESET,
        "drain the node and reset all its GPUs and NVSwitches: stop nvidia-fabricmanager and nvidia-persistenced, nvidia-smi --gpu-reset, start them; or reboot",
    ),
    "XID_154": (REPORT, "see nvidia-smi --query-gpu=gpu_recovery_action"),
    "": (INVESTIGATE, "see NVIDIA's Xid catalog"),
}


@dataclass(frozen=True)
class XidRow:
    """A row: number, NVIDIA's name, NVIDIA's immediate action, source."""

    number: int
    name: str
    action: str
    source: str = "catalog"


def _rows(action: str, names: dict[int, str], source: str = "catalog") -> list[XidRow]:
    return [XidRow(number, name, action, source) for number, name in names.items()]


#: Xids in use; the catalog has the other numbers up to 172 as unused, for support.
TABLE: dict[int, XidRow] = {
    row.number: row
    for row in (
        *_rows(
            "RESTART_APP",
            {
                8: "ROBUST_CHANNEL_FIFO_ERROR_IDLE_TIMEOUT",
                11: "ROBUST_CHANNEL_GR_ERROR_MISSING_HW",
                13: "ROBUST_CHANNEL_GR_EXCEPTION",
                25: "ROBUST_CHANNEL_GR_ILLEGAL_NOTIFY",
                31: "ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT",
                32: "ROBUST_CHANNEL_PBDMA_ERROR",
                39: "ROBUST_CHANNEL_CE0_ERROR",
                40: "ROBUST_CHANNEL_CE1_ERROR",
                41: "ROBUST_CHANNEL_CE2_ERROR",
                60: "ROBUST_CHANNEL_SEC2_ERROR",
                68: "ROBUST_CHANNEL_NVDEC0_ERROR",
                69: "ROBUST_CHANNEL_GR_CLASS_ERROR",
                70: "ROBUST_CHANNEL_CE3_ERROR",
                71: "ROBUST_CHANNEL_CE4_ERROR",
                72: "ROBUST_CHANNEL_CE5_ERROR",
                75: "ROBUST_CHANNEL_CE6_ERROR",
                76: "ROBUST_CHANNEL_CE7_ERROR",
                77: "ROBUST_CHANNEL_CE8_ERROR",
                80: "PBDMA_PUSHBUFFER_CRC_MISMATCH",
                82: "ROBUST_CHANNEL_NVJPG0_ERROR",
                83: "ROBUST_CHANNEL_NVDEC1_ERROR",
                84: "ROBUST_CHANNEL_NVDEC2_ERROR",
                85: "ROBUST_CHANNEL_CE9_ERROR",
                86: "ROBUST_CHANNEL_OFA0_ERROR",
                88: "ROBUST_CHANNEL_NVDEC3_ERROR",
                89: "ROBUST_CHANNEL_NVDEC4_ERROR",
                94: "ROBUST_CHANNEL_CONTAINED_ERROR",
                **{96 + n: f"ROBUST_CHANNEL_NVDEC{5 + n}_ERROR" for n in range(3)},
                **{99 + n: f"ROBUST_CHANNEL_NVJPG{1 + n}_ERROR" for n in range(7)},
                **{126 + n: f"ROBUST_CHANNEL_CE{10 + n}_ERROR" for n in range(10)},
                139: "ROBUST_CHANNEL_OFA1_ERROR",
            },
        ),
        *_rows(
            "IGNORE",
            {
                14: "ROBUST_CHANNEL_FAKE_ERROR",
                37: "ROBUST_CHANNEL_FECS_ERR_UNIMP_FIRMWARE_METHOD",
                38: "ROBUST_CHANNEL_FECS_ERR_WATCHDOG_TIMEOUT",
                43: "ROBUST_CHANNEL_RESETCHANNEL_VERIF_ERROR",
                44: "ROBUST_CHANNEL_GR_FAULT_DURING_CTXSW",
                63: "INFOROM_DRAM_RETIREMENT_EVENT",
                66: "ROBUST_CHANNEL_FECS_ERR_REG_ACCESS_VIOLATION",
                67: "ROBUST_CHANNEL_FECS_ERR_VERIF_VIOLATION",
                92: "EXCESSIVE_SBE_INTERRUPTS",
                93: "INFOROM_ERASE_LIMIT_EXCEEDED",
                106: "SMBPBI_TEST_MESSAGE",
                107: "SMBPBI_TEST_MESSAGE_SILENT",
                108: "NVLINK_REMOTE_TRANSLATION_ERROR",
                121: "C2C_ERROR",
                137: "NVLINK_PRIV_ERR",
                141: "ROBUST_CHANNEL_FAST_PATH_ERROR",
                152: "ROBUST_CHANNEL_DLA_SMMU_ERROR",
                153: "ROBUST_CHANNEL_DLA_TIMEOUT",
                157: "RESOURCE_RETIREMENT_FAILURE",
                160: "CHANNEL_RETIREMENT_EVENT",
                161: "CHANNEL_RETIREMENT_FAILURE",
            },
        ),
        *_rows(
            "RESET_GPU",
            {
                46: "ROBUST_CHANNEL_GPU_TIMEOUT_ERROR",
                62: "PMU_HALT_ERROR",
                64: "INFOROM_DRAM_RETIREMENT_FAILURE",
                95: "ROBUST_CHANNEL_UNCONTAINED_ERROR",
                109: "ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR",
                110: "SEC_FAULT_ERROR",
                119: "GSP_RPC_TIMEOUT",
                120: "GSP_ERROR",
                136: "ALI_TRAINING_FAIL",
                140: "UNRECOVERABLE_ECC_ERROR_ESCAPE",
                143: "GPU_INIT_ERROR",
                155: "NVLINK_SW_DEFINED_ERROR",
                156: "RESOURCE_RETIREMENT_EVENT",
                158: "GPU_FATAL_TIMEOUT",
            },
        ),
        *_rows("RESTART_BM", {79: "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS"}),
        *_rows("RESTART_VM", {151: "ROBUST_CHANNEL_KEY_ROTATION_ERROR"}),
        *_rows("WORKFLOW_XID_45", {45: "ROBUST_CHANNEL_PREEMPTIVE_REMOVAL"}),
        *_rows("WORKFLOW_XID_48", {48: "ROBUST_CHANNEL_GPU_ECC_DBE"}),
        *_rows("WORKFLOW_NVLINK_ERR", {74: "NVLINK_ERROR"}),
        *_rows(
            "WORKFLOW_NVLINK5_ERR",
            {
                144: "NVLINK_SAW_ERROR",
                145: "NVLINK_RLW_ERROR",
                146: "NVLINK_TLW_ERROR",
                147: "NVLINK_TREX_ERROR",
                148: "NVLINK_NVLPW_CTRL_ERROR",
                149: "NVLINK_NETIR_ERROR",
                150: "NVLINK_MSE_ERROR",
            },
        ),
        *_rows("CHECK_MECHANICALS", {54: "SILENT_RUNNING_PWR_REDUCED_CLOCKING"}),
        *_rows("CHECK_UVM", {159: "ROBUST_CHANNEL_CHI_NON_DATA_ERROR"}),
        *_rows("UPDATE_SWFW", {78: "VGPU_START_ERROR"}),
        *_rows("CONTACT_SUPPORT", {142: "ROBUST_CHANNEL_NVENC3_ERROR"}),
        *_rows("XID_154", {154: "GPU_RECOVERY_ACTION_CHANGED"}),
        *_rows(
            "",
            {
                162: "PSHC_REENGAGED",
                163: "PSHC_DISENGAGED",
                164: "PSHC_LOW_LIFETIME",
                165: "PSHC_ZERO_LIFETIME",
                166: "NVLINK_SECURE_CRYPTO_ERR",
                167: "PCIE_FATAL_TIMEOUT",
                168: "REDUCED_GPU_MEMORY_CAPACITY",
                169: "SEC2_HALT_ERROR",
                170: "NVLINK_SECURE_OTHER",
                171: "UNCORRECTABLE_DRAM_ERROR",
                172: "UNCORRECTABLE_SRAM_ERROR",
            },
            "extra",
        ),
        *_rows(
            "",
            {
                173: "C2C_FATAL_LINK_FAILURE",
                174: "ROBUST_CHANNEL_RESETCHANNEL_KILL_PROCESS_SILENT",
                176: "PCIE_CORRECTABLE_ERROR_FAULT",
            },
            "driver",
        ),
        *_rows("RESET_GPU", {175: "MEMORY_SUBSYSTEM_ERROR"}, "driver"),
        *_rows("", {185: "SPARING_EVENT"}, "events"),
    )
}
_LAST = 172
_FIRST_OF_SWITCHES = 10_000


def find_row(number: int) -> XidRow:
    """The row of an Xid; a generic one if the table has none."""
    if number in TABLE:
        return TABLE[number]
    if number >= _FIRST_OF_SWITCHES:
        return XidRow(number, "NVSwitch error", "RESET_FABRIC", "fabric")
    if 0 < number <= _LAST:
        return XidRow(number, "unused", "CONTACT_SUPPORT")
    return XidRow(number, "not in the table", "", "extra")


@dataclass(frozen=True)
class Xid:
    """Occurrences of one Xid of one GPU in the kernel log since the module was loaded."""

    pci: str  # domain, bus and device as in sysfs, without the function: 0000:1b:00
    number: int
    count: int
    last_s: float  # seconds after boot
    text: str  # the rest of the last line
    severity: str = ""  # Fatal or Nonfatal, of NVLink 5 and NVSwitches

    @property
    def of_switch(self) -> bool:
        """An SXid: ``pci`` is an NVSwitch."""
        return self.number >= _FIRST_OF_SWITCHES

    @property
    def action(self) -> str:
        """NVIDIA's action; a fatal error of NVLink 5 needs what a failed fabric needs (leptonai/gpud#1174)."""
        action = find_row(self.number).action
        fatal = self.severity == "Fatal" and action == "WORKFLOW_NVLINK5_ERR"
        return "RESET_FABRIC" if fatal else action

    @property
    def name(self) -> str:
        """Kind, number and NVIDIA's name, with the unit and severity in the line."""
        unit = f" ({self.text.split(' (')[0]})" if self.severity else ""
        return f"{'SXid' if self.of_switch else 'Xid'} {self.number} {find_row(self.number).name}{unit}"


#: Prints lines of the kernel log since boot, and root's of resets: of the journal where that has them, else of dmesg.
SCRIPT = r"""
k() { timeout -k 2 10 journalctl -b -q --no-pager -o short-monotonic "$@" _TRANSPORT=kernel + _UID=0 SYSLOG_IDENTIFIER=nvsentinel-gpu-reset 2>/dev/null; }
x='NVRM: Xid|: SXid|NVRM: loading NVIDIA UNIX|GPU reset executed: '
if command -v journalctl >/dev/null && [ -n "$(k -n 1)" ]; then k | grep -E "$x"
else timeout -k 2 10 dmesg 2>/dev/null | grep -E "$x"; fi | tail -n 2000 | while IFS= read -r l; do printf 'xid=%s\n' "$l"; done
"""

_LINE = re.compile(
    r"^\[ *(\d{1,12}(?:\.\d{1,9})?)\].*?(?:NVRM: Xid|nvidia-nvswitch\d+: SXid) \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^)]*\): (\d{1,5})\b,? ?(.*)"
)
_SEVERITY = re.compile(r"\b(Fatal|Nonfatal|Non-fatal)\b")
_LOADED = "NVRM: loading NVIDIA UNIX"
_RESET = re.compile(r": GPU reset executed: (GPU-[0-9a-f-]{36})(?!, success: false)")


def parse(lines: list[str], addresses: Mapping[str, str]) -> tuple[Xid, ...]:
    """Parse lines of the log, oldest first, without those before the last load of the module or the GPU's last reset.

    Of NVSwitches only fatal errors count: others are common at start (NVIDIA/nvtrust#124). A fabric is reset as a whole.

    Args:
        lines: of :data:`SCRIPT`.
        addresses: PCI address of each GPU, without the function, by UUID.
    """
    xids: dict[tuple[str, int, str], Xid] = {}
    for line in lines:
        if _LOADED in line:
            xids = {}
        if reset := _RESET.search(line):
            pci = addresses.get(reset[1])
            xids = {
                place: xid
                for place, xid in xids.items()
                if xid.pci != pci or xid.action == "RESET_FABRIC"
            }
        match = _LINE.match(line)
        if match is None:
            continue
        domain, _, device = match[2].lower().partition(":")
        number, word = int(match[3]), None
        if number >= _FIRST_OF_SWITCHES or find_row(number).action == "WORKFLOW_NVLINK5_ERR":
            word = _SEVERITY.search(match[4])
        severity = word[1] if word else ""
        if number >= _FIRST_OF_SWITCHES and severity != "Fatal":
            continue
        place = (f"{int(domain, 16):04x}:{device}", number, severity)
        before = xids.get(place)
        count = 1 if before is None else before.count + 1
        xids[place] = Xid(*place[:2], count, float(match[1]), match[4].strip()[:200], severity)
    return tuple(xids[place] for place in sorted(xids))
