"""How a node is held and released: ``State=DRAIN`` with a reason of ours, and back once slurmd has registered.

Surprising: a second drain overwrites the reason of the first, so every write is preceded by a read and followed by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gpustate.core.facts import NodeFacts
from gpustate.schedulers.base import (
    Emit,
    HeldElsewhereError,
    Member,
    NotRefreshedError,
    Stop,
    Waiting,
    Why,
    discard,
    never,
    taken_over,
)
from gpustate.schedulers.slurm.members import Nodes
from gpustate.schedulers.slurm.rows import BY_SLURM, SlurmNode, reason_of

_BOOT_TIME = re.compile(r"\bBootTime=([0-9T:-]+)")
_POLL_S = 2.0
_REGISTER_S = 120.0
#: So long a node that was resumed does not answer yet, also where a run is to stop.
_RESUMED_S = 5.0


class Holds:
    """Holds on nodes, and what has to be so again before they are released.

    Args:
        nodes: those of a cluster.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        #: When slurmctld knew the machines to have booted as they were held.
        self._booted: dict[str, str] = {}
        #: Whether a node was in service, or held by a run of this tool, when this run first held it.
        self._in_service: dict[str, bool] = {}

    def hold(self, member: Member, why: Why) -> Member:
        """Drain it with a reason of ours; one that Slurm itself drained keeps Slurm's reason."""
        node = self._nodes.node(member.name)
        self._booted.setdefault(node.name, self._boot_time(node.name))
        in_service = node.answers and not node.drained_or_down
        self._in_service.setdefault(node.name, in_service or node.hold is not None)
        if elsewhere := node.elsewhere:
            raise HeldElsewhereError(
                f"{self._nodes.title}: node {node.name} is out of service: {elsewhere}",
                fix="run again when that is over; --ignore-scheduler changes it all the same",
            )
        if node.drained_or_down and node.by_slurm:
            return node.as_member()
        return self._set(node.name, why.run, why.text, why.person, "held")

    def note(self, member: Member, phase: str, why: str = "") -> Member:
        """Record the phase in the reason."""
        node = self._nodes.node(member.name)
        hold = node.hold
        if hold is None or hold.phase == phase:
            return node.as_member()
        if takeover := taken_over(member, hold):
            raise HeldElsewhereError(f"{self._nodes.title}: node {node.name}: {takeover}")
        text = why or hold.text
        return self._set(node.name, hold.run, text, hold.person, phase)

    def _set(self, name: str, run: str, text: str, person: str, phase: str) -> Member:
        reason = reason_of(run, text, person, phase)
        self._nodes.run("scontrol", "update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}")
        node = self._nodes.node(name)
        if not node.reason.startswith(reason):
            raise HeldElsewhereError(
                f"{self._nodes.title}: node {name} was drained by someone else at the same time: {node.description}"
            )
        return node.as_member()

    def _boot_time(self, name: str) -> str:
        """When a node booted, as slurmctld knows it; empty: it does not."""
        match = _BOOT_TIME.search(self._nodes.run("scontrol", "-o", "show", "node", name))
        return match[1] if match else ""

    def refresh(self, member: Member, facts: NodeFacts, emit: Emit, stop: Stop) -> str:
        """Wait until slurmd has registered with as many GPUs as it has to have, if it did before."""
        if member.hold is None or not member.ready:
            return ""
        until = self._nodes.clock() + _REGISTER_S
        booted = self._nodes.boot_ids.get(member.name, facts.boot_id) != facts.boot_id

        def wrong_with(node: SlurmNode) -> str:
            if booted and self._boot_time(node.name) == self._booted.get(node.name):
                return "slurmd has not registered since the boot; look there: journalctl -u slurmd"
            return node.unregistered

        node = self._nodes.node(member.name)
        waiting = self._waiting(node.name, emit)
        while (wrong := wrong_with(node)) and self._nodes.clock() < until and not stop():
            waiting.report(wrong)
            self._nodes.sleep(_POLL_S)
            node = self._nodes.node(member.name)
        if wrong:
            raise NotRefreshedError(f"{self._nodes.title}: node {node.name}: {wrong}")
        return ""

    def _waiting(self, name: str, emit: Emit) -> Waiting:
        return Waiting(emit, self._nodes.clock, f"slurmd of {name} to register with slurmctld")

    def release(self, member: Member, emit: Emit = discard, stop: Stop = never) -> str:
        """Return it to service, where the reason is still ours, or Slurm's own of this hold and its cause is gone.

        Raises:
            NotRefreshedError: Slurm itself keeps it out of service, and did not before the hold; or the run is to
                stop, and slurmd has not registered yet.
        """
        node = self._nodes.node(member.name)
        if takeover := taken_over(member, node.hold):
            return takeover
        in_service = self._in_service.get(node.name, member.hold is not None)
        releasable = node.is_own or (in_service and node.by_registration)
        if not releasable:
            return self._explain_out(node, in_service=in_service)
        began, waiting = self._nodes.clock(), self._waiting(node.name, emit)

        def registered(node: SlurmNode, missing: Callable[[SlurmNode], bool]) -> SlurmNode:
            while missing(node) and (waited_s := self._nodes.clock() - began) < _REGISTER_S:
                if stop() and waited_s >= _RESUMED_S:
                    raise NotRefreshedError(
                        f"{self._nodes.title}: node {node.name}: interrupted while slurmd had not registered: "
                        f"it is {node.state}; once it has: {node.resume}"
                    )
                waiting.report(f"it is {node.state}")
                self._nodes.sleep(_POLL_S)
                node = self._nodes.node(node.name)
            return node

        # After a boot, or a restart of slurmd just now.
        node = registered(node, lambda node: "*" in node.state and node.base.startswith("down"))
        node = registered(node, lambda node: node.base.startswith("inval"))
        node = registered(self._returned(node), lambda node: not node.answers)
        if not node.drained_or_down:
            # Last: a resumed node is down with its reason until slurmd registers.
            for empty in ("", "none"):  # 24.11 does not take an empty reason
                if node.is_own or node.reason.startswith(BY_SLURM):
                    self._nodes.run(
                        "scontrol", "update", f"NodeName={node.name}", f"Reason={empty}"
                    )
                    node = self._nodes.node(node.name)
        return self._explain_out(node, in_service=in_service)

    def _returned(self, node: SlurmNode) -> SlurmNode:
        """Undrain or resume it."""
        if node.drained:
            # Otherwise a run that died in between has left only the reason.
            self._nodes.run("scontrol", "update", f"NodeName={node.name}", "State=UNDRAIN")
            node = self._nodes.node(node.name)
        if node.base.startswith("down") and (
            node.is_own or not node.reason or node.by_registration
        ):
            # UNDRAIN leaves it down; a drained node that booted shows only now that it is.
            self._nodes.run("scontrol", "update", f"NodeName={node.name}", "State=RESUME")
            node = self._nodes.node(node.name)
        return node

    def _explain_out(self, node: SlurmNode, *, in_service: bool) -> str:
        """Why it stays out of service after a release, if it was before the hold; empty: it does not."""
        if not node.drained_or_down:
            return ""
        if node.base.startswith("inval"):
            why = node.unregistered
        elif node.is_own:
            why = f"it is {node.state}: {node.reason}"
        else:
            why = node.stays
        if in_service and not node.elsewhere:
            raise NotRefreshedError(f"{self._nodes.title}: node {node.name}: {why}")
        return why
