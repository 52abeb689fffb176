"""Members of the schedulers that an inventory names, and what keeps them out of service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpustate.core.inventory import InventoryNode
from gpustate.engine.maintenance import INTERRUPTED
from gpustate.formats.node_programs import AGENTS
from gpustate.rollout.access import Accesses
from gpustate.schedulers.base import WHILE, Member, Scheduler


@dataclass(frozen=True, slots=True)
class Status:
    """One member.

    Args:
        scheduler: as messages name it.
        member: as it is now.
        running: the run that holds it is in progress.
        command: of the run that holds it; empty: not known here.
    """

    scheduler: str
    member: Member
    running: bool = False
    command: str = ""

    @property
    def in_service(self) -> bool:
        """It takes work, and nobody holds it."""
        member = self.member
        return member.available and member.hold is None and not member.foreign

    @property
    def next(self) -> str:
        """What to do about it; empty: nothing."""
        hold = self.member.hold
        if hold is None or hold.phase == "left":
            if not self.member.foreign:
                unexplained = not self.member.ready and not self.member.why
                name = self.member.name
                return f"find out why: kubectl describe node {name}" if unexplained else ""
            undo = f": {self.member.undo}" if self.member.undo else " by whoever took it out"
            return f"gpustate leaves it alone until it is returned to service{undo}"
        if hold.phase == "failed" or hold.text.startswith(WHILE):
            return after_failure(hold.run, self.command, hold.text)
        if self.running:
            return f"run {hold.run}, which is in progress, returns it to service"
        return f"if run {hold.run} is dead: {after_death(hold.run, self.command)}"


def after_failure(run: str, command: str, why: str) -> str:
    """The next step for a node whose change failed, or was interrupted.

    Args:
        run: id of the run.
        command: of the run; empty: not known here.
        why: the reason.
    """
    if INTERRUPTED in why or why.startswith(WHILE):
        return f"continue run {run}: {after_death(run, command)}"
    again = f"run: {command}" if command else f"run the command of run {run} again"
    return f"fix the node, then {again}; the node is released when it ends well"


def after_death(run: str, command: str) -> str:
    """The next step for a run whose controller died."""
    elsewhere = "" if command else " on its machine, or its command again here"
    return f"gpustate rollout resume {run}{elsewhere}"


def statuses(nodes: Sequence[InventoryNode], access: Accesses) -> list[Status]:
    """Every member with GPUs, that is held, or that nodes are named as, of every scheduler that nodes name.

    Raises:
        GpustateError: a scheduler cannot be used.
    """
    schedulers: dict[str, Scheduler] = {}
    named = {name for node in nodes for name in (node.name, node.connection.host)}
    for node in nodes:
        for kind in dict.fromkeys(AGENTS.values()):
            scheduler = access(node, kind)
            if scheduler is not None:
                schedulers.setdefault(scheduler.title, scheduler)
    return [
        Status(title, member)
        for title, scheduler in schedulers.items()
        for member in sorted(scheduler.members(), key=lambda one: one.name)
        if member.counts or member.hold is not None or member.name in named
    ]
