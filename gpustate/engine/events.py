"""What happens during a run, as it happens: for progress on the terminal and for logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened on one node.

    Args:
        node: its name.
        kind: connecting, probing, planned, started, step, result, verifying, draining, rebooting, waiting,
            note, secret (for the person who runs it, and nobody else), finished.
        text: for a person.
        state: the state it is about, if any.
    """

    node: str
    kind: str
    text: str = ""
    state: str = ""


Listener = Callable[[Event], None]


def nobody(_: Event) -> None:
    """Listens to nothing."""
