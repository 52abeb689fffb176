"""Kubernetes as a scheduler: hold is a cordon, draining is eviction, and the record is an annotation of the Node."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpustate.cluster.api import Api
from gpustate.errors import ClusterError
from gpustate.schedulers import node_events
from gpustate.schedulers.base import Emit, Stop, Why
from gpustate.schedulers.kubernetes.drain import Drains
from gpustate.schedulers.kubernetes.holds import Holds
from gpustate.schedulers.kubernetes.members import Nodes
from gpustate.schedulers.kubernetes.rights import Rights, rule, to_be_granted
from gpustate.schedulers.lease import ClusterLease, Died, Leased, unknown
from gpustate.schedulers.mig_labels import MigLabels

#: Clocks that differ by more are wrong.
_SKEW_S = 60.0


class Kubernetes(Leased):
    """One cluster, as a :class:`gpustate.schedulers.base.Scheduler`: who does what of it.

    Args:
        api: access to it.
        read_only: nothing is changed, so fewer rights are needed.
        died: knows holders of its Lease that are dead.
        sleep: waits so many seconds.
        clock: seconds, monotonic.
    """

    out_word = "cordoned"

    def __init__(
        self,
        api: Api,
        *,
        read_only: bool = False,
        died: Died = unknown,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(ClusterLease(api, died=died, sleep=sleep, clock=clock))
        self.title = f"Kubernetes at {api.server}"
        self.mig = MigLabels(api, sleep, clock)
        self._api = api
        self._rights = Rights(api, self.title, read_only)
        self.nodes = nodes = Nodes(api, self._rights, sleep, clock)
        self.members, self.member = nodes.members, nodes.member
        holds = Holds(nodes)
        self.hold, self.note = holds.hold, holds.note
        self.refresh, self.release = holds.refresh, holds.release
        drains = Drains(nodes)
        self.workloads, self.restarted = drains.workloads, drains.restarted
        self.drain = drains.drain

    def take_lease(self, why: Why, emit: Emit, stop: Stop) -> None:
        """Check the rights and the clock, and take the cluster's Lease."""
        self._rights.check()
        # A Lease and the records on Nodes are read elsewhere.
        skew_s = self._api.skew_s
        if abs(skew_s) > _SKEW_S:
            raise ClusterError(
                f"{self.title}: this machine's clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the API server's",
                fix="synchronize both clocks, then run again",
            )
        self.lease.hold(why, emit, stop)
        self.nodes.events.begin(why, emit, to_be_granted([rule(*node_events.RIGHT)]))
