"""Carrying out one point on a bench: kill, run again once, judge."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import killpoints
import ledger
import nodedisk
from killbench import Bench, Result
from killjournal import LOOKS, UNTIL_BOOT, ended_well
from killpoints import CONTROLLER, NODE, SHELL, Point
from killprocess import Hold, Run, Trouble

from gpustate_lab import process

_AUTOMATIC = "var/lib/apt/extended_states"
#: A re-run builds kernel modules at most twice.
_RERUN_S = 240.0
#: How often a point that goes by the clock is tried.
_ATTEMPTS = 3


def carry_out(bench: Bench, point: Point, *, real: bool = False, whole: bool = True) -> Result:
    """Bring a point about, run again once, and say what is wrong afterwards.

    Args:
        bench: a node with its recorded run.
        point: who dies where.
        real: kill the node, instead of booting it on a copy of its disk.
        whole: the re-run goes on to the end, not only to that of the stage.
    """
    began = time.monotonic()
    # A controller that lives goes on by itself where it can, beyond that stage.
    alone = point.who == CONTROLLER or (point.who == NODE and not real)
    limited = alone and not whole and point.stop.stage in bench.ends
    bench.stage = point.stop.stage if limited else 0
    problems: list[str] = []
    for attempt in range(_ATTEMPTS):
        bench.hurry = 2**attempt
        problems.clear()
        try:
            if point.who == NODE and not real:
                problems += _from_copy(bench, point)
            else:
                problems += _live(bench, point)
        except Exception as error:  # noqa: BLE001  the other points are still to be seen
            problems.append(f"the point was not brought about: {type(error).__name__}: {error}")
            if isinstance(error, _LateError) and point.stop.clock:
                continue
        break
    return Result(point.name, problems, time.monotonic() - began)


class _LateError(Trouble):
    """What was to be killed has ended: by the clock that happens where more was to do when the run was recorded."""


def _from_copy(bench: Bench, point: Point) -> list[str]:
    copy = bench.copy_at(point.stop)
    nodedisk.put_back(bench.node, copy)
    own = nodedisk.upper(bench.node) / ledger.OWN
    newest = sorted((own / "runs").glob("*-[0-9]*"))[-1]
    journal = newest / "journal"
    if journal.exists():
        journal.write_bytes(killpoints.cut(journal.read_bytes(), point.when))
    bench.boot()
    before = _Before(bench, point, booted=True)
    return before.judge(bench.again("apply", "--yes", "-o", "json"))


def _live(bench: Bench, point: Point) -> list[str]:
    """Somebody dies in a run: in one of the stage alone where that does the same, else in a whole one."""
    if point.stop.stage > 1:
        found = _killed(bench, point, bench.at_stage(point.stop.stage), booted=True)
        if found is not None:
            return found
    bench.fresh()
    found = _killed(bench, point, 0, booted=False)
    if found is None:
        raise Trouble("the run does not come to where the recorded one was")
    return found


def _killed(bench: Bench, point: Point, before: int, *, booted: bool) -> list[str] | None:
    """What is wrong after it; ``None`` where the run is another than the recorded one."""
    stop = point.stop
    with bench.armed(str(stop.call - before)) as hold:
        first = bench.apply()
        try:
            return _held_and_killed(bench, point, hold, first, booted=booted)
        except BaseException:
            first.kill()  # or it would go on with the node of the next point
            raise


def _held_and_killed(
    bench: Bench, point: Point, hold: Hold, first: Run, *, booted: bool
) -> list[str] | None:
    stop = point.stop
    at = bench.held(hold, first)
    found = None if at is None else bench._stop(at[0], at[1], at[2])
    if found is None or (not stop.clock and (found.name, found.step) != (stop.name, stop.step)):
        hold.never_again()
        if hold.holding:
            hold.go()
        first.kill()
        return None
    hold.never_again()
    if stop.clock:
        hold.go()
        time.sleep(stop.clock / bench.hurry)
    if point.who == CONTROLLER:
        return _controller(bench, point, hold, first, booted=booted)
    return _program(bench, point, hold, first, booted=booted)


def _controller(bench: Bench, point: Point, hold: Hold, first: Run, *, booted: bool) -> list[str]:
    """What differs is when the successor comes: while the program stands, at once, or after it ended."""
    first.kill()
    before = _Before(bench, point, booted=booted)
    if point.when == "before":
        second = bench.again("apply", "--yes", "-o", "json")
        time.sleep(1.0)
        if second.poll() is not None:
            return [f"the re-run did not wait for the program at work:\n{second.said()}"]
        hold.go()
        return before.judge(second)
    if hold.holding:
        hold.go()
    if point.when == "torn":
        _until(lambda: not bench.processes(), 120, "the program goes on to its end")
    return before.judge(bench.again("apply", "--yes", "-o", "json"))


def _program(bench: Bench, point: Point, hold: Hold, first: Run, *, booted: bool) -> list[str]:
    folder = bench.runs()[-1]
    if point.who == NODE:
        _cut(folder, point)
        bench.node.kill()
        bench.boot()
    else:
        with bench.frozen():
            _cut(folder, point)
            doomed = _unit(bench, folder.name)
            if point.who == SHELL:
                doomed &= {pid for pid, words in bench.processes().items() if "/program" in words}
            if not doomed:
                raise _LateError("there is no program to kill")
            for pid in doomed:
                os.kill(pid, signal.SIGKILL)
        if point.who == SHELL and hold.holding:
            hold.go()
    code = first.wait(120)
    problems = []
    # 3: what was killed was the proof. 4: the node was not back in time.
    if code not in (0, 1, 3, 4):
        problems.append(f"the first run ended with {code}:\n{first.said()}")
    if "Traceback" in first.said():
        problems.append(f"a traceback in the first run:\n{first.said()}")
    before = _Before(bench, point, booted=booted or point.who == NODE)
    return problems + before.judge(bench.again("apply", "--yes", "-o", "json"))


def _cut(folder: Path, point: Point) -> None:
    journal = folder / "journal"
    text = journal.read_bytes()
    left = killpoints.cut(text, point.when)
    if left != text:
        os.truncate(journal, len(left))


def _unit(bench: Bench, run: str) -> set[int]:
    """Every process of the unit the program runs in, daemons that dpkg started there included."""
    pids: set[int] = set()
    for hierarchy in process.cgroup_hierarchies():
        base = hierarchy / process.CGROUP_PREFIX / bench.node.cgroup
        for folder, _, _ in os.walk(base):
            if f"/gpustate-{run}.service" in folder:
                text = Path(folder, "cgroup.procs").read_text()
                pids.update(int(line) for line in text.split())
    return pids


class _Before:
    """What there was when the re-run began, and what must hold when it has ended."""

    def __init__(self, bench: Bench, point: Point, *, booted: bool = False) -> None:
        self.bench = bench
        self.point = point
        self.booted = booted
        self.runs = {folder.name for folder in bench.runs()}
        self.done = [step for folder in bench.runs() for step in ended_well(folder)]
        self.installed = bench.installed()
        self.starts = max(1, bench.containerd_starts())  # a boot starts it, be it a little later
        self.restarted = any(label == "restart containerd.service" for _, label in self.done)

    def judge(self, second: Run) -> list[str]:
        bench = self.bench
        code = second.wait(_RERUN_S)
        problems: list[str] = []
        if code != 0:
            return [f"the re-run ended with {code}:\n{_reason(second)}"]
        row = json.loads(second.out.read_text())["nodes"][0]
        if row["status"] != "ok" or row.get("reboots"):
            problems.append(f"the re-run: {row['status']}, {row.get('reboots')} reboots")
        drift = bench.again("drift")
        if drift.wait(60) != 0:
            problems.append(f"drift afterwards ended with {drift.code}:\n{drift.said()}")
        return problems + self._disk() + self._steps()

    def _disk(self) -> list[str]:
        bench, wanted = self.bench, self.bench.reference
        problems = [
            f"a file of others changed: {name}"
            for name, was in wanted["foreign"].items()
            if bench.foreign()[name] != was
        ]
        problems += ledger.differences(*map(self._told, (bench.wanted, bench.ledger())))
        left = ledger.left_behind(nodedisk.upper(bench.node))
        problems += [f"left behind: {name}" for name in left if name not in wanted["left"]]
        own = bench.node.root / ledger.OWN
        if (own / "lock").exists():
            problems.append("the lock is still there")
        try:
            _until(lambda: not bench.processes(), 10, "nothing of a run is at work any more")
        except Trouble as error:
            problems.append(f"{error}: {', '.join(bench.processes().values())}")
        return problems

    def _told(self, found: ledger.Ledger) -> ledger.Ledger:
        """Less what a killed apt cannot have known any more.

        It writes down at its end which packages came as dependencies. Where it was killed, they count
        as asked for: nothing else removes them, and ``gpustate remove`` knows them by name.
        """
        inside = not self.point.stop.kind and "install" in self.point.stop.step
        return {name: line for name, line in found.items() if not (inside and name == _AUTOMATIC)}

    def _steps(self) -> list[str]:
        bench = self.bench
        again = [
            step
            for folder in bench.runs()
            if folder.name not in self.runs
            for step in ended_well(folder, changing=True)
        ]
        harmless = LOOKS + (UNTIL_BOOT if self.booted else ())
        found = killpoints.repeated(self.done, again, harmless)
        problems = [f"repeated: {what}" for what in found]
        for name, (count, _) in bench.installed().items():
            was, complete = self.installed.get(name, (0, False))
            if count > was + (0 if complete else 1):
                problems.append(f"dpkg began {name} {count} times, {was} of them before the kill")
        starts = bench.containerd_starts() - self.starts
        # A step that goes on without its program restarts it once, and its repetition once more.
        most = 0 if self.restarted else 2 if self.point.who == SHELL else 1
        if starts > most:
            problems.append(f"containerd was started {starts} times more, {most} are enough")
        return problems


def _reason(run: Run) -> str:
    try:
        rows: list[dict[str, Any]] = json.loads(run.out.read_text())["nodes"]
        bad = [
            f"{s['state']}: {s['outcome']}: {s.get('reason', '')} {s.get('evidence', '')}"
            for s in rows[0]["states"]
            if s["outcome"] not in ("changed", "unchanged", "not applicable")
        ]
        return "\n".join([f"{rows[0]['status']}: {rows[0].get('reason', '')}", *bad])
    except (ValueError, KeyError, IndexError):
        return run.said()


def _until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise Trouble(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)
