"""The network breaks, at every packet of a run and in every way: nothing is torn, left behind or done twice.

Each point is a run of its own, broken there, and one more run that nothing breaks. What hangs goes
on hanging meanwhile. The first run must come through by itself wherever the node can be reached
again, and otherwise say in a line why it did not; after the second everything is as it should be.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest
from faultbed import SSHD, Bed, BootedBed, Point, Verdict, record, trial
from faultproxy import KINDS, Fault
from shares import TAKEN, everything, share

from gpustate_lab.node import Node

pytestmark = [pytest.mark.long, pytest.mark.node]

#: Nodes that are broken side by side, and how many such groups are at work at the same time.
WIDE, GROUPS = 48, 2
#: These take long for the clock, not for the machine.
SLOW = ("ghost", "gone", "late", "offline")
#: Of these every second message has its turn, another half with every commit; of the others each has.
BY_TURNS = ("half-close", "half-close-back", "late", "ghost", "delay", "offline", "gone")
#: What is tried on the connection that is recreated after a first one broke.
ON_THE_SECOND = ("cut", "half-open")


@pytest.fixture(scope="module")
def beds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Bed]]:
    if not os.access(SSHD, os.X_OK):
        pytest.skip(f"{SSHD} is not installed (Debian: openssh-server)")
    made: list[Bed] = []
    try:
        for number in range(GROUPS):
            made.append(Bed(tmp_path_factory.mktemp(f"group{number}"), WIDE))
        yield made
    finally:
        for bed in made:
            bed.close()


def all_points(bed: Bed) -> list[Point]:
    """Every way to break, at every packet of a run, and of what comes after a broken one."""
    whole = record(bed)[0]
    points = [
        Point(phase, (Fault(0, direction, number, kind),))
        for direction, number, phase in whole
        for kind in KINDS
    ]
    for word in ("upload1", "follow1"):
        first = [packet for packet in whole if packet[2] == word]
        direction, number, _ = first[len(first) // 2]
        cut = Fault(0, direction, number, "cut")
        points += [
            Point(f"again-{word}", (cut, Fault(1, direction, number, kind)))
            for direction, number, phase in record(bed, [cut])[1]
            if phase in ("upload1", "follow1")  # what comes behind it is as on any connection
            for kind in ON_THE_SECOND
        ]
    return points


def chosen(points: list[Point]) -> list[Point]:
    """This commit's share, or all but two thirds of what goes by turns."""

    def kind(point: Point) -> tuple[str, str]:
        return (point.phase.rstrip("12"), point.kind)

    if not everything():
        return share("network faults", points, most=100, kind=kind)
    rest = [point for point in points if point.kind in BY_TURNS]
    whole = [point for point in points if point.kind not in BY_TURNS]
    turn = share("network faults, by turns", rest, most=len(rest) // 3, kind=kind, always=True)
    return share("network faults", whole, most=0, kind=kind) + turn


def run_all(beds: list[Bed], points: list[Point]) -> list[Verdict]:
    """Try all points, those that take long together."""
    points = sorted(points, key=lambda point: (point.kind not in SLOW, point.kind))
    waiting: SimpleQueue[list[Point]] = SimpleQueue()
    for start in range(0, len(points), WIDE):
        waiting.put(points[start : start + WIDE])
    verdicts: list[Verdict] = []

    def work(bed: Bed) -> None:
        while not waiting.empty():
            verdicts.extend(trial(bed, waiting.get()))

    with ThreadPoolExecutor(len(beds)) as pool:
        for done in [pool.submit(work, bed) for bed in beds]:
            done.result()
    # Where the machine itself stood still, a stall lasts longer than a run is patient.
    for _ in range(2):
        slow = [verdict for verdict in verdicts if verdict.impatient]
        if slow:
            verdicts = [verdict for verdict in verdicts if not verdict.impatient]
            verdicts += trial(beds[0], [verdict.point for verdict in slow])
    return verdicts


def told(verdicts: list[Verdict]) -> str:
    """How many there were of each kind, and how they ended."""
    kinds = Counter(verdict.point.kind for verdict in verdicts)
    phases = Counter(verdict.point.phase for verdict in verdicts)
    ends = Counter(f"{verdict.status} by connection {verdict.connections}" for verdict in verdicts)
    longest_s = max((verdict.took_s for verdict in verdicts), default=0)
    return f"{dict(phases)}; {dict(kinds)}; ended: {dict(ends)}; the longest run {longest_s:.0f} s"


def test_no_broken_connection_tears_a_file_leaves_a_process_or_does_a_step_twice(
    beds: list[Bed],
) -> None:
    points = chosen(all_points(beds[0]))
    verdicts = run_all(beds, points)
    fired = [verdict for verdict in verdicts if verdict.fired]
    TAKEN["network faults that came about"] = f"{len(fired)}: {told(fired)}"
    wrong = [f"{verdict.point}: {line}" for verdict in verdicts for line in verdict.wrong]
    assert not wrong, f"{len(wrong)} of {len(verdicts)} runs\n" + "\n".join(sorted(wrong)[:60])
    # A run has a packet more or less than the one that was recorded.
    assert len(fired) >= 0.9 * len(points)
    if everything():
        assert len(fired) >= 1000


def test_programs_that_systemd_starts_are_left_alone_by_broken_connections(
    node12: Node, tmp_path: Path
) -> None:
    bed = BootedBed(tmp_path, node12)
    try:
        whole = record(bed)[0]
        points = [
            Point(phase, (Fault(0, direction, number, kind),))
            for direction, number, phase in whole
            if phase in ("upload1", "follow1") and number % 3 == 0
            for kind in ("cut", "late")
        ]
        chosen = share(
            "network faults on a booted node",
            points,
            most=4,
            kind=lambda point: (point.phase, point.kind),
        )
        verdicts = [verdict for point in chosen for verdict in trial(bed, [point])]
    finally:
        bed.close()
    wrong = [f"{verdict.point}: {line}" for verdict in verdicts for line in verdict.wrong]
    assert not wrong, "\n".join(wrong)
