"""Many points on many nodes at once: a process a node, which gpustate runs are forked from."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import killing
import killjournal
import killpoints
from killbench import Bench, Recording, Result
from killpoints import NODE, WHENS, Place, Point

_bench: Bench | None = None


def _open(lab: str, node: str, policy: Path, folder: Path) -> None:
    global _bench
    _bench = Bench(lab, node, policy, folder)


def _the_bench() -> Bench:
    assert _bench is not None
    return _bench


def _prepare(spare_kernel: str) -> None:
    _the_bench().prepare(spare_kernel)


def _record(ticks: tuple[float, ...]) -> Recording:
    return _the_bench().record(ticks)


def _verdicts(recording: Recording) -> dict[str, str]:
    """By point: what a re-run makes of lock and journal."""
    bench, found, after = _the_bench(), {}, ""
    for stop in recording.stops:
        for when in WHENS if stop.kind else ():
            after = found[f"{stop.name}-{when}"] = killjournal.verdict(bench.copy_at(stop), when)
        if not stop.kind:  # the journal is the one that the last entry left
            found[f"{stop.name}-at work"] = after
    return found


def _carry_out(point: Point, real: bool, whole: bool) -> Result:
    return killing.carry_out(_the_bench(), point, real=real, whole=whole)


class Campaign:
    """The points of one image, on the nodes of a lab that run it.

    Args:
        lab: name of the lab.
        nodes: names of nodes with one image; the first one's recorded run is enumerated.
        policy: a policy file.
        folder: for copies and outputs; on a disk with room for some hundred MiB.
    """

    def __init__(self, lab: str, nodes: Sequence[str], policy: Path, folder: Path) -> None:
        self.nodes = tuple(nodes)
        self.recording = Recording()
        self.points: list[Point] = []
        self.places: list[Place] = []
        self.results: dict[str, Result] = {}
        self._workers = [
            ProcessPoolExecutor(1, get_context("spawn"), _open, (lab, node, policy, folder / node))
            for node in nodes
        ]

    def close(self) -> None:
        """End the processes; what they made goes with the lab."""
        for worker in self._workers:
            worker.shutdown(cancel_futures=True)

    def record(self, *, clock: bool, spare_kernel: str = "") -> None:
        """Record the run on each node; the points follow from it.

        Args:
            clock: also stop between two calls that are long apart.
            spare_kernel: release of a kernel that the nodes do without.
        """
        for future in [worker.submit(_prepare, spare_kernel) for worker in self._workers]:
            future.result()
        ticks = killpoints.TICKS if clock else ()
        recorded = [future.result() for future in [w.submit(_record, ticks) for w in self._workers]]
        names = [[stop.name for stop in made.stops if not stop.clock] for made in recorded]
        for other in names[1:]:
            difference = sorted(set(names[0]) ^ set(other))
            assert other == names[0], f"two runs on one image differ at {difference[:6]}"
        self.recording = recorded[0]
        verdicts = self._workers[0].submit(_verdicts, self.recording).result()
        self.points = killpoints.points(self.recording.stops)
        self.places = killpoints.places(
            self.points, lambda point: verdicts[f"{point.stop.name}-{point.when}"]
        )

    def carry_out(self, points: Sequence[Point], say: Callable[[str], Any]) -> None:
        """Kill at each of these points, on whichever node is free."""
        # In an order that looks random and is always the same: a run that is broken off has seen much.
        waiting = sorted(
            enumerate(points), key=lambda one: hashlib.sha256(one[1].name.encode()).digest()
        )
        mutex = threading.Lock()
        broken: list[BaseException] = []

        def work(worker: ProcessPoolExecutor) -> None:
            while True:
                with mutex:
                    if not waiting or broken:
                        return
                    number, point = waiting.pop()
                # Now and then the node itself is killed instead of its disk being copied.
                real = point.who == NODE and number % 6 == 0 and not point.stop.clock
                try:
                    result = worker.submit(_carry_out, point, real, number % 10 == 0).result()
                except BaseException as error:  # noqa: BLE001  told by the thread that waits
                    broken.append(error)
                    return
                with mutex:
                    self.results[point.name] = result
                    say(told(result))

        threads = [threading.Thread(target=work, args=(worker,)) for worker in self._workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if broken:
            raise broken[0]

    def table(self) -> list[str]:
        """One line for each of who can die."""
        lines: list[str] = []
        for who in killpoints.WHO:
            points = [point for point in self.points if point.who == who]
            found = [place for place in self.places if place.who == who]
            done = [r for name, r in self.results.items() if name.startswith(f"{who}-")]
            good = sum(not result.problems for result in done)
            lines.append(
                f"{who}: {len(points)} points on {len(found)} places; "
                f"{len(done)} places killed, {good} converged in one re-run"
            )
        return lines


def told(result: Result) -> str:
    """A result in a line or a few."""
    if not result.problems:
        return f"{result.point}: converged, {result.seconds:.1f} s"
    return f"{result.point}: " + "\n    ".join(["WRONG", *result.problems])
