#!/usr/lib/gpustate-lab/python -SB
"""Simulated nv-fabricmanager: the fabric is complete while it runs in the version of the module.

Like the real one, it exits with 1 on a node without NVSwitches, and on a tray of a rack, whose switches are
elsewhere. A B200 board has no switch on PCI and needs the subnet manager to run first.
"""

# On the node the imported modules are in this folder.
# mypy: disable-error-code="import-not-found,no-any-return"
from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, "/usr/lib/gpustate-lab")

import modules
from daemon import detach
from labnode import hardware, hold, holders

PID_FILE = Path("/run/nvidia-fabricmanager/nv-fabricmanager.pid")
LOG = Path("/var/log/fabricmanager.log")


def trouble() -> str | None:
    board = hardware()["board"]
    loaded = modules.loaded().get("nvidia")
    if loaded is None:
        return "request to query NVSwitch device information from NVSwitch driver failed: the driver is not loaded"
    if board is None or hardware().get("rack"):
        return "NV_WARN_NOTHING_TO_DO: no NVIDIA NVSwitch devices were detected"
    if loaded["version"] != "@VERSION@":
        return f"fabric manager NVIDIA GPU driver interface version @VERSION@ don't match with driver version {loaded['version']}"
    if hardware().get("bridges") and "nvlsm" not in {kind for _, kind in holders()}:
        return "the NVLink subnet manager does not run"
    return None


def main() -> int:
    if "--version" in sys.argv or "-v" in sys.argv:
        print("Fabric Manager version is : @VERSION@")
        return 0
    problem = trouble()
    if problem:
        with LOG.open("a") as log:
            log.write(f"[ERROR] {problem}\n")
        print(problem, file=sys.stderr)
        return 1
    return detach(PID_FILE, lambda: hold("fabric", ["@VERSION@"]), lambda: None)


if __name__ == "__main__":
    sys.exit(main())
