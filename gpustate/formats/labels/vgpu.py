"""Whether a GPU is a vGPU, and the host's driver, from PCI configuration space.

A vGPU has a vendor-specific capability that begins with ``VF``; in it are records, and the one
numbered 0 holds the host's driver version and branch. No driver is needed to read it, but root is.

Sources:
    NVIDIA/k8s-device-plugin v0.20.0, internal/vgpu/pciutil.go and vgpu.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_CONFIG_SPACE_BYTES = 256
_STATUS, _HAS_CAPABILITIES, _FIRST = 0x06, 0x10, 0x34
_VENDOR_SPECIFIC = 0x09
_RECORDS = 5
_WORD = 10


@dataclass(frozen=True, slots=True)
class VGpu:
    """What a vGPU tells of its host."""

    host_driver_version: str
    host_driver_branch: str


def vgpus(configs: Iterable[bytes]) -> tuple[VGpu, ...] | None:
    """The vGPUs among devices; ``None`` where one cannot be judged (GFD then says nothing at all)."""
    devices: list[VGpu] = []
    for config in configs:
        if len(config) < _CONFIG_SPACE_BYTES:
            return None
        capability = _capability(config)
        if capability[3:5] == b"VF":
            vgpu = _host_driver(capability)
            if vgpu is None:
                return None
            devices.append(vgpu)
    return tuple(devices)


def _capability(config: bytes) -> bytes:
    """The vendor-specific capability; empty if there is none."""
    if not config[_STATUS] & _HAS_CAPABILITIES:
        return b""
    at = config[_FIRST]
    visited: set[int] = set()
    while at and at not in visited and at + 2 < _CONFIG_SPACE_BYTES and config[at] != 0xFF:
        if config[at] == _VENDOR_SPECIFIC:
            return config[at : min(at + config[at + 2], _CONFIG_SPACE_BYTES)]
        visited.add(at)
        at = config[at + 1]
    return b""


def _host_driver(capability: bytes) -> VGpu | None:
    at = _RECORDS
    while at + 1 < len(capability) and capability[at] != 0:
        length = capability[at + 1]
        if length == 0:
            return None  # it would never end
        at += length
    data = capability[at + 2 : at + 2 + 2 * _WORD]
    if len(data) < 2 * _WORD:
        return None
    version, branch = (
        part.strip(b"\0").decode("ascii", "replace") for part in (data[:_WORD], data[_WORD:])
    )
    return VGpu(version, branch)
