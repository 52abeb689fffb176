"""Durations of earlier steps on a node, from the journals of the runs that it keeps.

One query, sent with the probes of a plan. A reboot has no journal entry: if the node booted between two stages
of one run, the time between the stages is the duration of the reboot and of everything gpustate waits for
afterwards.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache

from gpustate import shell
from gpustate.core.queries import Answer, Query
from gpustate.core.timing import Timing

#: Label of a reboot.
REBOOT = "reboot"

_ENTRY = re.compile(r'\{"e":"(start|intent|result|end)"(?:,"i":(\d{1,6}))?[^\n]*?"t":(\d{1,12})\b')
_FAILED = re.compile(r'"rc":(?!0\b)')
_STAGE = re.compile(r"(.+)-(\d{1,3})")
#: Longer durations are errors of the clock.
_LONGEST_S = 24 * 3600
_LABEL = 200


@dataclass(slots=True)
class _Run:
    """One run's folder."""

    name: str
    steps: tuple[tuple[str, str], ...] = ()
    start: int = 0
    end: int = 0
    began: dict[int, int] = field(default_factory=dict[int, int])
    took: list[Timing] = field(default_factory=list[Timing])

    def take(self, line: str) -> None:
        """Add one entry of its journal."""
        entry = _ENTRY.match(line)
        if entry is None:
            return
        kind, number, at = entry[1], int(entry[2] or 0), int(entry[3])
        if kind == "start":
            self.start = at
        elif kind == "end":
            self.end = at
        elif kind == "intent":
            self.began[number] = at
        elif number in self.began and 1 <= number <= len(self.steps):
            seconds = at - self.began[number]
            if not _FAILED.search(line) and 0 <= seconds <= _LONGEST_S:
                self.took.append(Timing(*self.steps[number - 1], seconds, self.name))


@dataclass(frozen=True, slots=True)
class TimingsQuery(Query[tuple[Timing, ...]]):
    """Query the steps of the stored runs, newest first, without their output."""

    def script(self) -> str:
        return shell.load("timings", "gpustate.engine")

    def parse(self, answer: Answer) -> tuple[Timing, ...]:
        runs: list[_Run] = []
        boot = 0
        for line in answer.text.splitlines():
            if line.startswith("{"):
                if runs:
                    runs[-1].take(line)
                continue
            word, _, rest = line.partition(" ")
            if word == "run":
                runs.append(_Run(rest[:100]))
            elif word == "steps" and runs:
                runs[-1].steps = _steps(rest)
            elif word == "boot" and rest.isdecimal() and len(rest) <= 12:
                boot = int(rest)
        timings = [timing for run in runs for timing in run.took]
        return (*timings, *_reboots(runs, boot))

    def placeholder(self) -> tuple[Timing, ...]:
        return ()


@lru_cache(256)
def _steps(text: str) -> tuple[tuple[str, str], ...]:
    """State and label of each step; nodes with the same steps have the same text."""
    try:
        rows = json.loads(text)
        return tuple((str(row["state"])[:_LABEL], str(row["label"])[:_LABEL]) for row in rows)
    except (ValueError, TypeError, KeyError, RecursionError):
        return ()


def _reboots(runs: list[_Run], boot: int) -> list[Timing]:
    """Reboots between two stages of a run, if it was the last one of the node."""
    stages: dict[tuple[str, int], _Run] = {}
    for run in runs:
        found = _STAGE.fullmatch(run.name)
        if found is not None:
            stages[found[1], int(found[2])] = run
    reboots: list[Timing] = []
    for (name, number), run in stages.items():
        following = stages.get((name, number + 1))
        if following is None or not run.end or not run.end <= boot <= following.start:
            continue
        if following.start - run.end <= _LONGEST_S:
            reboots.append(Timing("", REBOOT, following.start - run.end, following.name))
    return reboots
