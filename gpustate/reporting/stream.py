"""The event stream of a run: one JSON object a line, in a file, a pipe or on standard output.

A thread of its own writes the lines, so that a reader that is slow or stopped delays no node. A reader that closes
the pipe, or a full disk, ends the stream with one warning; the run goes on.
"""

from __future__ import annotations

import errno
import io
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping

from gpustate.errors import UsageError
from gpustate.reporting.runs import one_line

#: How long the end of a run waits for a slow reader.
_PATIENCE_S = 10.0
STDOUT = "-"
_STDOUT_NAME = "standard output"


class EventStream:
    """Writes lines in the background.

    Args:
        file: where to; it is closed at the end.
        name: for messages.
        warn: prints a warning.
    """

    def __init__(self, file: io.RawIOBase, name: str, warn: Callable[[str], None]) -> None:
        self._file = file
        self._name = name
        self._warn = warn
        self._broken = False
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="events", daemon=True)
        self._thread.start()

    @property
    def is_stdout(self) -> bool:
        """It is standard output."""
        return self._name == _STDOUT_NAME

    def write(self, data: Mapping[str, object]) -> None:
        """Write one line, secrets masked."""
        if not self._broken:
            self._lines.put(one_line(data))

    def close(self, patience_s: float = _PATIENCE_S) -> None:
        """Wait until everything is written, but not forever."""
        self._lines.put(None)
        self._thread.join(patience_s)
        if self._thread.is_alive():
            self._warn(
                f"events: {self._name} does not take the last {self._lines.qsize()} events; they are lost"
            )

    def _work(self) -> None:
        with self._file:
            while (line := self._lines.get()) is not None:
                if self._broken:
                    continue
                try:
                    self._write_all(line)
                except OSError as error:
                    self._broken = True
                    self._warn(_explain(self._name, error))

    def _write_all(self, line: bytes) -> None:
        """A raw file may take a part only; one that does not block may take nothing."""
        view = memoryview(line)
        while view:
            written = self._file.write(view)
            if written is None:
                raise BlockingIOError(errno.EAGAIN, "the reader is too slow")
            view = view[written:]


def _explain(name: str, error: OSError) -> str:
    if error.errno == errno.EPIPE:
        return f"events: the reader of {name} closed it; the run continues without events"
    return f"events: cannot write {name} ({error.strerror}); the run continues without events"


def open_stream(path: str, warn: Callable[[str], None]) -> EventStream:
    """Open a stream; ``-`` is standard output. A file is appended to.

    Raises:
        UsageError: it cannot be written.
    """
    if path == STDOUT:
        sys.stdout.flush()
        descriptor = os.dup(sys.stdout.fileno())
        return EventStream(io.FileIO(descriptor, "wb"), _STDOUT_NAME, warn)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        pipe = error.errno == errno.ENXIO
        reason = "nobody reads this pipe" if pipe else error.strerror or str(error)
        raise UsageError(
            f"cannot write events ({reason})",
            place=path,
            fix="start its reader first" if pipe else "name another file with --events",
        ) from error
    os.set_blocking(descriptor, True)  # only the opening of a pipe must not block
    return EventStream(io.FileIO(descriptor, "wb"), path, warn)
