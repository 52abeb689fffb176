"""Shared code of the simulated NVIDIA daemons: each forks, writes its pid and waits."""

# On the node the imported modules are in this folder.
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
    """Run ``begin`` in a new process and return when it is done; run ``end`` on SIGTERM.

    Returns:
        0, or 1 if ``begin`` failed, after printing the reason.
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
    """Update the use counts of modules, which depend on processes that use a GPU."""
    with locked():
        modules.refresh()
