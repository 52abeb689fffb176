#!/usr/lib/gpustate-lab/python -SB
"""Simulated nvidia-modprobe: loads nvidia (and nvidia-uvm with -u) and creates the device nodes."""

# On the node the imported modules are in this folder.
# mypy: disable-error-code="import-not-found,no-any-return"
from __future__ import annotations

import subprocess
import sys

sys.path.insert(0, "/usr/lib/gpustate-lab")

import modules
from labnode import NVIDIA_MAJOR, UVM_MAJOR, at, hardware, locked, make_node

MODPROBE = "/sbin/modprobe"


def load(name: str) -> bool:
    """Load a module unless it is loaded, without a message like the real tool."""
    if name.replace("-", "_") in modules.loaded():
        return True
    done = subprocess.run([str(at(MODPROBE)), "-q", name], stderr=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def main() -> int:
    if "--version" in sys.argv or "-v" in sys.argv:
        print("nvidia-modprobe:  version @VERSION@ (simulated)")
        return 0
    if not load("nvidia"):
        return 1
    with locked():
        make_node("/dev/nvidiactl", NVIDIA_MAJOR, 255)
        for gpu in hardware()["gpus"]:
            make_node(f"/dev/nvidia{gpu['minor']}", NVIDIA_MAJOR, gpu["minor"])
    if "-u" in sys.argv or "--unified-memory" in sys.argv:
        if not load("nvidia-uvm"):
            return 1
        with locked():
            make_node("/dev/nvidia-uvm", UVM_MAJOR, 0)
            make_node("/dev/nvidia-uvm-tools", UVM_MAJOR, 1)
    if "-m" in sys.argv or "--modeset" in sys.argv:
        if not load("nvidia-modeset"):
            return 1
        with locked():
            make_node("/dev/nvidia-modeset", NVIDIA_MAJOR, 254)
    return 0


if __name__ == "__main__":
    sys.exit(main())
