"""Runs that are under way: those of this machine, and those that hold the Lease of a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial, reduce
from typing import TYPE_CHECKING

from gpustate.engine import records
from gpustate.engine.fleet import has_died
from gpustate.rollout.access import Accesses
from gpustate.rollout.board import (
    Control,
    RecordBoard,
    RolloutProgress,
    read_control,
    read_progress,
    stronger,
)
from gpustate.schedulers import lease as leases

if TYPE_CHECKING:
    from gpustate.schedulers.kubernetes import Kubernetes
    from gpustate.schedulers.slurm import Slurm

#: What comes next for a node, by its phase; after a failure it depends on the run, and the others are over.
NEXT = {
    "queued": "is probed; if its change needs it, it is taken out of service",
    "held": "its workloads leave",
    "drained": "its states change",
    "changing": "is probed again and validated",
    "validating": "returns to service",
    "skipped": "once the cause is gone: gpustate rollout resume RUN",
}
#: How long a run of this machine has to take up a request; it looks every two seconds.
ANSWER_S = 10.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Running:
    """One run.

    Args:
        run: id of the run.
        person: who runs it.
        where: where it was found, for messages.
        control: who paused or aborted it, and since when; ``None``: nobody.
        progress: how far it is, as it was published last; ``None``: it has not been yet.
        ask: leave a request, as it is stored, empty: take it back; whether it counts now.
        silent: its controller has not renewed the Lease since then, so it is dead or without a network; empty: it is
            at work.
        here: it was found by its record on this machine.
    """

    run: str
    person: str
    where: str
    control: Control | None
    progress: RolloutProgress | None
    ask: Callable[[str], bool]
    silent: str = ""
    here: bool = False


def running_here(inventory: str = "") -> list[Running]:
    """Runs of this person on this machine; with the source of an ``inventory`` only those of it."""
    source = records.inventory_of(inventory)
    return [
        _local(record)
        for record in records.started()
        if not has_died(record) and source in ("", record["options"].get("inventory"))
    ]


def running_in(access: Accesses) -> list[Running]:
    """Runs that hold the Lease of a cluster.

    Raises:
        GpustateError: a cluster cannot be used.
    """
    return [run for cluster in access.leased() if (run := running_at(cluster))]


def running_at(cluster: Kubernetes | Slurm) -> Running | None:
    """The run that holds the Lease of a cluster; ``None``: there is none.

    Raises:
        GpustateError: the cluster does not answer, or the user may not read the Lease.
    """
    lease = cluster.standing()
    if not lease.holder:
        return None
    dead = {record["run"] for record in records.known() if has_died(record)}
    return Running(
        lease.run,
        lease.holder.rpartition(" run ")[0],
        cluster.title,
        read_control(lease.control, lease.run),
        _of(lease.run, read_progress(lease.progress)),
        partial(_ask_there, cluster.submit, lease.run),
        lease.renewed if lease.run in dead or _is_silent(lease.renewed) else "",
    )


def each_once(runs: Iterable[Running]) -> list[Running]:
    """Every run once, though it may hold the Leases of several clusters, and have a record on this machine.

    What Leases say counts: the files beside the record follow them.
    """
    by_run: dict[str, list[Running]] = {}
    for running in runs:
        by_run.setdefault(running.run, []).append(running)
    return [_as_one(some) for some in by_run.values()]


def _as_one(some: Sequence[Running]) -> Running:
    leases_of = [running for running in some if not running.here] or some
    return replace(
        leases_of[0],
        where=", ".join(running.where for running in some),
        control=reduce(stronger, (running.control for running in leases_of)),
        ask=lambda control: _ask_all(leases_of, control),
    )


def _ask_all(some: Sequence[Running], control: str) -> bool:
    answers = [running.ask(control) for running in some]
    return all(answers)


def _ask_there(ask: Callable[[str, str], None], run: str, control: str) -> bool:
    ask(run, control)
    return True


def _ask_here(run: str, board: RecordBoard, control: str) -> bool:
    """Leave a request, and wait until the run has taken it up and shown it in the Leases that it holds."""
    before = board.progress()
    board.ask(control)
    until = time.monotonic() + ANSWER_S
    while time.monotonic() < until:
        text = board.progress()
        progress = _of(run, read_progress(text))
        if progress is not None and progress.get("request") == control:
            return True
        if before and not text:
            return True  # it is over
        time.sleep(_POLL_S)
    return False


def _is_silent(renewed: str) -> bool:
    """Nobody has renewed a Lease for longer than it is valid, with some time for clocks that differ."""
    with suppress(ValueError):
        age_s = time.time() - datetime.fromisoformat(renewed).timestamp()
        return age_s > 2 * leases.VALID_S
    return False


def _local(record: records.RunRecord) -> Running:
    run = record["run"]
    board = RecordBoard(run)
    control = read_control(board.control() or "", run)
    ask = partial(_ask_here, run, board)
    progress = _of(run, read_progress(board.progress()))
    person = (progress and progress.get("person")) or record.get("person", "")
    return Running(run, person, "this machine", control, progress, ask, here=True)


def _of(run: str, progress: RolloutProgress | None) -> RolloutProgress | None:
    """Progress of this run; what another has left does not count."""
    return progress if progress is not None and progress.get("run") == run else None
