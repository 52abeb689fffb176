"""Runs that are under way: those of this machine, and those that hold the Lease of a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from gpustate.engine import records
from gpustate.engine.fleet import process_runs
from gpustate.rollout.access import Accesses
from gpustate.rollout.board import RecordBoard, read_control, read_progress
from gpustate.schedulers import lease as leases

#: What comes next for a node, by its phase; the others are over.
NEXT = {
    "queued": "is probed; if its change needs it, it is taken out of service",
    "held": "its workloads leave",
    "drained": "its states change",
    "changing": "is probed again and validated",
    "validating": "returns to service",
    "failed": "fix the node, then run gpustate apply again; it is released when it ends well",
    "skipped": "once the cause is gone: gpustate resume RUN",
}


@dataclass(frozen=True, slots=True)
class Running:
    """One run.

    Args:
        run: id of the run.
        person: who runs it.
        where: where it was found, for messages.
        control: who paused or aborted it, and since when; empty: nobody.
        progress: how far it is, as it was published last; ``None``: it has not been yet.
        ask: leave a request, as it is stored.
        silent: its controller has not renewed the Lease since then, so it is dead or without a network; empty: it is
            at work.
    """

    run: str
    person: str
    where: str
    control: str
    progress: Mapping[str, Any] | None
    ask: Callable[[str], None]
    silent: str = ""


def running_here() -> list[Running]:
    """Runs of this person on this machine."""
    return [_local(record) for record in records.unfinished(lambda *_: False) if _alive(record)]


def running_in(access: Accesses) -> list[Running]:
    """Runs that hold the Lease of a cluster.

    Raises:
        GpustateError: a cluster cannot be used.
    """
    found: list[Running] = []
    for cluster in access.leased():
        lease = cluster.standing()
        if not lease.holder:
            continue
        control = read_control(lease.control, lease.run)
        found.append(
            Running(
                lease.run,
                lease.holder.rpartition(" run ")[0],
                cluster.title,
                str(control or ""),
                _of(lease.run, read_progress(lease.progress)),
                partial(cluster.ask, lease.run),
                lease.renewed if _is_silent(lease.renewed) else "",
            )
        )
    return found


def _is_silent(renewed: str) -> bool:
    """Nobody has renewed a Lease for longer than it is valid, with some time for clocks that differ."""
    with suppress(ValueError):
        age_s = time.time() - datetime.fromisoformat(renewed).timestamp()
        return age_s > 2 * leases.VALID_S
    return False


def _local(record: Mapping[str, Any]) -> Running:
    run = str(record["run"])
    board = RecordBoard(run)
    control = read_control(board.control() or "", run)
    progress = _of(run, read_progress(board.progress()))
    person = str((progress or {}).get("person") or record.get("person") or "")
    return Running(run, person, "this machine", str(control or ""), progress, board.ask)


def _of(run: str, progress: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Progress of this run; what another has left does not count."""
    return progress if progress is not None and progress.get("run") == run else None


def _alive(record: Mapping[str, Any]) -> bool:
    pid, born = record.get("pid"), str(record.get("born", ""))
    return isinstance(pid, int) and process_runs(pid, born)
