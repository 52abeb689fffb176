"""Whether the controller that took a lock is still there."""

from __future__ import annotations

import os
import subprocess
import sys

from gpustate.run import fleet, gate
from gpustate.run.ledger import Ledger, Lock


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
