"""Simulated: what the simulated NVIDIA daemons share; each forks, writes its pid and waits."""

# The modules of the node lie beside this one there, not here.
# mypy: disable-error-code="import-not-found,no-any-return"
from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import modules
from labnode import locked, release


def detach(pid_file: Path, begin: Callable[[], None], end: Callable[[], None]) -> int:
    """Run ``begin`` in a process of its own, return once it is done, and ``end`` on SIGTERM.

    Returns:
        0, or 1 when ``begin`` raised; it has said why by then.
    """
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        return 0 if os.read(read_end, 1) == b"1" else 1
    os.setsid()
    if os.fork():
        os._exit(0)
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, lambda *_: sys.exit(0))
    try:
        begin()
        pid_file.parent.mkdir(parents=True, exist_ok=True)
        pid_file.write_text(f"{os.getpid()}\n")
        refresh()
        os.write(write_end, b"1")
        os.close(write_end)
        while True:
            signal.pause()
    finally:
        end()
        release()
        refresh()
        pid_file.unlink(missing_ok=True)


def refresh() -> None:
    """Use counts of the modules follow who holds a GPU."""
    with locked():
        modules.refresh()
