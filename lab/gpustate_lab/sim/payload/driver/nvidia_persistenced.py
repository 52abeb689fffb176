#!/usr/lib/gpustate-lab/python -SB
"""Simulated nvidia-persistenced: keeps persistence mode on in the stub NVML while it runs.

Like the real one, it keeps every GPU open, so ``rmmod nvidia`` fails with "in use" until it stops. It needs the device
nodes, and nvidia-modprobe only where they are missing.

Sources:
    NVIDIA/nvidia-persistenced, nvidia-persistenced.c: ``setup_nvidia_cfg_api``, after the user is changed.
    NVIDIA driver README, "How and when are the NVIDIA device files created?".
"""

# On the node the imported modules are in this folder.
# mypy: disable-error-code="import-not-found,no-any-return"
from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, "/usr/lib/gpustate-lab")

import modules
from daemon import detach
from labnode import RUN, hardware, hold, write

PID_FILE = Path("/run/nvidia-persistenced/nvidia-persistenced.pid")
MODPROBE = Path("/usr/bin/nvidia-modprobe")
handles: list[int] = []


def node(gpu: Any) -> str:
    return f"/dev/nvidia{gpu['minor']}"


def begin() -> None:
    gpus = hardware()["gpus"]
    hold("persistence", [gpu["pci_address"] for gpu in gpus])
    # O_PATH works without a driver, and is visible in /proc/PID/fd.
    handles.extend(os.open(node(gpu), os.O_PATH) for gpu in gpus)
    PID_FILE.parent.mkdir(parents=True, exist_ok=True)
    path = PID_FILE.parent / "socket"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:  # nobody connects to it
        server.bind(str(path))
    if "--no-persistence-mode" not in sys.argv:
        set_mode("1")


def set_mode(text: str) -> None:
    for gpu in hardware()["gpus"]:
        write(RUN / "state" / f"persistence-{gpu['pci_address']}", text + "\n")


def end() -> None:
    if "--no-persistence-mode" not in sys.argv:
        set_mode("0")
    (PID_FILE.parent / "socket").unlink(missing_ok=True)


def main() -> int:
    if "--version" in sys.argv:
        print("nvidia-persistenced:  version @VERSION@ (simulated)")
        return 0
    if MODPROBE.exists():
        minors = (f"-c={gpu['minor']}" for gpu in hardware()["gpus"])
        subprocess.run([MODPROBE, "-c=255", *minors], check=False)
    loaded = modules.loaded().get("nvidia")
    if loaded is None or loaded["version"] != "@VERSION@":
        seen = "is not loaded" if loaded is None else f"is {loaded['version']}, not @VERSION@"
        print(
            f"nvidia-persistenced failed to initialize: the kernel module {seen}.", file=sys.stderr
        )
        return 1
    # The real one runs as a user who cannot create them.
    if not all(Path(node(gpu)).exists() for gpu in hardware()["gpus"]):
        print(
            "nvidia-persistenced failed to initialize: Failed to query NVIDIA devices. Please ensure "
            "that the NVIDIA device files (/dev/nvidia*) exist.",
            file=sys.stderr,
        )
        return 1
    return detach(PID_FILE, begin, end)


if __name__ == "__main__":
    sys.exit(main())
