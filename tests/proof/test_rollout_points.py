"""A rollout is disturbed at every write to the API and every journal entry; the next run ends it.

Two machines that answer over ssh, and a cluster in memory whose API is as strict as the real one
(:mod:`stubcluster`). Every run is a process of its own. Points are enumerated from an undisturbed run
(:mod:`rolloutpoints`). A disturbance that a run can sit out (an answer that is lost, a server that is away for a
moment, a conflicting write) does not fail it. After any of them, one more run ends with every machine changed once
and in service, its device plugin restarted with the new driver; or out of service by someone else, who is named.

``GPUSTATE_POINT='killed after @ hold n0 1'`` carries out one point alone; ``'*hold*'`` all that match.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from queue import Empty, SimpleQueue

import pytest
import shares
from rolloutbed import Bed
from rolloutpoints import ANYWHERE, ENTRY, Point, Verdict, carry_out, failures, record

pytestmark = [pytest.mark.long, pytest.mark.node]

POINT = os.environ.get("GPUSTATE_POINT", "")
#: Beds side by side; a run mostly waits.
BEDS = 3


@pytest.fixture(scope="module")
def beds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Bed]]:
    made: list[Bed] = []
    try:
        for number in range(BEDS if shares.everything() else 2):
            made.append(Bed(tmp_path_factory.mktemp(f"rollout{number}"), 2))
        yield made
    finally:
        for bed in made:
            bed.close()


@pytest.fixture(scope="module")
def points(beds: list[Bed]) -> list[Point]:
    """Every point of an undisturbed run."""
    found, ran = record(beds[0])
    assert ran.code == 0, ran.text
    assert beds[0].wrong() == []
    return found


def chosen(points: list[Point]) -> list[Point]:
    """All of them, or this commit's share."""
    if POINT:
        return [point for point in points if fnmatchcase(str(point), POINT)]
    return shares.share("rollout points", points, most=6, kind=lambda point: point.family)


def run_all(beds: list[Bed], points: list[Point]) -> list[Verdict]:
    """Carry out every point on whichever bed is free."""
    waiting: SimpleQueue[Point] = SimpleQueue()
    for point in points:
        waiting.put(point)
    verdicts: list[Verdict] = []

    def work(bed: Bed) -> None:
        while True:
            try:
                point = waiting.get_nowait()
            except Empty:
                return
            verdict = carry_out(bed, point)
            verdicts.append(verdict)
            if not verdict.fired:  # a pod had moved otherwise, on a busy machine
                verdicts.append(carry_out(bed, point))

    with ThreadPoolExecutor(len(beds)) as pool:
        for done in [pool.submit(work, bed) for bed in beds]:
            done.result()
    return verdicts


def test_every_kind_of_write_and_entry_has_its_points(points: list[Point]) -> None:
    writes = {point.where.rpartition(" ")[0] for point in points if point.what in ANYWHERE}
    for machine in ("n0", "n1"):
        wanted = {f"hold {machine}", f"note changing {machine}", f"release {machine}"}
        assert writes >= wanted
    assert writes >= {"lease take", "lease renew", "lease release", "delete nvidia-device-plugin"}
    assert any(write.startswith("evict") for write in writes)
    entries = [point for point in points if point.what == ENTRY]
    assert len(entries) >= 20
    assert len(points) >= 150


def test_the_run_after_a_disturbed_one_ends_with_every_machine_done_and_released(
    beds: list[Bed], points: list[Point]
) -> None:
    verdicts = run_all(beds, chosen(points))
    assert not any(verdict.wrong for verdict in verdicts), failures(verdicts)
    # Renewals of the Lease, and what it says of the run, go by the clock.
    fired = {str(one.point) for one in verdicts if one.fired}
    missed = {str(one.point) for one in verdicts} - fired
    assert [point for point in missed if "renew" not in point and "publish" not in point] == []
