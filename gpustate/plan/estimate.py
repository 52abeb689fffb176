"""Estimate of a plan's duration, from earlier durations of its steps. Pure.

The time of a step comes from the node's own journal, else from the journals of the other nodes of this
plan. A step that no node has run before is listed as unmeasured and adds no time: a guess helps nobody to
book a maintenance window. The time of a probe is what this very plan took on the node. A node takes its
probes and its steps one after the other, and its reboot where a step asks for one. Nodes are then
dealt to the forks, batch after batch, as a run does it.

A reboot that is only possible (known after ...) counts in the upper bound only.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from gpustate.core.change import Disruption
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome
from gpustate.plan.measured import OTHERS, OWN, Measured, Seconds, key_of, measured

PROBE = "this plan's probe"
REBOOT = "reboot"
#: Never part of an estimate.
NOT_COUNTED = (
    "the time that workloads take to leave a node",
    "nodes that could not be planned",
    "steps that no node of this plan has run before",
)
_POSSIBLE = "a reboot that is only possible (known after ...) counts in the upper bound only"
#: Rows of the longest and of unmeasured parts.
_ROWS = 12
_KNOWN_LATER = "a state that is known after another one takes as long as in earlier runs"


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the plan would be executed.

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
    """One step, or similar, that takes time on one node.

    Args:
        state: whose step it is; empty for a reboot and for probes.
        what: its label.
        seconds: its duration; ``None`` if it was never measured.
        basis: where the seconds come from.
        certain: it will happen; a reboot may be only possible.
    """

    state: str
    what: str
    seconds: Seconds | None
    basis: str = ""
    certain: bool = True


def estimate(nodes: Sequence[NodeResult], schedule: Schedule) -> Estimate:
    """Estimate the duration of a plan."""
    found = measured(nodes)
    shapes: dict[object, list[Part]] = {}
    parts: dict[str, list[Part]] = {}
    for node in nodes:
        if node.would_refuse:
            continue
        if node.proceeds or node.status in (NodeStatus.OK, NodeStatus.BLOCKED):
            # Nodes without journals and with the same changes take equally long, except for the probes.
            shape = (node.steps, _unknown(node)) if not node.timings else node.name
            if shape not in shapes:
                shapes[shape] = _parts(node, found)
            parts[node.name] = [_probes(node), *shapes[shape]]
    return Estimate(schedule, {name: tuple(mine) for name, mine in parts.items()})


@dataclass(slots=True)
class Estimate:
    """Durations by node.

    Args:
        schedule: how the plan would be carried out.
        parts: by node.
    """

    schedule: Schedule
    parts: Mapping[str, tuple[Part, ...]]
    totals: dict[str, Seconds] = field(init=False)

    def __post_init__(self) -> None:
        self.totals = {name: _sum(mine) for name, mine in self.parts.items()}

    @property
    def is_measured(self) -> bool:
        """Whether any step was measured; otherwise there is no estimate."""
        return any(part.basis in (OWN, OTHERS) for mine in self.parts.values() for part in mine)

    def data(self) -> dict[str, Any]:
        """The estimate for a plan's document."""
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
            "unmeasured": self._unmeasured(),
            "assumes": [_POSSIBLE, _KNOWN_LATER],
            "not_counted": list(NOT_COUNTED),
        }

    def _reboots(self, *, certain: bool) -> int:
        """Numbers of nodes that will reboot, and that may."""
        return sum(
            any(p.what == REBOOT and not p.state and (p.certain or not certain) for p in mine)
            for mine in self.parts.values()
        )

    def of(self, names: Sequence[str]) -> dict[str, int] | None:
        """Duration on one node of a group; ``None`` if a step was never measured."""
        known = [name for name in names if name in self.parts]
        if not known or any(part.seconds is None for name in known for part in self.parts[name]):
            return None
        mine = [self.totals[name] for name in known]
        return _seconds(
            Seconds(
                min(s.low for s in mine), median(s.likely for s in mine), max(s.high for s in mine)
            )
        )

    def _span(self) -> Seconds:
        batches = self.schedule.batches or (tuple(self.totals),)

        def span(bound: str) -> float:
            """Assign nodes to forks in order; a batch ends with its slowest node."""
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
        """Sources of the likely seconds of all nodes together."""
        seconds: dict[str, float] = {}
        nodes: dict[str, set[str]] = {}
        for name, mine in self.parts.items():
            for part in mine:
                if part.seconds is not None:
                    seconds[part.basis] = seconds.get(part.basis, 0) + part.seconds.likely
                    nodes.setdefault(part.basis, set()).add(name)
        whole = sum(seconds.values()) or 1
        return [
            {"basis": basis, "share": round(seconds[basis] / whole, 3), "nodes": len(nodes[basis])}
            for basis in (OWN, OTHERS, PROBE)
            if basis in seconds
        ]

    def _longest(self) -> list[dict[str, Any]]:
        """The longest parts, summed over all nodes."""
        rows: dict[tuple[str, str], list[tuple[Seconds, str]]] = {}
        for mine in self.parts.values():
            for part in mine:
                if part.seconds is not None:
                    rows.setdefault((part.state, part.what), []).append((part.seconds, part.basis))

        def order(row: tuple[tuple[str, str], list[tuple[Seconds, str]]]) -> Any:
            spans = [seconds for seconds, _ in row[1]]
            return -sum(s.likely for s in spans), -sum(s.high for s in spans), row[0]

        return [_row(*key, mine) for key, mine in sorted(rows.items(), key=order)[:_ROWS]]

    def _unmeasured(self) -> list[dict[str, Any]]:
        """Steps without a measurement, sorted by number of nodes."""
        nodes: dict[tuple[str, str], int] = {}
        for mine in self.parts.values():
            for key in {(part.state, part.what) for part in mine if part.seconds is None}:
                nodes[key] = nodes.get(key, 0) + 1
        first = sorted(nodes.items(), key=lambda row: (-row[1], row[0]))
        return [{"state": s, "what": w, "nodes": number} for (s, w), number in first[:_ROWS]]


