"""Which nodes of a run begin when: the engine's side of it.

The engine decides again whenever a node has ended, and after ``wait_s``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpustate.core.outcome import NodeResult
from gpustate.engine.events import Event


@dataclass(frozen=True, slots=True)
class Turn:
    """What happens now.

    Args:
        start: names of nodes that begin.
        over: no further node will begin.
        wait_s: decide again after so many seconds, even if no node has ended.
    """

    start: tuple[str, ...] = ()
    over: bool = False
    wait_s: float = 1.0


class Turns(Protocol):
    """Decides which nodes begin."""

    def next(self, *, interrupted: bool) -> Turn:
        """What happens now; the nodes of its ``start`` are at work from here on."""
        ...

    def hear(self, event: Event) -> None:
        """An event of a node that is at work."""

    def ended(self, node: NodeResult) -> None:
        """A node has ended."""

    def returning(self, failed: Sequence[str]) -> frozenset[str]:
        """Nodes that go back with failed ones, at the end of a run: those of the wave that was the last because of them."""
        ...

    @property
    def surveying(self) -> bool:
        """Nodes that would change are only looked at, and begin again in their wave."""
        ...

    @property
    def stopped(self) -> str:
        """Why the run ended before all nodes had begun, or was ended by somebody; empty: it did not."""
        ...


class AllAtOnce:
    """Every node begins, as many side by side as there are threads.

    Args:
        names: of the nodes.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._all = frozenset(names)

    def next(self, *, interrupted: bool) -> Turn:
        """All of them, once."""
        names, self._names = self._names, ()
        return Turn(() if interrupted else names, over=True)

    def hear(self, event: Event) -> None:
        """Nothing depends on it."""

    def ended(self, node: NodeResult) -> None:
        """Nothing depends on it."""

    def returning(self, failed: Sequence[str]) -> frozenset[str]:
        """All, for they are one wave."""
        return self._all if failed else frozenset()

    @property
    def surveying(self) -> bool:
        """There are no waves."""
        return False

    @property
    def stopped(self) -> str:
        """It is never stopped."""
        return ""
