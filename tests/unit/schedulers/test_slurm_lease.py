"""One run at a time changes the nodes of a Slurm cluster: a file on its head, read and written by real sh and flock."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

from gpustate.errors import ClusterError, ConnectionFailed, LockHeld
from gpustate.schedulers import lease
from gpustate.schedulers.base import Why
from gpustate.schedulers.slurm import Slurm
from gpustate.schedulers.slurm.lease import ChangedLeaseError, LeaseFile

ANN, BOB = Why("r1", "ann@a", "x"), Why("r2", "bob@b", "x")


def never() -> bool:
    return False


class Head:
    """The host with Slurm's tools. ``gone``: it does not answer."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.state.mkdir()
        self.programs = folder / "bin"
        self.programs.mkdir()
        program = self.programs / "scontrol"
        program.write_text(f'#!/bin/sh\necho "StateSaveLocation       = {self.state}"\n')
        program.chmod(0o755)

    def run(self, command: str) -> tuple[int, str]:
        environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh"], input=command, capture_output=True, text=True, env=environment, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def slurm(self) -> Slurm:
        return Slurm(self.run, "head")


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Head:
    for name, value in {"VALID_S": 2.0, "RENEW_S": 0.2, "_POLL_S": 0.1}.items():
        monkeypatch.setattr(lease, name, value)
    return Head(tmp_path)


def test_two_controllers_at_the_same_time_and_one_after_the_other(head: Head) -> None:
    first, second = head.slurm(), head.slurm()
    first.take_lease(ANN, print, never)
    first.take_lease(ANN, print, never)
    with pytest.raises(LockHeld, match="ann@a run r1 changes nodes of Slurm at head"):
        second.take_lease(BOB, print, never)
    first.drop_lease()
    second.take_lease(BOB, print, never)
    assert second.standing().holder == "bob@b run r2"
    second.drop_lease()
    assert second.standing().holder == ""


def test_a_dead_controller_is_followed_and_learns_that_it_lost(head: Head) -> None:
    dead, living = head.slurm(), head.slurm()
    dead.lease._take("ann@a run r1", print, never)  # nothing renews it
    said: list[str] = []
    living.take_lease(BOB, said.append, never)
    assert "ann@a run r1 has not renewed its Lease; taking it over" in said
    dead.drop_lease()
    assert living.standing().holder == "bob@b run r2"
    living.drop_lease()


def test_a_rollout_shows_how_far_it_is_and_is_asked_to_pause_from_elsewhere(head: Head) -> None:
    here, elsewhere = head.slurm(), head.slurm()
    here.take_lease(ANN, print, never)
    shown = json.dumps({"nodes": {f"gpu{n}": 'it\'s "done"' for n in range(5000)}})
    here.publish(shown)
    assert elsewhere.standing().progress == shown
    with pytest.raises(ClusterError, match="run r2 does not hold the Lease of Slurm at head"):
        elsewhere.submit("r2", "pause")
    elsewhere.submit("r1", "pause")
    assert here.control() == "pause"
    here.drop_lease()


def test_of_many_writers_of_one_version_one_wins(head: Head) -> None:
    store = LeaseFile(head.run, "Slurm at head")
    assert store.lease("", "") is None
    store.write_lease({"metadata": {}, "spec": {}}, create=True)
    read = store.lease("", "")
    assert read is not None
    results: list[str] = []

    def write(name: str) -> None:
        try:
            LeaseFile(head.run, "").write_lease({**read, "spec": {"x": name}}, create=False)
        except ChangedLeaseError:
            return
        results.append(name)

    threads = [threading.Thread(target=write, args=(str(n),)) for n in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    again = store.lease("", "")
    assert again is not None
    assert [again["spec"]["x"]] == results


def test_a_damaged_file_is_replaced_and_a_folder_that_cannot_be_written_is_an_error(
    head: Head,
) -> None:
    (head.state / "gpustate.lease").write_text("7\nnot json")
    head.slurm().take_lease(ANN, print, never)
    (head.state / "gpustate.lease.lock").unlink()
    (head.state / "gpustate.lease.lock").mkdir()
    with pytest.raises(ClusterError, match="its Lease cannot be written"):
        LeaseFile(head.run, "x").write_lease({"metadata": {}}, create=True)


def test_a_host_that_is_away_during_a_run_is_waited_for_with_a_line(head: Head) -> None:
    said: list[str] = []
    fails = 0

    def run(command: str) -> tuple[int, str]:
        nonlocal fails
        if fails:
            fails -= 1
            raise ConnectionFailed("the connection broke")
        return head.run(command)

    scheduler = Slurm(run, "head", sleep=lambda _: None)
    scheduler.take_lease(ANN, said.append, never)
    fails = 3
    assert scheduler.standing().holder == "ann@a run r1"
    scheduler.drop_lease()
    assert set(said) == {"Slurm at head: the connection broke; waiting 45 s at most"}
