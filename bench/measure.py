"""Runs contenders in turns and keeps what each run cost."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from bench import workload
from bench.contenders import Contender, Stage

_KEEPER = Path(__file__).with_name("keeper.py")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run cost; of several runs, the median of each.

    Args:
        wall_s: from start to end.
        cpu_s: of the controller, all its processes.
        memory_mib: peak PSS of the controller's process tree, sampled.
        node_cpu_s: of sshd and what it started, for each node.
        connections, channels: for each node, by sshd's word.
    """

    wall_s: float
    cpu_s: float
    memory_mib: float
    node_cpu_s: float
    connections: float
    channels: float


@dataclass(frozen=True, slots=True)
class Row:
    """One contender in one setting."""

    contender: str
    nodes: int
    round_trip_s: float
    drifted: bool
    cost: Cost
    runs: tuple[Cost, ...]

    def data(self) -> dict[str, object]:
        """As JSON has it."""
        return asdict(self)


class Failed(Exception):
    """A contender did not do what it was to do; the text says what it said."""


def rounds(
    stage: Stage, some: Sequence[Contender], count: int, drifted: bool, said: Callable[[str], None]
) -> list[Row]:
    """Run each contender ``count`` times, in turns, so that a busy minute hits all of them."""
    runs: dict[str, list[Cost]] = {one.name: [] for one in some}
    for number in range(count):
        for one in some:
            cost = _run(stage, one, drifted)
            runs[one.name].append(cost)
            said(
                f"{one.name}: {cost.wall_s:.2f} s, {cost.cpu_s:.2f} s CPU, "
                f"{cost.memory_mib:.0f} MiB (round {number + 1})"
            )
    trip = stage.bed.round_trip_s
    return [
        Row(name, stage.count, trip, drifted, _median(made), tuple(made))
        for name, made in runs.items()
    ]


def _median(runs: Sequence[Cost]) -> Cost:
    return Cost(
        **{f.name: statistics.median(getattr(run, f.name) for run in runs) for f in fields(Cost)}
    )


def _run(stage: Stage, one: Contender, drifted: bool) -> Cost:
    bed = stage.bed
    folders = [workload.root(bed.work, host) for host in stage.hosts]
    command, environment = stage.command(one)
    if drifted:
        for folder in folders:
            workload.drift(folder)
    before, cpu_before = bed.counts(), bed.cpu_s()
    report, log = bed.work / "report.json", bed.work / "last.log"
    report.unlink(missing_ok=True)
    keeper = [sys.executable, "-S", "-E", str(_KEEPER), str(report), str(log), *command]
    _keep(keeper, environment, bed.work)
    data = json.loads(report.read_text())
    wrong = [w for folder in folders for w in workload.differences(folder)]
    if data["status"] or (wrong and (one.changes or not drifted)):
        last = log.read_text(errors="replace")[-1500:]
        raise Failed(
            f"{one.name} ended with {data['status']}, {len(wrong)} resources are wrong: {last}"
        )
    if drifted and not one.changes and not wrong:
        raise Failed(f"{one.name} was to look only, and changed everything")
    after = _settled(stage)
    return Cost(
        data["wall_s"],
        data["cpu_s"],
        data["memory_mib"],
        (bed.cpu_s() - cpu_before) / stage.count,
        (after[0] - before[0]) / stage.count,
        (after[1] - before[1]) / stage.count,
    )


def _keep(words: list[str], environment: dict[str, str], folder: Path) -> None:
    """Run the keeper; take it and its contender along when the bench is interrupted."""
    keeper = subprocess.Popen(words, env=environment, cwd=folder, start_new_session=True)
    try:
        status = keeper.wait()
    except BaseException:
        os.killpg(keeper.pid, signal.SIGKILL)
        keeper.wait()
        raise
    if status:
        raise Failed(f"the keeper ended with {status}")


def _settled(stage: Stage) -> tuple[int, int]:
    """What sshd counted, once it has ended what the contender left."""
    counts = stage.bed.counts()
    while True:
        time.sleep(0.4)
        now = stage.bed.counts()
        if now == counts:
            return now
        counts = now