def _row(state: str, what: str, parts: Sequence[tuple[Seconds, str]]) -> dict[str, Any]:
    """One part on all nodes that have it."""
    spans = [seconds for seconds, _ in parts]
    whole = Seconds(
        min(s.low for s in spans), median(s.likely for s in spans), max(s.high for s in spans)
    )
    bases = [basis for basis in (OWN, OTHERS, PROBE) if any(b == basis for _, b in parts)]
    basis = " and ".join(bases)
    return {"state": state, "what": what, "nodes": len(parts), **_seconds(whole), "basis": basis}


def _seconds(s: Seconds) -> dict[str, int]:
    return {"low_s": int(s.low), "likely_s": round(s.likely), "high_s": -int(-s.high // 1)}


def _sum(parts: Iterable[Part]) -> Seconds:
    known = (part.seconds for part in parts if part.seconds is not None)
    return sum(known, Seconds(0, 0, 0))


def _unknown(node: NodeResult) -> tuple[tuple[str, Disruption], ...]:
    return tuple((r.state, r.worst) for r in node.outcomes(Outcome.KNOWN_AFTER))


def _probes(node: NodeResult) -> Part:
    """Probes: one before, one after each stage, one more for a state that is known after another."""
    depth: dict[str, int] = {}
    for result in node.states:
        if result.outcome is Outcome.KNOWN_AFTER:
            depth[result.state] = 1 + max((depth.get(n, 1) for n in result.known_after), default=1)
        elif result.outcome is Outcome.PENDING:
            depth[result.state] = 1
    probes = 1 + max(depth.values(), default=0)
    took = max(0.1, node.duration_s)
    return Part("", "connecting and probing", Seconds(took, took, 2 * took).times(probes), PROBE)


def _parts(node: NodeResult, found: Measured) -> list[Part]:
    parts = [
        _part(node.name, step.state, step.label, key_of(step.state, step.label), found)
        for step in node.steps
        if step.kind != "Reboot"
    ]
    planned = {step.state for step in node.steps}
    for result in node.states:
        unknown = result.outcome is Outcome.KNOWN_AFTER
        if unknown or (result.outcome is Outcome.PENDING and result.state not in planned):
            parts.append(_part(node.name, result.state, "all its steps", (result.state, ""), found))
    certain = any(step.kind == "Reboot" for step in node.steps)
    possible = any(r.worst is Disruption.REBOOT for r in node.outcomes(Outcome.KNOWN_AFTER))
    if certain or possible:
        known = found.find(node.name, ("", REBOOT))
        if known is None:
            parts.append(Part("", REBOOT, None, certain=certain))
        else:
            seconds = known[0] if certain else Seconds(0, 0, known[0].high)
            parts.append(Part("", REBOOT, seconds, known[1], certain))
    return parts


def _part(node: str, state: str, what: str, key: tuple[str, str], found: Measured) -> Part:
    seconds, basis = found.find(node, key) or (None, "")
    return Part(state, what, seconds, basis)
