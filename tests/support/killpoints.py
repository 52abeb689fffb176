"""Every point at which a run can be killed: enumerated from a recorded run, named, and grouped.

A node program forces each journal entry to disk with ``sync``, and each file it writes. A lab node
whose ``sync`` is the harness's own (:mod:`killbench`) stops at any of these calls, so a recorded run
is a list of *stops*, in order: at an entry of the journal, or between two entries at a file that a
step writes. Long steps that call nothing are stopped by the clock, a few times each.

The points are, for each entry and each of who can die (controller, program, node):

``before``
    the entry is not on disk: its line is taken off the journal again.
``torn``
    half of its line is on disk.
``after``
    the whole line is on disk and the program has not gone on.

and ``at work``: for program and node each stop between two entries; for controller and node the stops
between two programs, when the controller looks and plans.

Points on the same *place* (no file outside of the run's own journal and output changed between
them) leave the same node behind, but for the journal's last line. A place is killed once for each of
who can die, with the point to do it at taken in turn; what the first look of a re-run makes of the
journal is asked for every single point (:func:`killjournal.verdict`) and has to be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

WHENS = ("before", "torn", "after")
CONTROLLER, PROGRAM, SHELL, NODE = "controller", "program", "shell", "node"
#: Seconds after a call at which the clock stops a program that has not come to its next one.
TICKS = (0.2, 1.0, 4.0, 12.0, 30.0)
#: ``shell``: only the program's own process is killed; its step goes on without it.
WHO = (CONTROLLER, PROGRAM, SHELL, NODE)


@dataclass(frozen=True, slots=True)
class Stop:
    """One place in a recorded run where it was held.

    Args:
        call: number of the ``sync`` call from the start of the run; the one before, for a stop by the clock.
        stage: of the run, from 1.
        line: journal lines of the stage there are, this one's own included.
        kind: what the entry is (``intent``, ``result``, ...), empty between two entries.
        step: state and label of the step this belongs to, empty outside of steps.
        digest: of the node's disk at this moment.
        clock: seconds after ``call`` at which it was stopped, 0 for a call.
    """

    call: int
    stage: int
    line: int
    kind: str
    step: str
    digest: str = ""
    clock: float = 0.0

    @property
    def name(self) -> str:
        """Stage, line, and what is between two entries."""
        return f"{self.stage}.{self.line:02d}{f'-{self.kind}' if self.kind else ''}{self.inner}"

    @property
    def inner(self) -> str:
        if self.clock:
            return f"~{self.call}+{self.clock:.1f}s"
        return "" if self.kind else f"~{self.call}"


@dataclass(frozen=True, slots=True)
class Point:
    """Somebody is killed at a stop."""

    who: str
    stop: Stop
    when: str

    @property
    def name(self) -> str:
        return f"{self.who}-{self.stop.name}-{self.when}"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Place:
    """Points that leave the same node behind; one of them is carried out."""

    who: str
    points: tuple[Point, ...]
    chosen: Point

    def __str__(self) -> str:
        return self.chosen.name


def entries(stops: Iterable[Stop]) -> list[Stop]:
    """Those of the stops that are journal entries."""
    return [stop for stop in stops if stop.kind]


def points(stops: Sequence[Stop]) -> list[Point]:
    """All of them, in the order of the run."""
    found: list[Point] = []
    for stop in stops:
        if stop.kind:
            found += [
                Point(who, stop, when) for who in (CONTROLLER, PROGRAM, NODE) for when in WHENS
            ]
        elif stop.step:
            found += [Point(who, stop, "at work") for who in (PROGRAM, NODE, SHELL)]
        else:  # by the clock, between two programs
            found += [Point(who, stop, "at work") for who in (CONTROLLER, NODE)]
    return found


def places(
    all_points: Sequence[Point], verdict: Callable[[Point], str] = lambda point: ""
) -> list[Place]:
    """Group points by who dies, by the disk, and by what a re-run makes of the journal.

    Only points in a row are grouped. The one that is carried out is another one from place to place,
    so that each way of leaving a journal behind is met again and again.

    Args:
        all_points: in any order.
        verdict: what the first look of a re-run makes of lock and journal after a point.
    """
    grouped: dict[tuple[str, int, str], list[Point]] = {}
    number = 0
    last = ("", "")
    for point in sorted(all_points, key=lambda p: (p.who, p.stop.call, p.stop.clock)):
        if (point.who, point.stop.digest) != last:
            number += 1
            last = (point.who, point.stop.digest)
        judged = "" if point.who == CONTROLLER else verdict(point)
        grouped.setdefault((point.who, number, judged), []).append(point)
    return [
        Place(who, tuple(group), group[turn % len(group)])
        for turn, ((who, _, _), group) in enumerate(grouped.items())
    ]


def thinned(all_places: Sequence[Place]) -> list[Place]:
    """Keep every place that holds an entry, and some of those within steps.

    A long step that was stopped by the clock keeps two. Steps that write files are alike, so every
    second one keeps one, another moment of writing from step to step; and half of that where only the
    program's shell dies.
    """
    kept: list[Place] = []
    within: dict[tuple[str, int, str], list[Place]] = {}
    for place in all_places:
        if any(point.stop.kind for point in place.points):
            kept.append(place)
        else:
            stop = place.chosen.stop
            within.setdefault((place.who, stop.stage, stop.step), []).append(place)
    turns = dict[str, int]((who, 0) for who in WHO)
    for (who, _, _), group in within.items():
        turn = turns[who] = turns[who] + 1
        if any(point.stop.clock for place in group for point in place.points):
            kept.append(group[turn % len(group)])
            if who != SHELL and len(group) > 1:
                kept.append(group[(turn + len(group) // 2) % len(group)])
        elif turn % (4 if who == SHELL else 2) == 1:
            kept.append(group[(turn // 2) % len(group)])
    order = {place.chosen.name: number for number, place in enumerate(all_places)}
    return sorted(kept, key=lambda place: order[place.chosen.name])


def with_entries(all_places: Sequence[Place]) -> list[Place]:
    """Those places that hold an entry of the journal."""
    return [p for p in all_places if any(point.stop.kind for point in p.points)]


def cut(journal: bytes, when: str) -> bytes:
    """A journal as it is on disk when its last line is not, or half, there."""
    if when not in ("before", "torn"):
        return journal
    lines = journal.splitlines(keepends=True)
    last = lines.pop() if lines else b""
    return b"".join(lines) + (last[: len(last) // 2] if when == "torn" else b"")


def repeated(
    done: Sequence[tuple[str, str]], again: Sequence[tuple[str, str]], harmless: Iterable[str]
) -> list[str]:
    """Steps whose result was on disk and which the re-run did once more.

    Args:
        done: state and label of the steps that had ended well before the kill.
        again: those that the re-run ended well.
        harmless: beginnings of labels of steps that only look, or are cheap and change nothing.
    """
    looks = tuple(harmless)
    before = set(done)
    return [
        f"{state}: {label}"
        for state, label in again
        if (state, label) in before and not label.startswith(looks)
    ]
