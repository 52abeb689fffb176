"""Nodes from which programs that offer GPUs are removed get no new pod meanwhile.

Until its kubelet has reported that a device plugin is gone, a Node takes pods that its kubelet then fails, one after the
other (``UnexpectedAdmissionError``). Pods that hold claims of NVIDIA's DRA driver leave before it does: only its plugin on
their Node releases the claims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpustate.core.drain import DrainPolicy
from gpustate.engine import fleet
from gpustate.errors import GpustateError
from gpustate.plan.ranges import fold
from gpustate.rollout.maintenance import WITHDRAWS, how_it_leaves
from gpustate.schedulers.base import Emit, Member, Scope, Stop, Why, Workload
from gpustate.schedulers.kubernetes import Kubernetes


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """The Nodes of a cluster that lose such programs.

    Args:
        cluster: whose programs are removed.
        policy: how pods leave.
        kept: Nodes that keep them.
        plugin: the device plugin is one of them.
        claims: the DRA driver is.
        absent: everything is removed, perhaps after a run that was killed meanwhile.
        left: Nodes that were not released, with why and the command that does it.
    """

    cluster: Kubernetes
    policy: DrainPolicy
    kept: Collection[str]
    plugin: bool
    claims: bool
    absent: bool = False
    left: list[str] = field(default_factory=list[str])

    def _pods(self) -> Iterator[tuple[Member, Workload]]:
        for member in self.cluster.members() if self.claims else ():
            if member.name not in self.kept:
                for pod in self.cluster.workloads(member, Scope.GPU, self.policy):
                    yield member, pod

    def preview(self) -> Iterator[tuple[str, bool]]:
        """What becomes of each pod before the DRA driver is deleted, and whether it cannot leave."""
        for member, pod in self._pods():
            stuck = bool(pod.problem) and not pod.waited
            fate = f"cannot leave: {pod.problem}" if stuck else how_it_leaves(pod, self.policy)
            yield f"{member.name}: before the DRA driver is deleted, {pod.name} {fate}", stuck

    def _loses(self, member: Member) -> bool:
        """Whether new pods would come to a Node; or a run that was killed has left it held."""
        if member.hold is not None:
            # In a later phase its machine changes as well, and a turn of its own ends it.
            return member.hold.text == WITHDRAWS and member.hold.phase == "held"
        free = member.schedulable and not member.foreign
        return self.plugin and free and bool(member.gpus) and member.name not in self.kept

    @contextmanager
    def held(self, run: str, say: Emit, stop: Stop, *, writes: bool = False) -> Iterator[None]:
        """Hold these Nodes, and drain them of pods that hold claims; released at the end.

        Args:
            run: id of the run.
            say: tells what is done.
            stop: polled; once true, no further pod is evicted.
            writes: objects change meanwhile, so the cluster's Lease is taken also where no Node is held.

        Raises:
            LockHeld: another run has the Lease.
            GpustateError: a Node cannot be drained, or the run is to stop.
        """
        why = Why(run, fleet.controller().name, WITHDRAWS)
        drained = {member.name: member for member, _ in self._pods()}
        all_members = self.cluster.members() if self.plugin or self.claims or self.absent else ()
        losing = {node.name: node for node in all_members if self._loses(node)}
        held: list[Member] = []
        try:
            members = {**drained, **losing}
            if members:
                self.cluster.take_lease(why, say, stop)
                say(f"holding {', '.join(fold(members))} until what offers their GPUs is deleted")
            elif writes:
                self.cluster.lease.hold(why, say, stop)
            for member in members.values():
                if member.hold is None or self._loses(member):
                    held.append(self.cluster.hold(member, why))
            for member in drained.values():
                self.cluster.drain(member, Scope.GPU, self.policy, say, stop)
            yield
        finally:
            whys = ((member.name, self._release(member)) for member in held)
            self.left.extend(f"Node {name} stays cordoned: {why}" for name, why in whys if why)
            self.cluster.drop_lease()
            for line in self.left:
                say(line)

    def _release(self, member: Member) -> str:
        """Return a Node to service; why it stays out, and the command that ends it."""
        try:
            return self.cluster.release(member)
        except GpustateError as error:
            return f"{error}; kubectl uncordon {member.name}"
