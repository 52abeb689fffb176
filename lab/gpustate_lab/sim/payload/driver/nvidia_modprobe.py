#!/usr/lib/gpustate-lab/python -SB
"""Simulated nvidia-modprobe: loads a module and creates the device nodes that are named.

Surprising: with ``-u`` the numbers of ``-c`` are those of nvidia-uvm, so no GPU gets its device node.

Source: NVIDIA/nvidia-modprobe, nvidia-modprobe.c (``main``) and nvidia-modprobe-utils.c (``nvidia_uvm_mknod``).
"""

# On the node the imported modules are in this folder.
# mypy: disable-error-code="import-not-found,no-any-return"
from __future__ import annotations

import argparse
import subprocess
import sys

sys.path.insert(0, "/usr/lib/gpustate-lab")

import modules
from labnode import NVIDIA_MAJOR, UVM_MAJOR, at, locked, make_node

MODPROBE = "/sbin/modprobe"
#: Minor number of /dev/nvidiactl.
CONTROL = 255


def load(name: str) -> bool:
    """Load a module unless it is loaded, without a message like the real tool."""
    if name.replace("-", "_") in modules.loaded():
        return True
    done = subprocess.run([str(at(MODPROBE)), "-q", name], stderr=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser("nvidia-modprobe")
    parser.add_argument("-v", "--version", action="store_true")
    parser.add_argument("-u", "--unified-memory", action="store_true")
    parser.add_argument("-m", "--modeset", action="store_true")
    parser.add_argument(
        "-c", "--create-nvidia-device-file", dest="minors", action="append", type=int, default=[]
    )
    options = parser.parse_args()
    if options.version:
        print("nvidia-modprobe:  version @VERSION@ (simulated)")
        return 0
    if not load("nvidia-uvm" if options.unified_memory else "nvidia"):
        return 1
    with locked():
        for minor in options.minors:
            if options.unified_memory:
                make_node("/dev/nvidia-uvm", UVM_MAJOR, minor)
                make_node("/dev/nvidia-uvm-tools", UVM_MAJOR, minor + 1)
            else:
                name = "ctl" if minor == CONTROL else str(minor)
                make_node(f"/dev/nvidia{name}", NVIDIA_MAJOR, minor)
    if options.modeset:
        if not load("nvidia-modeset"):
            return 1
        with locked():
            make_node("/dev/nvidia-modeset", NVIDIA_MAJOR, 254)
    return 0


if __name__ == "__main__":
    sys.exit(main())
