"""Which kernel modules drive the GPUs of a node, by architecture and branch.

Sources:
    NVIDIA/nvidia-installer: kernel.c, ``valid_kernel_module_types``; misc.c; detect-self-hosted.h.
    NVIDIA driver installation guide, kernel modules: Blackwell needs the open ones.
    CUDA toolkit, driver and architecture matrix: 580 is the last branch for Maxwell to Volta.
    cupy/cupy#10295, package lists of 615.71.09 on Debian: no proprietary modules any more.
"""

from __future__ import annotations

from gpustate import PciGpu
from gpustate.formats.driverschemes import LAST_PROPRIETARY, OPEN, PROPRIETARY

LAST_BEFORE_TURING = 580
LAST_KEPLER = 470
OPEN_BY_DEFAULT_FROM = 560
FIRST_OPEN = 515


def named(gpus: list[PciGpu]) -> str:
    """GPUs as a person finds them: address, device id, architecture."""
    return ", ".join(
        f"{gpu.address} ({gpu.architecture or 'unknown'}, 10de:{gpu.device_id})" for gpu in gpus
    )


def _supported(gpus: tuple[PciGpu, ...], branch: int) -> tuple[PciGpu, ...]:
    """GPUs without the display cards that a branch is too new for: the driver ignores these and serves the others."""
    ended = [
        (LAST_KEPLER, ("kepler",)),
        (LAST_BEFORE_TURING, ("kepler", "maxwell", "pascal", "volta")),
    ]
    names = {name for last, group in ended if branch > last for name in group}
    return tuple(
        gpu for gpu in gpus if gpu.architecture not in names or not gpu.class_id.startswith("0300")
    )


def module_type(
    gpus: tuple[PciGpu, ...], branch: int, requested: str
) -> tuple[str, None] | tuple[None, str]:
    """The module type for a branch, or why there is none.

    Args:
        gpus: those on the node; an image has none.
        branch: driver branch.
        requested: auto, open or proprietary.
    """
    gpus = _supported(gpus, branch) or gpus
    opens = [gpu for gpu in gpus if gpu.needs_open_modules]
    olds = [gpu for gpu in gpus if gpu.needs_proprietary_modules]
    keplers = [gpu for gpu in gpus if gpu.architecture == "kepler"]
    if keplers and branch > LAST_KEPLER:
        return (
            None,
            f"{named(keplers)} is driven by branch {LAST_KEPLER} and older only, not by {branch}",
        )
    if olds and branch > LAST_BEFORE_TURING:
        return None, (
            f"{named(olds)} is driven by branch {LAST_BEFORE_TURING} and older only, not by {branch}; "
            f"set branch: {LAST_BEFORE_TURING}"
        )
    if opens and olds:
        return None, (
            f"{named(opens)} needs the open modules and {named(olds)} the proprietary ones, and "
            "no driver supports both; remove one kind of GPU from the node"
        )
    if requested == OPEN and olds:
        return None, f"the open modules cannot drive {named(olds)}; set module_type: proprietary"
    if requested == PROPRIETARY and opens:
        return (None, f"the proprietary modules cannot drive {named(opens)}; set module_type: open")
    if branch > LAST_PROPRIETARY and requested == PROPRIETARY:
        return None, (
            f"branch {branch} has no proprietary modules any more; set module_type: open, or "
            f"branch: {LAST_PROPRIETARY}, the last that has them"
        )
    if branch < FIRST_OPEN and (requested == OPEN or opens):
        return None, f"branch {branch} has no open modules; they begin with {FIRST_OPEN}"
    if requested != "auto":
        return requested, None
    if opens:
        return OPEN, None
    return (OPEN if branch >= OPEN_BY_DEFAULT_FROM and not olds else PROPRIETARY), None
