"""Durations of steps from the journals of a plan's nodes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median

from gpustate.core.outcome import NodeResult


@dataclass(frozen=True, slots=True)
class Seconds:
    """A duration: the shortest, the likely and the longest."""

    low: float
    likely: float
    high: float

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.low + other.low, self.likely + other.likely, self.high + other.high)

    def times(self, number: float) -> Seconds:
        """The duration of several, one after the other."""
        return Seconds(self.low * number, self.likely * number, self.high * number)


OWN, OTHERS = "measured on the node", "measured on other nodes of this plan"
#: Most measurements of one step on one node that are used, newest first.
_SAMPLES = 3
_VERSION = re.compile(r"\d[\w.+:~-]*")

#: State, and label without versions. The label is empty for all steps of a state in one run; the state is
#: empty for a reboot.
Key = tuple[str, str]


@dataclass(slots=True)
class Measured:
    """Durations from the nodes' journals."""

    own: dict[str, dict[Key, list[int]]] = field(default_factory=dict[str, dict[Key, list[int]]])
    all: dict[Key, list[int]] = field(default_factory=dict[Key, list[int]])
    known: dict[Key, Seconds] = field(default_factory=dict[Key, Seconds])

    def find(self, node: str, key: Key) -> tuple[Seconds, str] | None:
        """The duration of something, and where it was measured."""
        mine = self.own.get(node, {}).get(key)
        if mine:
            return _of(mine), OWN
        if key in self.known:
            return self.known[key], OTHERS
        if key not in self.all:
            return None
        self.known[key] = _of(self.all[key])
        return self.known[key], OTHERS


def measured(nodes: Iterable[NodeResult]) -> Measured:
    """Collect the nodes' measurements by node and by step."""
    found = Measured()
    for node in nodes:
        mine: dict[Key, list[int]] = {}
        totals: dict[tuple[str, str], int] = {}
        for timing in node.timings:
            _keep(mine, key_of(timing.state, timing.label), timing.seconds)
            if timing.state:
                total = (timing.state, timing.run)
                totals[total] = totals.get(total, 0) + timing.seconds
        for (state, _), seconds in totals.items():
            _keep(mine, (state, ""), seconds)
        found.own[node.name] = mine
        for key, samples in mine.items():
            found.all.setdefault(key, []).extend(samples)
    return found


def _keep(samples: dict[Key, list[int]], key: Key, seconds: int) -> None:
    kept = samples.setdefault(key, [])
    if len(kept) < _SAMPLES:
        kept.append(seconds)


def _of(samples: Sequence[int]) -> Seconds:
    # Journals have whole seconds, so 0 means less than one.
    return Seconds(min(samples), max(0.2, median(samples)), max(samples) + 1)


@lru_cache(10_000)
def key_of(state: str, label: str) -> Key:
    """Identity of a step, without versions."""
    return state, _VERSION.sub("#", label)
