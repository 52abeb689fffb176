"""How a run treats the schedulers of its nodes, as the command line and ``gpustate.api`` take it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpustate.core.drain import DrainOverrides, DrainPolicy
from gpustate.core.inventory import Inventory
from gpustate.engine.maintenance import NO_MAINTENANCE, Maintenance
from gpustate.rollout.access import Accesses
from gpustate.rollout.by_label import MigNode
from gpustate.rollout.maintenance import ScheduledMaintenance
from gpustate.rollout.signals import Signals


@dataclass(frozen=True, slots=True)
class Schedulers:
    """How the schedulers of nodes are reached, and how workloads leave.

    Args:
        kubeconfig: path; empty: the inventory's variable ``gpustate_kubeconfig``. The host of Slurm's tools is
            the variable ``gpustate_slurm_host``.
        ignore: change nodes as they are, whatever runs on them.
        drain: how workloads leave; ``None``: as the policy has it, by default as ``kubectl drain --ignore-daemonsets``.
        overrides: values that replace those of ``drain`` or of the policy.
        fence: called before every write to a cluster; raises where nothing may be written any more.
        withdraws: what offers the GPUs of a Node goes in its turn, so every Node that changes is held.
    """

    kubeconfig: str = ""
    ignore: bool = False
    drain: DrainPolicy | None = None
    overrides: DrainOverrides = field(default_factory=DrainOverrides)
    fence: Callable[[], None] | None = None
    withdraws: bool = False

    def _accesses(self, inventory: Inventory, *, read: bool) -> Accesses:
        return Accesses(inventory, self.kubeconfig, read=read, fence=self.fence)

    @contextmanager
    def access(self, inventory: Inventory, *, read: bool = False) -> Iterator[Accesses | None]:
        """The schedulers of these nodes, closed at the end; ``None`` if they are ignored.

        Args:
            inventory: the nodes.
            read: read every kubeconfig now.

        Raises:
            UsageError: a kubeconfig, or a variable that names a scheduler, cannot be used.
        """
        if self.ignore:
            yield None
            return
        access = self._accesses(inventory, read=read)
        try:
            yield access
        finally:
            access.close()

    @contextmanager
    def maintenance(
        self,
        inventory: Inventory,
        drain: DrainPolicy | None = None,
        *,
        drains: Mapping[str, DrainPolicy] | None = None,
        access: Accesses | None = None,
        mig: Mapping[str, MigNode] | None = None,
        run: str = "",
        person: str = "",
        text: str = "",
        signals: Signals | None = None,
        max_unavailable: str = "",
    ) -> Iterator[Maintenance]:
        """Maintenance of these nodes; its connections are closed at the end.

        Args:
            inventory: the nodes.
            drain: how workloads leave by the policy.
            drains: by node, how they leave there.
            access: to the schedulers, which stays open; by default one of its own.
            mig: Nodes whose MIG layout their label selects, by node.
            run: id of the run that changes them; empty: they are only planned.
            person: who runs it.
            text: the ticket or reason.
            signals: shared with the rollout of these nodes.
            max_unavailable: members of one cluster that may be out of service at a time, whoever took them out: a
                number, or a percentage of those with GPUs, rounded up; empty: no limit.

        Raises:
            UsageError: a label selector, a kubeconfig, or a variable that names a scheduler, cannot be used.
        """
        if self.ignore:
            yield NO_MAINTENANCE
            return
        leaving = self.overrides.on(self.drain or drain or DrainPolicy())
        drains_by_kind = (
            {} if self.drain else {k: self.overrides.on(v) for k, v in (drains or {}).items()}
        )
        used = access or self._accesses(inventory, read=bool(run))
        try:
            yield ScheduledMaintenance(
                *(used, run, person, leaving, text, max_unavailable, signals, mig, drains_by_kind),
                withdraws=self.withdraws,
            )
        finally:
            if used is not access:
                used.close()


#: As the inventory says, with the defaults of a drain.
SCHEDULERS = Schedulers()
