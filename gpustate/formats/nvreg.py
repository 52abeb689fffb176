"""Parameters of the nvidia kernel module (``NVreg_...``): branches and allowed values.

modprobe ignores an unknown parameter with a line in the kernel log, and does not load the module at all with an
invalid value. Both are better reported before.

The table has the parameters that the open modules and the kernel interface of the proprietary ones share.
Names are checked for the branches in :data:`BRANCHES`, and a name outside of :data:`PARAMETERS` only if it is
similar to one of them.

Sources:
    NVIDIA/open-gpu-kernel-modules kernel-open/nvidia/nv-reg.h at the last tag of each branch from
    515.105.01 to 595.45.04, and common/inc/nv-linux.h (numbers are ``module_param(int)``);
    Linux kernel/params.c (``kstrtoint`` with base 0).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

#: The first and the last branch in the table.
BRANCHES = (515, 595)
PREFIX = "NVreg_"

#: Text parameters; all others are numbers.
TEXTS = frozenset(
    {
        *("CoherentGPUMemoryMode", "ExcludedGpus", "GpuBlacklist", "RegistryDwords"),
        *("RegistryDwordsPerDevice", "RmMsg", "RmNvlinkBandwidth", "TemporaryFilePath"),
    }
)
#: First branch of each parameter, and the last one if it was removed later.
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
#: Allowed values of text parameters, if restricted.
CHOICES = {"CoherentGPUMemoryMode": ("driver", "numa")}

_NUMBER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_INT = range(-(2**31), 2**31)


def problem(name: str, value: int | str, branch: int) -> str | None:
    """The problem of a parameter on a driver, with the remedy; ``None`` if there is none.

    Args:
        name: with the prefix ``NVreg_``; parameters of other modules are not checked.
        value: in the policy.
        branch: of the driver.
    """
    parameter = name.removeprefix(PREFIX)
    if parameter == name:
        return None
    judged = BRANCHES[0] <= branch <= BRANCHES[1]
    if parameter not in PARAMETERS:
        near = nearest(parameter, PARAMETERS) if judged else None
        return f"driver {branch} has no parameter {name}; did you mean {near}" if near else None
    first, last = PARAMETERS[parameter]
    if judged and branch < first:
        return f"driver {branch} has no parameter {name}, which was added in {first}; remove it"
    if judged and last is not None and branch > last:
        return f"driver {branch} has no parameter {name}, which was removed after {last}; remove it"
    return _bad_value(parameter, value)


def nearest(parameter: str, supported: Iterable[str], alike: float = 0.9) -> str | None:
    """The parameter most similar to a misspelt name, with its prefix.

    Args:
        parameter: without ``NVreg_``, like the supported ones.
        supported: the supported parameters.
        alike: minimum similarity, from 0 to 1.
    """
    by_fold = {supported_name.casefold(): supported_name for supported_name in supported}
    near = difflib.get_close_matches(parameter.casefold(), by_fold, 1, alike)
    return PREFIX + by_fold[near[0]] if near else None


def _bad_value(parameter: str, value: int | str) -> str | None:
    pair = f"{PREFIX}{parameter}={value}"
    if parameter in CHOICES and str(value) not in CHOICES[parameter]:
        return f"{pair}: must be {' or '.join(CHOICES[parameter])}"
    if parameter in TEXTS:
        return None
    text = str(value)
    if not _NUMBER.fullmatch(text):
        return f"{pair}: must be a number (decimal, 0x... or octal 0...); the module would not load"
    digits = text.lstrip("+-")
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
    if int(text, base) not in _INT:
        return f"{pair}: does not fit into a signed 32-bit integer; the module would not load"
    return None


__all__ = ["BRANCHES", "PARAMETERS", "PREFIX", "TEXTS", "nearest", "problem"]
