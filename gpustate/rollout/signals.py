"""What a rollout and the nodes that are at work tell each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gpustate.schedulers.base import Scheduler


@dataclass(slots=True)
class Signals:
    """Shared by a rollout and the maintenance of its nodes.

    Args:
        paused: who paused the rollout: no node is taken out of service. Empty: nobody.
        stopped: why no further node is taken out of service; empty: one may.
        aborted: somebody ended the rollout: nodes that are drained return to service.
        exhausted: why no node could be taken out of service any more, though the rollout goes on; empty: one could.
        entered: schedulers that the run has entered.
        closed: why a node must not be taken out of service now; empty: it may.
        at_work: a node has begun and not ended yet, its rollback after a failure included.
        note: hears the phase of a node, and why it is in it.
    """

    paused: str = ""
    stopped: str = ""
    aborted: bool = False
    exhausted: str = ""
    entered: list[Scheduler] = field(default_factory=list[Scheduler])
    closed: Callable[[str], str] = lambda node: ""
    at_work: Callable[[str], bool] = lambda node: False
    note: Callable[[str, str, str], None] = lambda node, phase, why: None

    def enter(self, scheduler: Scheduler) -> None:
        """The run has entered it."""
        if scheduler not in self.entered:
            self.entered.append(scheduler)
