"""The audit log on the controller: who ran what, from which plan, with what outcome.

``$XDG_STATE_HOME/gpustate/audit.jsonl``, readable by its owner only: one JSON object a line, two for each run that may
change nodes. Lines are only appended. A line is one write under a lock, so those of several processes never mix.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpustate import __version__
from gpustate.clock import timestamp
from gpustate.engine import records
from gpustate.reporting.runs import Outcome, Run, one_line

FORMAT = "gpustate.audit/1"


def path() -> Path:
    """The file of the log."""
    return records.folder().parent / "audit.jsonl"


def started(run: Run, *, born: str) -> dict[str, Any]:
    """The entry of a run that starts.

    Args:
        run: it.
        born: start time of this process, see :class:`gpustate.engine.gate.Controller`.
    """
    return {
        "format": FORMAT,
        "event": "started",
        "time": timestamp(),
        "run": run.run,
        **run.data(),
        "version": __version__,
        "uid": os.getuid(),
        "pid": os.getpid(),
        "born": born,
    }


def ended(run: Run, outcome: Outcome) -> dict[str, Any]:
    """The entry of its end."""
    return {
        "format": FORMAT,
        "event": "ended",
        "time": timestamp(),
        "run": run.run,
        **outcome.data(),
    }


def append(entry: Mapping[str, Any]) -> None:
    """Append an entry, forced to disk.

    Raises:
        OSError: it cannot be written.
    """
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(file, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        line = one_line(entry)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line  # a full disk has cut the last line
        if os.write(descriptor, line) != len(line):
            raise OSError("the disk is full")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Entry:
    """A run in the log.

    Args:
        start: its first entry.
        end: its last entry; ``None``: it has none yet.
    """

    start: Mapping[str, Any]
    end: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Log:
    """What the log has.

    Args:
        runs: in the order of their start.
        damaged: numbers of the lines that are no entries.
    """

    runs: Sequence[Entry] = ()
    damaged: Sequence[int] = field(default_factory=tuple)


def read() -> Log:
    """Read the log; there is none before the first run.

    Raises:
        OSError: it cannot be read.
    """
    runs: dict[str, Entry] = {}
    damaged: list[int] = []
    try:
        file = path().open("rb")
    except FileNotFoundError:
        return Log()
    with file:
        for number, line in enumerate(file, 1):
            data = _entry(line)
            if data is None:
                damaged += [number] if line.strip() else []
            elif data["event"] == "started":
                runs[data["run"]] = Entry(data)
            elif data["run"] in runs:
                runs[data["run"]] = Entry(runs[data["run"]].start, data)
    return Log(tuple(runs.values()), tuple(damaged))


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        data: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        return None
    texts = all(isinstance(data.get(key), str) for key in ("event", "time", "run"))
    return data if texts and data["event"] in ("started", "ended") else None
