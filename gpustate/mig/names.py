"""Parse names of MIG profiles (``1c.3g.20gb``, ``1g.10gb+me``) and PCI device ids.

A profile name is ``<c>c.<g>g.<gb>gb`` and attributes: ``<c>c.`` is omitted if the compute instance occupies its whole
GPU instance, ``+`` begins included attributes, ``-`` excluded ones. Two spellings of one profile (``7c.7g.40gb``,
``7g.40gb``) are equal here. mig-parted accepts both, but never considers a layout with the long one correct.

Sources:
    NVIDIA/go-nvlib, pkg/nvlib/device/mig_profile.go: the grammar.
    NVIDIA/mig-parted v0.15, pkg/types/device.go: device ids with and without a subsystem.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NVIDIA = "10de"

_PROFILE = re.compile(
    r"(?:(?P<c>[1-9]\d?)c\.)?(?P<g>[1-9]\d?)g\.(?P<gb>[1-9]\d{0,4})gb"
    r"(?:(?P<sign>[+-])(?P<attributes>[^+-]*))?"
)
_ATTRIBUTE = re.compile(r"[A-Za-z](?:[A-Za-z0-9.]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"0[xX]([0-9A-Fa-f]{4})([0-9A-Fa-f]{4})")


@dataclass(frozen=True, slots=True)
class DeviceName:
    """A MIG device in a configuration: a compute instance of some size in a profile.

    Args:
        slices: compute slices of the compute instance.
        profile: name of the GPU instance's profile, without ``<c>c.``.
    """

    slices: int
    profile: str

    def __str__(self) -> str:
        return device_name(self.slices, self.profile)


def device_name(slices: int, profile: str) -> str:
    """``1c.3g.20gb`` for one slice of ``3g.20gb``, ``3g.20gb`` for all three."""
    return profile if slices == profile_slices(profile) else f"{slices}c.{profile}"


def profile_slices(profile: str) -> int:
    """Compute slices of a GPU instance profile, which its name begins with."""
    return int(profile.partition("g.")[0])


def parse_device_name(text: str) -> DeviceName:
    """Read the name of a MIG device.

    Raises:
        ValueError: with the problem.
    """
    match = _PROFILE.fullmatch(text)
    if match is None:
        raise ValueError("wanted a MIG profile such as 1g.10gb, 1g.10gb+me or 1c.3g.40gb")
    slices, gpu_slices = int(match["c"] or match["g"]), int(match["g"])
    if slices > gpu_slices:
        raise ValueError(f"{slices} compute slices do not fit into {gpu_slices}")
    suffix = ""
    if match["sign"]:
        attributes = match["attributes"].split(",")
        for attribute in attributes:
            if not _ATTRIBUTE.fullmatch(attribute):
                raise ValueError(f"{attribute!r} is not an attribute of a MIG profile")
        if len(set(attributes)) < len(attributes):
            raise ValueError("duplicate attribute")
        suffix = match["sign"] + ",".join(sorted(attributes))
    return DeviceName(slices, f"{gpu_slices}g.{int(match['gb'])}gb{suffix}")


@dataclass(frozen=True, slots=True)
class DeviceFilter:
    """Selects GPUs by PCI ids of four lower-case hexadecimal digits.

    Args:
        device, vendor: of the GPU.
        subsystem: device and vendor of the board, ``""`` for any.
    """

    device: str
    vendor: str = NVIDIA
    subsystem: str = ""

    def __str__(self) -> str:
        text = f"0x{self.device}{self.vendor}"
        text += f":0x{self.subsystem}" if self.subsystem else ""
        return re.sub(r"[a-f]", lambda letter: letter[0].upper(), text)

    def matches(self, device: str, subsystem: str = "") -> bool:
        """Whether it selects an NVIDIA GPU with these ids; ``subsystem`` is eight digits."""
        return (self.device, self.vendor) == (device, NVIDIA) and self.subsystem in ("", subsystem)


def parse_device_filter(text: str) -> DeviceFilter:
    """Read ``0x233010DE``, or ``0x233010DE:0x16C110DE`` with the board's own ids.

    Raises:
        ValueError: with the accepted forms.
    """
    device, _, board = text.partition(":")
    first, second = _DEVICE.fullmatch(device), _DEVICE.fullmatch(board)
    if first is None or (":" in text and second is None):
        raise ValueError("wanted 0x, PCI device id, vendor id (0x233010DE)")
    subsystem = "".join(second.groups()).lower() if second else ""
    return DeviceFilter(first[1].lower(), first[2].lower(), subsystem)
