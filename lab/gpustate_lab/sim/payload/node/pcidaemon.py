#!/usr/lib/gpustate-lab/python -SB
"""Simulate writes to drivers_probe and unbind below /sys/bus/pci.

The files are named pipes, and this program reads them. A device with a driver_override is probed by
that driver only, if its module is loaded and the IOMMU is on where it is a vfio driver.

Sources: Linux, Documentation/ABI/testing/sysfs-bus-pci.
"""

# On the node the imported modules are in this folder.
# mypy: disable-error-code="import-not-found,no-any-return"
from __future__ import annotations

import json
import os
import re
import select
import sys
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from labnode import PCI, RUN, bind, bound_to, unbind

ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def main() -> int:
    pipes: dict[Path, int] = {}
    while True:
        for path in [PCI / "drivers_probe", *PCI.glob("drivers/*/unbind")]:
            if path not in pipes and path.is_fifo():
                pipes[path] = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        ready, _, _ = select.select(list(pipes.values()), [], [], 0.2)
        for path, number in list(pipes.items()):
            if not path.exists():
                os.close(pipes.pop(path))
            elif number in ready:
                for address in ADDRESS.findall(os.read(number, 4096).decode("ascii", "replace")):
                    act(path, address)


def act(path: Path, address: str) -> None:
    if path.name == "unbind":
        if bound_to(address) == path.parent.name:
            unbind(address)
    elif bound_to(address) is None:
        probe(address)


def probe(address: str) -> None:
    """Bind a device to the driver of its override, or to the loaded NVIDIA driver."""
    device = PCI / "devices" / address
    override = (device / "driver_override").read_text().strip()
    loaded = json.loads((RUN / "modules.json").read_text())
    driver = override if override not in ("", "(null)") else "nvidia"
    if driver.replace("-", "_") not in loaded:
        return
    if "vfio" in driver and not (device / "iommu_group").is_symlink():
        return
    if driver == "nvidia" and not (device / "vendor").read_text().startswith("0x10de"):
        return
    bind(address, driver)


if __name__ == "__main__":
    sys.exit(main())
