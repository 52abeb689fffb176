"""Parser of a program's journal, by state. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpustate.formats.package_errors import NOISE, without_progress
from gpustate.formats.words import shorten

if TYPE_CHECKING:
    from gpustate.ops.program import Entry, Program


@dataclass(slots=True)
class StateRecord:
    """Journal entries of one state."""

    started: bool = False
    failed_step: str = ""
    command: str = ""
    inspect: str = ""
    status: int = 0
    output: str = ""
    rolled_back: bool = False
    skipped_because: str = ""
    unfinished_step: str = ""


@dataclass(slots=True)
class Record:
    """Journal entries of a program."""

    states: dict[str, StateRecord] = field(default_factory=dict[str, StateRecord])
    ended: bool = False
    stopped: bool = False
    died: bool = False
    offset: int = 0

    def take(self, entry: Entry, program: Program) -> tuple[str, str] | None:
        """Add one entry; return state and label if a step starts."""
        self.offset += int(entry.get("bytes", 0))
        kind = entry.get("e")
        number = entry.get("i")
        state, step = ("", None)
        if isinstance(number, int) and 1 <= number <= len(program.steps):
            state, step = program.steps[number - 1]
        record = self.states.setdefault(state, StateRecord()) if state else None
        if kind == "intent" and record is not None and step is not None:
            record.started = True
            record.unfinished_step = step.label
            return state, step.label
        if kind == "effect" and record is not None and entry.get("did") == "rolled-back":
            record.rolled_back = True
        elif kind == "result" and record is not None and step is not None:
            record.unfinished_step = ""
            status = entry.get("rc")
            if status != 0:
                record.failed_step = step.label
                record.command, record.inspect = step.command, step.inspect
                record.status = status if isinstance(status, int) else 1
                record.output = str(entry.get("out", ""))
        elif kind == "skip":
            name = str(entry.get("state"))
            self.states.setdefault(name, StateRecord()).skipped_because = str(entry.get("because"))
        elif kind == "end":
            self.ended = True
            self.stopped = bool(entry.get("stopped"))
        elif kind == "died":
            self.died = True
        elif kind == "waits":
            return "", f"wait for process {entry.get('pid')} on the node, a step of an earlier run"
        return None


def last_lines(output: str, count: int = 12) -> str:
    """The last lines of a step's output that are not blank."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    return "\n".join(lines[-count:])


def cause(
    output: str, pick: Iterable[str] = ("error", "E:", "fail", "No space", "cannot", "fatal")
) -> str:
    """The line of an output that most likely names the cause: the first that looks like an error.

    After a Python traceback it is the last line, since those before it quote code. A line that only announces the next
    ones is joined with the first of them.
    """
    lines = [line.strip() for line in without_progress(output).splitlines() if line.strip()]
    lines = [line for line in lines if not NOISE.search(line)] or lines
    if any(line.startswith("Traceback (most recent call last)") for line in lines):
        return shorten(lines[-1], 300)
    for number, line in enumerate(lines):
        if any(word.lower() in line.lower() if word.islower() else word in line for word in pick):
            more = lines[number + 1 : number + 2] if line.endswith(":") else []
            return shorten(" ".join((line, *more)), 300)
    return shorten(lines[-1], 300) if lines else "no output"
