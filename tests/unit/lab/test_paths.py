"""A lock of the lab is held by one process at a time, and leaves no file behind."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from gpustate.errors import LabError
from gpustate_lab import paths

CONTEXT = multiprocessing.get_context("spawn")


def _work(lock: Path, witness: Path, rounds: int) -> None:
    """Take the lock again and again; a file that must not exist yet shows a second holder."""
    for _ in range(rounds):
        with paths.locked(lock, wait_s=60, what="a test"):
            os.close(os.open(witness, os.O_CREAT | os.O_EXCL))
            time.sleep(0.001)
            witness.unlink()


def test_a_released_lock_leaves_no_file(tmp_path: Path) -> None:
    lock = tmp_path / "locks" / "lab.lock"
    with paths.locked(lock, wait_s=0, what="a test"):
        assert lock.exists()
    assert not list(lock.parent.iterdir())


def test_a_lock_is_released_by_an_error_too(tmp_path: Path) -> None:
    lock = tmp_path / "lab.lock"
    with pytest.raises(LabError, match="x"), paths.locked(lock, wait_s=0, what="a test"):
        raise LabError("x")
    assert not lock.exists()


def test_a_file_that_a_killed_process_left_is_no_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lab.lock"
    lock.touch()
    with paths.locked(lock, wait_s=0, what="a test"):
        pass
    assert not lock.exists()


def test_a_lock_that_is_held_is_waited_for_and_then_refused(tmp_path: Path) -> None:
    lock = tmp_path / "lab.lock"
    with lock.open("a") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with (
            pytest.raises(LabError, match=r"has locked the lab x for 0 s"),
            paths.locked(lock, wait_s=0.1, what="the lab x"),
        ):
            pass
    assert lock.exists()  # whose lock it is removes it


def test_a_lock_on_a_file_that_was_removed_meanwhile_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "lab.lock"
    real, taken = fcntl.flock, list[int]()

    def flock(handle: int, how: int) -> None:
        real(handle, how)
        taken.append(how)
        if len(taken) == 1:
            lock.unlink()

    monkeypatch.setattr(paths.fcntl, "flock", flock)
    with paths.locked(lock, wait_s=0, what="a test"):
        assert len(taken) == 2
        assert lock.exists()


def test_processes_that_remove_the_file_never_hold_the_lock_together(tmp_path: Path) -> None:
    lock, witness = tmp_path / "lab.lock", tmp_path / "held"
    workers = [CONTEXT.Process(target=_work, args=(lock, witness, 40)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    assert not lock.exists()
