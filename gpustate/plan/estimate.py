"""How long a maintenance is likely to take, and on what that rests. Pure.

The time of a step comes from the first of these that has it: the node's own journal, the journals of
the other nodes of this plan, and :mod:`gpustate.plan.durations`. The time of a look is what this very
plan took on the node. A node takes its looks and its steps one after the other, and its reboot where
a step asks for one; nodes are then dealt to the forks, batch after batch, as a run does it.

What may cost a reboot, but is not known yet, counts one in the upper bound only.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from gpustate.core.change import Disruption
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome
from gpustate.core.timing import PlannedStep
from gpustate.plan import durations
from gpustate.plan.durations import ZERO, Seconds
from gpustate.plan.measured import OTHERS, OWN, Measured, key_of, measured

LOOK = "this plan's own look at the node"
DEFAULT = "default"
REBOOT = "reboot"
#: What is left out, whatever the plan.
NOT_COUNTED = (
    "the time that workloads take to leave a node",
    "nodes that could not be planned",
)
_POSSIBLE = "a reboot that may become necessary (known after ...) counts in the upper bound only"
_KNOWN_LATER = (
    "a change that takes another look to be known is counted with what such a state takes"
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the plan would be carried out.

    Args:
        forks: nodes at the same time.
        serial: sizes of batches as they were given, for a person.
        batches: names of nodes, batch by batch; one batch of all when not given.
    """

    forks: int
    serial: tuple[str, ...] = ()
    batches: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that takes time on one node."""

    state: str
    what: str
    seconds: Seconds
    basis: str
    source: str = ""
    certain: bool = True


def estimate(nodes: Sequence[NodeResult], schedule: Schedule) -> Estimate:
    """How long it takes to carry a plan out."""
    found = measured(nodes)
    shapes: dict[object, list[Part]] = {}
    parts: dict[str, list[Part]] = {}
    for node in nodes:
        if node.proceeds or node.status in (NodeStatus.OK, NodeStatus.BLOCKED):
            # Nodes without journals that have the same to do take the same, but for the looks.
            shape = (node.steps, _unknown(node)) if not node.timings else node.name
            if shape not in shapes:
                shapes[shape] = _parts(node, found)
            parts[node.name] = [_looks(node), *shapes[shape]]
    return Estimate(schedule, {name: tuple(mine) for name, mine in parts.items()})


@dataclass(slots=True)
class Estimate:
    """What takes how long on which node."""

    schedule: Schedule
    parts: Mapping[str, tuple[Part, ...]]
    totals: dict[str, Seconds] = field(init=False)

    def __post_init__(self) -> None:
        self.totals = {name: _sum(mine) for name, mine in self.parts.items()}

    def data(self) -> dict[str, Any]:
        """As it stands in a plan."""
        return {
            **_seconds(self._span()),
            "forks": self.schedule.forks,
            "serial": list(self.schedule.serial),
            "batches": max(1, len(self.schedule.batches)),
            "nodes": len(self.parts),
            "reboots": self._reboots(certain=True),
            "reboots_at_most": self._reboots(certain=False),
            "rests_on": self._rests_on(),
            "longest": self._longest(),
            "assumes": [_POSSIBLE, _KNOWN_LATER],
            "not_counted": list(NOT_COUNTED),
        }

    def _reboots(self, *, certain: bool) -> int:
        """Nodes that will reboot, or may."""
        return sum(
            any(p.what == REBOOT and not p.state and (p.certain or not certain) for p in mine)
            for mine in self.parts.values()
        )

    def of(self, names: Sequence[str]) -> dict[str, int] | None:
        """What one node of a group takes: the least, what is usual, the most."""
        mine = [self.totals[name] for name in names if name in self.totals]
        if not mine:
            return None
        return _seconds(
            Seconds(
                min(s.low for s in mine), median(s.likely for s in mine), max(s.high for s in mine)
            )
        )

    def _span(self) -> Seconds:
        batches = self.schedule.batches or (tuple(self.totals),)

        def span(bound: str) -> float:
            """Nodes are dealt to the forks in their order; a batch waits for its slowest node."""
            whole = 0.0
            for batch in batches:
                busy: list[float] = []
                for total in (self.totals[name] for name in batch if name in self.totals):
                    begin = heapq.heappop(busy) if len(busy) >= self.schedule.forks else 0.0
                    heapq.heappush(busy, begin + getattr(total, bound))
                whole += max(busy, default=0.0)
            return whole

        return Seconds(span("low"), span("likely"), span("high"))

    def _rests_on(self) -> list[dict[str, Any]]:
        """Where the likely seconds of all nodes together come from."""
        seconds: dict[str, float] = {}
        nodes: dict[str, set[str]] = {}
        for name, mine in self.parts.items():
            for part in mine:
                seconds[part.basis] = seconds.get(part.basis, 0) + part.seconds.likely
                nodes.setdefault(part.basis, set()).add(name)
        whole = sum(seconds.values()) or 1
        return [
            {"basis": basis, "share": round(seconds[basis] / whole, 3), "nodes": len(nodes[basis])}
            for basis in (OWN, OTHERS, DEFAULT, LOOK)
            if basis in seconds
        ]

    def _longest(self, limit: int = 12) -> list[dict[str, Any]]:
        """What takes most of the nodes' time, all nodes together."""
        rows: dict[tuple[str, str], list[Part]] = {}
        for mine in self.parts.values():
            for part in mine:
                rows.setdefault((part.state, part.what), []).append(part)
        first = sorted(rows.items(), key=lambda row: (-sum(p.seconds.high for p in row[1]), row[0]))
        first.sort(key=lambda row: -sum(p.seconds.likely for p in row[1]))
        return [_row(mine) for _, mine in first[:limit]]


