"""Select PCI functions for virtual machines, and the program that binds them to vfio at boot.

A device is named by its address (0000:1b:00.0), by vendor and device (10de:2330: every board of that
kind), or as ``gpus``: every NVIDIA GPU and NVSwitch. The other functions of a GPU's slot (sound, USB) go with it,
for they lie in its IOMMU group.

The program writes ``driver_override``, like driverctl, and not ``options vfio-pci ids=``, which would bind
every board of a model.

Sources:
    Linux, Documentation/ABI/testing/sysfs-bus-pci (driver_override, drivers_probe); driverctl(8);
    NVIDIA/k8s-driver-manager, vfio-manage (variant drivers by the vfio_pci: aliases, functions of the slot).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpustate import shell

ADDRESS = r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"
IDENTIFIER = r"[0-9a-f]{4}:[0-9a-f]{4}"
GPUS = "gpus"
DEVICE = re.compile(f"({ADDRESS}|{IDENTIFIER}|{GPUS})")

# Functions that both the program at boot and the steps use. D: what is chosen; SYS: root of sys.
_COMMON = shell.load("vfio_devices", "gpustate.formats")

_BIND = shell.load("vfio_bind", "gpustate.formats")

_RELEASE = shell.load("vfio_release", "gpustate.formats")


def is_device(text: str) -> bool:
    """Whether the text names devices in one of the three ways."""
    return DEVICE.fullmatch(text) is not None


def _chosen(devices: Iterable[str]) -> str:
    # Checked by is_device: they contain no characters special to sh.
    return f"D='{' '.join(devices)}'\n"


def boot_program(devices: Iterable[str]) -> str:
    """The program that binds them, at boot and now."""
    head = "#!/bin/sh\n# Written by gpustate (state vfio); changes are undone by the next apply.\nset -e\n"
    path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin; export PATH\n"
    return head + path + _chosen(devices) + _COMMON + _BIND


def release_program(devices: Iterable[str]) -> str:
    """sh that restores them to their own drivers."""
    return _chosen(devices) + _COMMON + _RELEASE


def query_program(devices: Iterable[str]) -> str:
    """sh that prints of each: address, driver, override, best driver, IOMMU group, and members of that group."""
    # In an image build the devices would be those of the build machine.
    return (
        '[ -z "${GPUSTATE_IMAGE-}" ] || exit 0\n'
        + _chosen(devices)
        + _COMMON
        + shell.load("vfio_look", "gpustate.formats")
    )
