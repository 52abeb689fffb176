"""Pods that hold claims of NVIDIA's DRA driver leave before it does: only its plugin on their Node releases the claims."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gpustate.core.drain import DrainPolicy
from gpustate.engine import fleet
from gpustate.rollout.maintenance import how_it_leaves
from gpustate.schedulers.base import Member, Say, Scope, Stop, Why, Workload
from gpustate.schedulers.kubernetes import Kubernetes


@dataclass(frozen=True, slots=True)
class Claims:
    """The pods of a cluster with GPUs.

    Args:
        cluster: whose DRA driver is removed.
        policy: how they leave.
        kept: Nodes that it stays on.
    """

    cluster: Kubernetes
    policy: DrainPolicy
    kept: Collection[str]

    def _pods(self) -> Iterator[tuple[Member, Workload]]:
        for member in self.cluster.members():
            if member.name not in self.kept:
                for pod in self.cluster.workloads(member, Scope.GPU, self.policy):
                    yield member, pod

    def preview(self) -> Iterator[tuple[str, bool]]:
        """What becomes of each pod before the driver is deleted, and whether it cannot leave."""
        for member, pod in self._pods():
            stuck = bool(pod.problem) and not pod.waited
            fate = f"cannot leave: {pod.problem}" if stuck else how_it_leaves(pod, self.policy)
            yield f"{member.name}: before the DRA driver is deleted, {pod.name} {fate}", stuck

    @contextmanager
    def drained(self, run: str, say: Say, stop: Stop) -> Iterator[None]:
        """Hold the Nodes that have such pods, and drain them of these; released at the end.

        Args:
            run: id of the run.
            say: tells what is done.
            stop: polled; once true, no further pod is evicted.

        Raises:
            GpustateError: a Node cannot be drained, or the run is to stop.
        """
        why = Why(run, fleet.controller().name, "removes the DRA driver")
        members = {member.name: member for member, _ in self._pods()}
        held: list[Member] = []
        try:
            if members:
                self.cluster.enter(why, say, stop)
            for member in members.values():
                say(f"holding {member.name} until the DRA driver is deleted")
                held.append(self.cluster.hold(member, why))
            for member in held:
                self.cluster.drain(member, Scope.GPU, self.policy, say, stop)
            yield
        finally:
            for member in held:
                self.cluster.release(member)
            self.cluster.leave()
