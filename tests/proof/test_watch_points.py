"""A watcher is killed at every write to the API; the next one goes on, and every machine is changed once and in service.

Two machines that answer over ssh, and a cluster in memory whose API is as strict as the real one. The points are those of
an undisturbed watcher. ``GPUSTATE_POINT='after @ hold n0 1'`` carries out one of them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from queue import Empty, SimpleQueue

import forkserver
import pytest
from apigate import AFTER, BEFORE, Trap
from forkserver import Command
from rolloutbed import SUPPORT, Bed, finish

from gpustate.schedulers.lease import WATCH
from gpustate.watch.nodes import RECORD

pytestmark = [pytest.mark.node, pytest.mark.proof]

WORDS = ("--forks", "1", "--max-unavailable", "1")
POINT = os.environ.get("GPUSTATE_POINT", "")
WAIT_S = 60.0
#: These go by the clock.
TIMED = ("lease renew", "lease publish")


#: Beds side by side; a watcher mostly waits.
BEDS = 4


@pytest.fixture(scope="module")
def beds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Bed]]:
    made: list[Bed] = []
    try:
        for number in range(BEDS):
            made.append(Bed(tmp_path_factory.mktemp(f"watch{number}"), 2))
        yield made
    finally:
        for one in made:
            one.close()


def watch(bed: Bed) -> Command:
    words = ["watch", str(bed.folder / "policy.py"), "-i", str(bed.folder / "inventory.yml")]
    return forkserver.start([*words, *WORDS], str(SUPPORT / "hurrywatch.py"))


def phases(bed: Bed) -> list[str]:
    """Phase of each Node's record."""
    notes = [one["metadata"]["annotations"] for one in bed.cluster.all("nodes")]
    return [json.loads(one[RECORD])["phase"] if RECORD in one else "" for one in notes]


def holder(bed: Bed) -> str:
    """The watcher that has the Lease, if there is one."""
    leases = [one for one in bed.cluster.all("leases") if one["metadata"]["name"] == WATCH]
    return str(leases[0]["spec"].get("holderIdentity") or "") if leases else ""


def follow(bed: Bed, before: str = "") -> str:
    """Start a watcher; once it has the Lease and all Nodes are done, end it. What it printed.

    Args:
        before: the watcher that was killed.
    """
    command = watch(bed)
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and not command.ended():
        if holder(bed) not in ("", before) and phases(bed) == ["done", "done"]:
            break
        time.sleep(0.05)
    if not command.ended():
        os.kill(command.pid, 15)
    ran = finish(command)
    assert ran.code == 0, ran.text
    assert phases(bed) == ["done", "done"], ran.text
    return ran.text


@pytest.fixture(scope="module")
def points(beds: list[Bed]) -> list[tuple[str, str]]:
    """Every write of an undisturbed watcher, before and after it."""
    bed = beds[0]
    bed.reset()
    bed.gate.begin()
    text = follow(bed)
    assert bed.wrong() == [], text
    assert text.count("done, changed rollout-driver, rollout-firmware") == 2
    writes = [one for one in bed.gate.writes if one.rpartition(" ")[0] not in TIMED]
    return [(when, write) for write in writes for when in (BEFORE, AFTER)]


def test_the_writes_of_a_watcher_are_those_of_an_apply_and_its_records(
    points: list[tuple[str, str]],
) -> None:
    writes = {write.rpartition(" ")[0] for _, write in points}
    assert writes >= {
        "lease take",
        "lease release",
        "patch n0",
        "patch n1",
        "hold n0",
        "release n1",
    }
    assert [write for when, write in points if when == BEFORE and write.startswith("patch n0")] == [
        "patch n0 1",
        "patch n0 2",
    ]


def carry_out(bed: Bed, when: str, write: str) -> str:
    """Kill a watcher at a write, and let the next one go on; what is wrong."""
    bed.reset()
    running: list[Command] = []

    def kill() -> None:
        while not running:
            time.sleep(0.01)
        running[0].kill()

    trap = Trap(write, when, kill, drop=True)
    bed.gate.begin(trap)
    running.append(watch(bed))
    deadline = time.monotonic() + WAIT_S
    while not trap.sprung and not running[0].ended() and time.monotonic() < deadline:
        if phases(bed) == ["done", "done"]:
            os.kill(running[0].pid, 15)  # the last write is the release of its Lease
            time.sleep(1)
        time.sleep(0.05)
    finish(running[0])
    bed.gate.begin()
    try:
        text = follow(bed, holder(bed))
    except AssertionError as error:
        return f"{when} @ {write}: {error}"
    wrong = [*bed.wrong(), *([] if trap.sprung else ["the watcher did not get there"])]
    return f"{when} @ {write}: {'; '.join(wrong)}\n{text}" if wrong else ""


def test_the_next_watcher_goes_on_wherever_one_was_killed(
    beds: list[Bed], points: list[tuple[str, str]]
) -> None:
    chosen = [one for one in points if fnmatchcase(" @ ".join(one), POINT or "*")]
    waiting: SimpleQueue[tuple[str, str]] = SimpleQueue()
    for point in chosen:
        waiting.put(point)
    bad: list[str] = []

    def work(bed: Bed) -> None:
        while True:
            try:
                when, write = waiting.get_nowait()
            except Empty:
                return
            bad.append(carry_out(bed, when, write))

    with ThreadPoolExecutor(len(beds)) as pool:
        for done in [pool.submit(work, bed) for bed in beds]:
            done.result()
    assert not any(bad), "\n".join([f"of {len(chosen)}", *filter(None, bad)])
