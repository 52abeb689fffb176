"""Whether the controller that took a lock is still there."""

from __future__ import annotations

import os
import subprocess
import sys

from gpustate.engine import fleet, gate
from gpustate.engine.ledger import Ledger, Lock, Program


def lock(pid: int, born: str) -> Ledger:
    name = fleet.controller().name
    return Ledger(Lock("r", name, "apply", 0, 10**10, pid, born=born), now=1)


def test_a_controller_at_work_holds_its_lock_and_a_dead_one_does_not() -> None:
    holder = fleet.controller()
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    held = lock(other.pid, holder.born(other.pid))
    assert not gate.dead(held, holder)
    other.communicate(b"\n")
    assert gate.dead(held, holder)


def test_a_number_that_another_process_has_by_now_holds_nothing() -> None:
    holder = fleet.controller()
    assert gate.dead(lock(os.getppid(), "4711@another-boot"), holder)


def test_a_lock_that_does_not_say_when_its_controller_began_goes_by_the_number() -> None:
    assert not gate.dead(lock(os.getppid(), ""), fleet.controller())


def test_a_look_says_that_somebody_is_at_work_or_left_in_the_middle() -> None:
    held = Ledger(Lock("r", "me@here", "apply", 0, 100), now=1)
    assert held.unfinished().startswith("held by me@here (apply) since 1970-01-01 00:00:00Z")
    assert held.unfinished().endswith("may be half done; run this command again afterwards")
    asked_for = Ledger(Lock("r", "me@here", "new disks", 0, 100), now=1)
    expired = Ledger(Lock("r", "me@here", "apply", 0, 100), now=200)
    alive = Ledger(program=Program("r-1", True, "{}"))
    assert not any(one.unfinished() for one in (Ledger(), asked_for, expired, alive))
    broken_off = Ledger(held.lock, Program("r-1", False, "{}"), now=1)
    assert broken_off.unfinished() == (
        "run r-1 was interrupted; continue it: gpustate apply POLICY -l NODE"
    )
