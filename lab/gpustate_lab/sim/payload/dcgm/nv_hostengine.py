#!/usr/lib/gpustate-lab/python -SB
"""Simulated nv-hostengine: opens every GPU and listens on its address; only its version can be queried.

Sources:
    NVIDIA/DCGM, hostengine/src/HostEngineCommandLine.cpp: options and their defaults.
"""

# On the node the imported modules are in this folder.
# mypy: disable-error-code="import-not-found,no-any-return"
from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys

sys.path.insert(0, "/usr/lib/gpustate-lab")

from daemon import refresh
from labnode import hardware, hold, release


def listen(address: str, port: int) -> socket.socket:
    everywhere = address.lower() == "all"
    listener = socket.create_server(("" if everywhere else address, port))
    print(f"Started host engine version @VERSION@ using port number: {port}", flush=True)
    return listener


def main() -> int:
    parser = argparse.ArgumentParser(prog="nv-hostengine")
    parser.add_argument("-n", "--no-daemon", action="store_true")
    parser.add_argument("-b", "--bind-interface", default="127.0.0.1")
    parser.add_argument("-p", "--port", type=int, default=5555)
    parser.add_argument("--service-account")
    parser.add_argument("--version", action="version", version="@VERSION@ (simulated)")
    options = parser.parse_args()
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, lambda *_: sys.exit(0))
    handles = []
    for gpu in hardware()["gpus"]:
        with contextlib.suppress(FileNotFoundError):
            handles.append(os.open(f"/dev/nvidia{gpu['minor']}", os.O_PATH))
    try:
        listener = listen(options.bind_interface, options.port)
    except OSError as error:
        print(f"Err: Failed to start DCGM Server: {error}", file=sys.stderr)
        return 1
    try:
        hold("other", [gpu["pci_address"] for gpu in hardware()["gpus"]])
        refresh()
        while True:
            peer, _ = listener.accept()
            with peer, contextlib.suppress(OSError):
                peer.sendall(b"@VERSION@\n")
    finally:
        release()
        refresh()


if __name__ == "__main__":
    sys.exit(main())
