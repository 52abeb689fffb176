"""Parameters of the nvidia kernel module (``NVreg_...``): which branch has which, and what they take.

modprobe leaves a parameter the module does not know aside with one line in the kernel log, and loads no
module at all when a value cannot be read: both are better known before.

The table holds what the open modules and the kernel interface of the proprietary ones have in common.
Names are judged for the branches in :data:`BRANCHES`, and one outside of :data:`PARAMETERS` only when it
is nearly one of them.

Sources:
    NVIDIA/open-gpu-kernel-modules kernel-open/nvidia/nv-reg.h at the last tag of each branch from
    515.105.01 to 595.45.04, and common/inc/nv-linux.h (numbers are ``module_param(int)``);
    Linux kernel/params.c (``kstrtoint`` with base 0).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

#: The first and the last branch that was looked at.
BRANCHES = (515, 595)
PREFIX = "NVreg_"

#: Take a text; every other one takes a number.
TEXTS = frozenset(
    {
        "CoherentGPUMemoryMode",
        "ExcludedGpus",
        "GpuBlacklist",
        "RegistryDwords",
        "RegistryDwordsPerDevice",
        "RmMsg",
        "RmNvlinkBandwidth",
        "TemporaryFilePath",
    }
)
#: Parameter to the first branch that has it, and the last where a later one dropped it.
PARAMETERS: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys(
        (
            *("DeviceFileGID", "DeviceFileMode", "DeviceFileUID", "DmaRemapPeerMmio"),
            *("DynamicPowerManagement", "DynamicPowerManagementVideoMemoryThreshold"),
            *("EnableDbgBreakpoint", "EnableGpuFirmware", "EnableGpuFirmwareLogs", "EnableMSI"),
            *("EnablePCIERelaxedOrderingMode", "EnablePCIeGen3", "EnableS0ixPowerManagement"),
            *("EnableStreamMemOPs", "EnableUserNUMAManagement", "ExcludedGpus", "GpuBlacklist"),
            *("IgnoreMMIOCheck", "InitializeSystemMemoryAllocations", "KMallocHeapMaxSize"),
            *("MemoryPoolSize", "ModifyDeviceFiles", "NvLinkDisable"),
            *("OpenRmEnableUnsupportedGpus", "PreserveVideoMemoryAllocations"),
            *("RegisterPCIDriver", "RegistryDwords", "RegistryDwordsPerDevice"),
            *("ResmanDebugLevel", "RestrictProfilingToAdminUsers", "RmLogonRC", "RmMsg"),
            *("S0ixPowerManagementVideoMemoryThreshold", "TemporaryFilePath"),
            *("UsePageAttributeTable", "VMallocHeapMaxSize"),
        ),
        (515, None),
    ),
    "TCEBypassMode": (515, 565),
    "EnableResizableBar": (535, None),
    "RmNvlinkBandwidth": (535, None),
    "EnableNonblockingOpen": (550, None),
    "ImexChannelCount": (550, None),
    "CreateImexChannel0": (555, None),
    "RmNvlinkBandwidthLinkCount": (565, None),
    "GrdmaPciTopoCheckOverride": (570, None),
    "CoherentGPUMemoryMode": (580, None),
    "RegisterPlatformDeviceDriver": (580, None),
    "EnableSystemMemoryPools": (590, None),
    "TegraGpuPgMask": (590, None),
    "ExcludeAllGpus": (595, None),
    "GpuInitOnProbe": (595, None),
    "UseKernelSuspendNotifiers": (595, None),
}
#: What a text may be, where that is a list.
CHOICES = {"CoherentGPUMemoryMode": ("driver", "numa")}

_NUMBER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_INT = range(-(2**31), 2**31)


def problem(name: str, value: int | str, branch: int) -> str | None:
    """Why a parameter will not do on a driver, with the next move; None: nothing against it.

    Args:
        name: with ``NVreg_`` in front; those of other modules are not judged.
        value: as the policy has it.
        branch: of the driver that gets it.
    """
    bare = name.removeprefix(PREFIX)
    if bare == name:
        return None
    judged = BRANCHES[0] <= branch <= BRANCHES[1]
    if bare not in PARAMETERS:
        near = nearest(bare, PARAMETERS) if judged else None
        return f"driver {branch} has no parameter {name}; did you mean {near}" if near else None
    first, last = PARAMETERS[bare]
    if judged and branch < first:
        return f"driver {branch} has no parameter {name}, which came with {first}; take it out"
    if judged and last is not None and branch > last:
        return f"driver {branch} has no parameter {name} any more, {last} was the last; take it out"
    return _bad_value(bare, value)


def nearest(bare: str, known: Iterable[str], alike: float = 0.9) -> str | None:
    """The parameter that a name is a slip of, with its prefix.

    Args:
        bare: without ``NVreg_``, as those that are known.
        known: the parameters there are.
        alike: how much alike they have to be, from 0 to 1.
    """
    by_fold = {one.casefold(): one for one in known}
    found = difflib.get_close_matches(bare.casefold(), by_fold, 1, alike)
    return PREFIX + by_fold[found[0]] if found else None


def _bad_value(bare: str, value: int | str) -> str | None:
    said = f"{PREFIX}{bare}={value}"
    if bare in CHOICES and str(value) not in CHOICES[bare]:
        return f"{said}: must be {' or '.join(CHOICES[bare])}"
    if bare in TEXTS:
        return None
    text = str(value)
    if not _NUMBER.fullmatch(text):
        return f"{said}: must be a number (decimal, 0x... or octal 0...); the module would not load"
    digits = text.lstrip("+-")
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
    if int(text, base) not in _INT:
        return f"{said}: does not fit into 32 bits with a sign; the module would not load"
    return None


__all__ = ["BRANCHES", "PARAMETERS", "PREFIX", "TEXTS", "nearest", "problem"]
