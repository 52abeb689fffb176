"""Slurm as a scheduler: hold is ``State=DRAIN`` with a reason of ours, and draining is waiting for jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from gpustate.schedulers.base import Emit, Stop, Why
from gpustate.schedulers.lease import ClusterLease, Died, Leased, unknown
from gpustate.schedulers.slurm.drain import Drains
from gpustate.schedulers.slurm.holds import Holds
from gpustate.schedulers.slurm.lease import LeaseFile
from gpustate.schedulers.slurm.members import Command, Nodes


class Slurm(Leased):
    """One cluster, as a :class:`gpustate.schedulers.base.Scheduler`: who does what of it.

    Args:
        command: runs a command where its tools are.
        host: that host, for messages.
        hosts: under which name or address the inventory reaches its nodes, by their names there.
        died: knows holders of its Lease that are dead.
        sleep, clock: for waiting, in seconds.
    """

    out_word = "drained"

    def __init__(
        self,
        command: Command,
        host: str,
        hosts: Mapping[str, str] | None = None,
        *,
        died: Died = unknown,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.nodes = nodes = Nodes(command, host, hosts or {}, sleep, clock)
        self.title = nodes.title
        store = LeaseFile(nodes.answer, nodes.title)
        super().__init__(ClusterLease(store, died=died, sleep=sleep, clock=clock))
        self.members, self.member = nodes.members, nodes.member
        holds = Holds(nodes)
        self.hold, self.note = holds.hold, holds.note
        self.refresh, self.release = holds.refresh, holds.release
        drains = Drains(nodes)
        self.workloads, self.restarted = drains.workloads, drains.restarted
        self.drain = drains.drain

    def take_lease(self, why: Why, emit: Emit, stop: Stop) -> None:
        """Take the Lease of the cluster."""
        self.nodes.emit = emit
        self.lease.hold(why, emit, stop)