def _row(parts: Sequence[Part]) -> dict[str, Any]:
    """One thing on all nodes that do it."""
    spans = [part.seconds for part in parts]
    whole = Seconds(
        min(s.low for s in spans), median(s.likely for s in spans), max(s.high for s in spans)
    )
    bases = [
        basis for basis in (OWN, OTHERS, DEFAULT, LOOK) if any(p.basis == basis for p in parts)
    ]
    sources = sorted({part.source for part in parts if part.source})
    return {
        "state": parts[0].state,
        "what": parts[0].what,
        "nodes": len(parts),
        **_seconds(whole),
        "basis": " and ".join(bases),
        **({"source": "; ".join(sources)} if sources else {}),
    }


def _seconds(s: Seconds) -> dict[str, int]:
    return {"low_s": int(s.low), "likely_s": round(s.likely), "high_s": -int(-s.high // 1)}


def _sum(parts: Iterable[Part]) -> Seconds:
    total = ZERO
    for part in parts:
        total = total + part.seconds
    return total


def _unknown(node: NodeResult) -> tuple[tuple[str, Disruption], ...]:
    return tuple((r.state, r.worst) for r in node.outcomes(Outcome.KNOWN_AFTER))


def _looks(node: NodeResult) -> Part:
    """One look before, one after each stage; a state that is known after another makes one more."""
    depth: dict[str, int] = {}
    for result in node.states:
        if result.outcome is Outcome.KNOWN_AFTER:
            depth[result.state] = 1 + max((depth.get(n, 1) for n in result.known_after), default=1)
        elif result.outcome is Outcome.PENDING:
            depth[result.state] = 1
    looks = 1 + max(depth.values(), default=0)
    took = max(0.1, node.duration_s)
    return Part("", "connecting and looking", Seconds(took, took, 2 * took).times(looks), LOOK)


def _parts(node: NodeResult, found: Measured) -> list[Part]:
    parts = [_step(node.name, step, found) for step in node.steps if step.kind != "Reboot"]
    planned = {step.state for step in node.steps}
    for result in node.states:
        unknown = result.outcome is Outcome.KNOWN_AFTER
        if unknown or (result.outcome is Outcome.PENDING and result.state not in planned):
            parts.append(_state(node.name, result.state, result.worst, found))
    certain = any(step.kind == "Reboot" for step in node.steps)
    possible = any(r.worst is Disruption.REBOOT for r in node.outcomes(Outcome.KNOWN_AFTER))
    if certain or possible:
        parts.append(_reboot(node.name, found, certain=certain))
    return parts


def _step(node: str, step: PlannedStep, found: Measured) -> Part:
    known = found.find(node, key_of(step.state, step.label))
    if known is not None:
        return Part(step.state, step.label, *known)
    default = durations.of_step(step.state, step.label, step.kind)
    high = min(default.seconds.high, step.timeout_s)
    seconds = Seconds(default.seconds.low, min(default.seconds.likely, high), high)
    return Part(step.state, step.label, seconds, DEFAULT, default.source)


def _state(node: str, state: str, worst: Disruption, found: Measured) -> Part:
    known = found.find(node, (state, ""))
    what = "all its steps"
    if known is not None:
        return Part(state, what, *known)
    default = durations.of_state(state, worst)
    return Part(state, what, default.seconds, DEFAULT, default.source)


def _reboot(node: str, found: Measured, *, certain: bool) -> Part:
    known = found.find(node, ("", REBOOT))
    seconds, basis = known or (durations.REBOOT.seconds, DEFAULT)
    if not certain:
        seconds = Seconds(0, 0, seconds.high)
    source = "" if known else durations.REBOOT.source
    return Part("", REBOOT, seconds, basis, source, certain)
