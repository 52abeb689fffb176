"""Runs in progress, by the Leases of clusters and by the records of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpustate.engine import fleet, records
from gpustate.rollout import running
from gpustate.schedulers.lease import Standing

RUN = "20260101-000000-aaaaaa"


def accesses(run: str) -> Any:
    """Access to a cluster whose Lease a run has renewed just now."""
    standing = Standing(f"alice run {run}", renewed=datetime.now(UTC).isoformat())
    cluster = SimpleNamespace(standing=lambda: standing, title="cluster", submit=lambda *_: None)
    return SimpleNamespace(leased=lambda: [cluster])


@pytest.mark.parametrize("alive", [True, False])
def test_a_run_whose_process_on_this_machine_has_died_is_silent_at_once(
    alive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (run,) = running.running_in(accesses(RUN))
    assert not run.silent, "it may run on another machine"
    born = fleet.born(os.getpid()) if alive else "long ago"
    records.begin(RUN, "apply", "p", {}, person="alice", born=born, created="2026-01-01T00:00:00Z")
    (run,) = running.running_in(accesses(RUN))
    assert bool(run.silent) is not alive
    here = f"alice@{socket.gethostname()} run {RUN}"
    assert fleet.died(here) is not alive
    assert not fleet.died(f"alice@elsewhere run {RUN}"), "a home folder may be of several machines"
    assert not fleet.died(here.replace(RUN, "another"))
    if not alive:
        return
    with subprocess.Popen(["sleep", "900"]) as child:
        born = fleet.born(child.pid)
        assert fleet.process_runs(child.pid, born)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not fleet.process_runs(child.pid, born), "nobody has waited for it yet"
    # A run that continues it is recorded in its place, and may wait for its Lease.
    records.end(records.path_of(RUN), interrupted=False)
    (run,) = running.running_in(accesses(RUN))
    assert bool(run.silent) is not alive
