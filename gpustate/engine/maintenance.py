"""What takes a node out of service for a change, and back: what the engine asks for.

The engine knows no scheduler: :mod:`gpustate.rollout.maintenance` does it. The engine tells when a change of some
disruption begins and how it ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpustate.core.change import Disruption
from gpustate.core.facts import NodeFacts
from gpustate.core.inventory import InventoryNode
from gpustate.core.outcome import NodeResult

Emit = Callable[[str], None]
Stop = Callable[[], bool]
#: In notes of nodes that are out of service after a run.
STAYS_OUT = "stays out of service"
#: In the reason of nodes whose change a person has interrupted.
INTERRUPTED = "the run was interrupted"


@dataclass(frozen=True, slots=True)
class Subject:
    """A node that is about to change.

    Args:
        node: as the inventory has it.
        facts: what was seen of it.
        worst: the most that the change may cost.
        states: names of the states that surely change; the call makes their plans.
        pending: names of all states that change, also without a disruption.
        spared: UIDs of pods whose GPUs do not change; they stay unless the whole node is drained.
        before_return: called while it is held, before what offers its GPUs is waited for.
    """

    node: InventoryNode
    facts: NodeFacts
    worst: Disruption
    states: Callable[[], tuple[str, ...]]
    pending: frozenset[str] = frozenset()
    spared: frozenset[str] = frozenset()
    before_return: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Preview:
    """What an apply would do with a node's workloads.

    Args:
        notes: of the plan.
        refused: it would refuse the node; the notes say why.
        workloads: names of those that leave or are waited for, and which of both.
    """

    notes: tuple[str, ...] = ()
    refused: bool = False
    workloads: tuple[tuple[str, str], ...] = ()


def out_of_service(result: NodeResult) -> tuple[str, ...]:
    """What a node's result says of why it stays out of service; empty: it does not."""
    notes = tuple(note for note in result.notes if STAYS_OUT in note)
    return notes or ((result.reason,) if STAYS_OUT in result.reason else ())


class Maintenance(Protocol):
    """Takes nodes out of service and back."""

    def preview(self, subject: Subject) -> Preview:
        """What an apply would do with the node's workloads."""
        ...

    def begin(self, subject: Subject, emit: Emit, stop: Stop) -> None:
        """Take it out of service, if the change needs it.

        Raises:
            GpustateError: it must not be changed now.
        """

    def rebooting(self, subject: Subject) -> None:
        """It is about to reboot."""

    def end(self, subject: Subject, failed: str, emit: Emit, stop: Stop) -> tuple[str, ...]:
        """Return it to service, or leave it out with the reason; notes of the result.

        Args:
            subject: the node.
            failed: why the change failed; empty if it succeeded.
            emit: tells what is done.
            stop: polled; once true, nothing is waited for, and what is not as it should be stays out of service.

        Raises:
            GpustateError: it was changed, and cannot go back to service.
        """
        ...


class _NoMaintenance:
    """Nodes are changed as they are."""

    def preview(self, subject: Subject) -> Preview:
        """Nothing to say."""
        return Preview()

    def begin(self, subject: Subject, emit: Emit, stop: Stop) -> None:
        """Nothing to do."""

    def rebooting(self, subject: Subject) -> None:
        """Nothing to do."""

    def end(self, subject: Subject, failed: str, emit: Emit, stop: Stop) -> tuple[str, ...]:
        """Nothing to do."""
        return ()


NO_MAINTENANCE: Maintenance = _NoMaintenance()
