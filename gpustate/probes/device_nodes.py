"""Device nodes of the driver below /dev: which there should be, what is wrong with them, how they are made.

A module that is loaded says nothing of the nodes below /dev: containers and NVML itself see only the GPUs that
have one. A GPU instance and a compute instance of MIG have one more each, their capability, below
/dev/nvidia-caps; who may open both may use the MIG device.

Surprising: device nodes are made by whoever first opens a GPU, not by the module, so one that is missing is
damage only where its GPU has been opened: until then /proc shows its UUID with question marks. The major number
of ``nvidia-caps`` is given anew at each load of the module, so nodes of an earlier one can stay behind.

Sources:
    NVIDIA driver README, "Using the Device Files": ModifyDeviceFiles, DeviceFileUID, -GID, -Mode; 195 is
    the major number, 255 the minor of nvidiactl. NVIDIA/nvidia-modprobe, nvidia-modprobe-utils.c: -u makes
    nvidia-uvm and nvidia-uvm-tools; ``nvidia_cap_mknod``: DeviceFileMinor of a file below
    /proc/driver/nvidia/capabilities is that of /dev/nvidia-caps/nvidia-capN, DeviceFileMode its mode,
    DeviceFileModify 0 leaves it to the administrator. MIG User Guide, "Device Nodes and Capabilities".
"""

from __future__ import annotations

from collections.abc import Iterable

from gpustate import shell
from gpustate.formats.numbers import hexadecimal
from gpustate.probes.mig_capabilities import CAPS

_CAPABILITIES = "/dev/nvidia-caps/nvidia-cap[0-9]*"


def _rows(nodes: str, *globs: str) -> str:
    text = shell.load("device_nodes", "gpustate.probes")
    return shell.fill(text, NODES=nodes, CAPS=CAPS, GLOBS=" ".join(globs))


#: Prints ``node=PATH NUMBERS OPENED`` for each device node there should be, and ``found=`` for those there are.
NODES = _rows(
    shell.load("driver_nodes", "gpustate.probes"),
    *("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia[0-9]*", _CAPABILITIES),
)
#: The same of capabilities alone.
CAPABILITIES = _rows("", _CAPABILITIES)


def make(nodes: str) -> str:
    """Make what ``NODES`` or ``CAPABILITIES`` finds wrong, with the owner and mode that the driver's files in /proc say."""
    return shell.fill(shell.load("make_device_nodes", "gpustate.probes"), NODES=nodes)


def wrong(expected: Iterable[str], present: Iterable[str]) -> tuple[str, ...]:
    """What is wrong with device nodes, from the rows ``node=`` and ``cap=``, and ``present=``, of :data:`NODES`."""
    numbers_by_path: dict[str, str] = {}
    for row in present:
        path, kind, major, minor = (*row.split("|"), "", "", "")[:4]
        numbers = f"{hexadecimal(major)}:{hexadecimal(minor)}"
        numbers_by_path[path] = numbers if kind == "character special file" else f"a {kind}"
    problems: list[str] = []
    for row in expected:
        path, numbers, opened, _, name = (*row.split(" "), "", "", "", "")[:5]
        has, label = numbers_by_path.get(path), f" ({name})" if name else ""
        if has is None and opened:
            problems.append(f"{path} is missing{label}")
        elif has is not None and has != numbers:
            problems.append(f"{path} is {has}, not {numbers}{label}")
    return tuple(sorted(problems))


__all__ = ["CAPABILITIES", "NODES", "make", "wrong"]
