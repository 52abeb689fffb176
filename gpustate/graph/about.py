"""What is told of a state beside its edges: what it does, where it was asked for, what it wants. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpustate.core.change import Disruption
from gpustate.core.state import AnyState
from gpustate.graph.build import Graph

#: Why one state comes before another, the strongest reason first.
WHYS = ("needs", "known after", "after", "before")


@dataclass(frozen=True, slots=True)
class About:
    """One state of a policy.

    Args:
        name: its name.
        what: the condition that holds afterwards, in one sentence.
        place: file and line that ask for it; empty when nobody knows.
        only: the nodes it is for; empty: all.
        left_out: why it does nothing on the node in question; empty when it may.
        absent: it is removed.
        proof: it proves what the others did.
        worst: the most it may cost where it is not known yet.
    """

    name: str
    what: str = ""
    place: str = ""
    only: str = ""
    left_out: str = ""
    absent: bool = False
    proof: bool = False
    worst: Disruption = Disruption.NONE


def of_states(
    states: Sequence[AnyState],
    places: Mapping[str, str] | None = None,
    left_out: Mapping[str, str] | None = None,
) -> dict[str, About]:
    """Everything that is told of some states, by their names."""
    return {
        state.name: About(
            state.name,
            what=_sentence(type(state)),
            place=(places or {}).get(state.name, ""),
            only=state.only.text if state.only is not None else "",
            left_out=(left_out or {}).get(state.name, ""),
            absent=state.absent,
            proof=state.proof,
            worst=state.worst,
        )
        for state in states
    }


def _sentence(cls: type[Any]) -> str:
    lines = (inspect.cleandoc(cls.__doc__ or "")).splitlines()
    return lines[0].replace("``", "") if lines else ""


def reasons(graph: Graph, name: str) -> dict[str, list[str]]:
    """Why a state is where it is: the states before it, by the reason."""
    found: dict[str, list[str]] = {}
    for edge in graph.edges:
        if edge.then == name:
            found.setdefault("after" if edge.why == "before" else edge.why, []).append(edge.first)
    return {why: sorted(found[why]) for why in WHYS if why in found}


def describe_reasons(graph: Graph, name: str) -> str:
    """The same in words: ``needs driver; after nouveau``."""
    return "; ".join(f"{why} {', '.join(names)}" for why, names in reasons(graph, name).items())


def asked(about: About) -> str:
    """Where a state was asked for, and for which nodes."""
    # A state that follows from an Operator file as a whole has no line of its own.
    lined = about.place.rpartition(":")[2].isdecimal()
    words = [
        about.place and f"asked for {'at' if lined else 'by'} {about.place}",
        about.only and f"only where {about.only}",
    ]
    words.append("to be removed" if about.absent else "")
    words.append(about.left_out and f"not on this node: {about.left_out}")
    return "; ".join(word for word in words if word)
