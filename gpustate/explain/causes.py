"""What a cause is: a name, the link it breaks, how it is recognised, and what helps.

A cause that ``explains`` is looked for only where its link is broken by the chain's own judgement: it says
why. One that does not breaks its link itself, so it must rest on what no healthy node shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gpustate.diagnosis import chain
from gpustate.explain.clues import Clues


@dataclass(frozen=True, slots=True)
class View:
    """Everything a cause is recognised by.

    Args:
        observed: what the chain of proofs is judged by.
        clues: traces beside it.
        check: how the link stands by itself.
        cut_short: the search for traces did not come to its end; there are none then.
    """

    observed: chain.ChainObservation
    clues: Clues = field(default_factory=Clues)
    check: chain.Check | None = None
    cut_short: bool = False

    @property
    def gpu_count(self) -> int:
        """GPUs that NVML answers for."""
        return sum(gpu.error is None for gpu in self.observed.nvml.gpus)

    @property
    def broken(self) -> str:
        """The evidence of a link broken by itself; empty when it is not."""
        return self.check.evidence if self.check is not None and self.check.failed else ""


@dataclass(frozen=True, slots=True)
class Cause:
    """One way in which a link breaks.

    Args:
        name: as ``explain -o json`` has it.
        link: the link it breaks.
        look: evidence in words, or empty when it is not this.
        remedy: the next move.
        threads: public issues that tell of it.
        state: the state whose apply repairs it; empty when none does.
        explains: only where the link is broken by itself.
    """

    name: str
    link: str
    look: Callable[[View], str]
    remedy: str
    threads: tuple[str, ...] = ()
    state: str = ""
    explains: bool = True


def some(items: list[str], most: int = 4) -> str:
    """The first few of many, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def numbers(version: str) -> tuple[int, ...]:
    """A version for comparing."""
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
