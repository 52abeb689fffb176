"""A gpustate process that is to be killed, and the pipes at which a node's program waits."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import termios
import time
from array import array
from dataclasses import dataclass
from pathlib import Path

#: How long a program that was let go may take to read so.
_READ_S = 10.0


class Trouble(AssertionError):
    """The harness could not bring a point about; that is a failure, too."""


@dataclass(slots=True)
class Run:
    """A gpustate process."""

    pid: int
    out: Path
    err: Path
    code: int | None = None

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self, seconds: float) -> int:
        end = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > end:
                self.kill()
                raise Trouble(f"gpustate was not done within {seconds:.0f} s:\n{self.said()}")
            time.sleep(0.02)
        assert self.code is not None
        return self.code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self.code = os.waitstatus_to_exitcode(status)

    def said(self) -> str:
        return (
            self.out.read_text("utf-8", "replace")[-3000:]
            + self.err.read_text("utf-8", "replace")[-3000:]
        )


class Hold:
    """The pipes at which the node's program waits."""

    def __init__(self, folder: Path) -> None:
        self._at = folder / "at"
        self._reached = os.open(folder / "reached", os.O_RDWR | os.O_NONBLOCK)
        self._go = os.open(folder / "go", os.O_RDWR)
        self.holding = False

    def pending(self, seconds: float) -> bool:
        """Whether the program has come to a call, or does within so many seconds."""
        return bool(select.select([self._reached], [], [], seconds)[0])

    def wait(self, seconds: float) -> str:
        if not self.pending(seconds):
            return ""
        self.holding = True
        return os.read(self._reached, 4096).decode()

    def go(self) -> None:
        """Let it go on."""
        self.holding = False
        os.write(self._go, b"go\n")

    def never_again(self) -> None:
        """No later call is to be held."""
        self._at.write_text("0\n")

    def close(self) -> None:
        """Close the pipes, once the program has read that it may go on; what is in a pipe goes with its last user."""
        end = time.monotonic() + _READ_S
        left = array("i", [1])
        while left[0] and time.monotonic() < end:
            fcntl.ioctl(self._go, termios.FIONREAD, left)
            if left[0]:
                time.sleep(0.01)
        os.close(self._reached)
        os.close(self._go)
