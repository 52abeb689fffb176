"""Events of a run, for progress on the terminal and for logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One event on one node.

    Args:
        node: its name.
        kind: connecting, probing, planned, started, step, result, verifying, draining, rebooting, releasing,
            waiting, note, secret (only for the user who runs it), finished; of the run itself, without a node: wave, rollout.
        text: for a person.
        state: the state it is about, if any.
    """

    node: str
    kind: str
    text: str = ""
    state: str = ""


Listener = Callable[[Event], None]


def ignore(_: Event) -> None:
    """Ignore events."""
