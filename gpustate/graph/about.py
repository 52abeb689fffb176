"""Descriptions of states for output: condition, place in the policy, and nodes. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpustate.core.change import Disruption
from gpustate.core.layering import COMES_WITH
from gpustate.core.state import AnyState
from gpustate.graph.build import Graph

#: Reasons why one state comes before another, the strongest first.
WHYS = ("needs", "known after", "after", "before")


@dataclass(frozen=True, slots=True)
class About:
    """One state of a policy.

    Args:
        name: its name.
        condition: the condition that holds afterwards, in one sentence.
        place: file and line in the policy; empty if unknown.
        only: the nodes it applies to; empty for all.
        left_out: why it does not apply to the node; empty if it does.
        absent: whether it is removed.
        validating: whether it only validates other states.
        worst: the highest possible disruption while it is unknown.
    """

    name: str
    condition: str = ""
    place: str = ""
    only: str = ""
    left_out: str = ""
    absent: bool = False
    validating: bool = False
    worst: Disruption = Disruption.NONE


def of_states(
    states: Sequence[AnyState],
    places: Mapping[str, str] | None = None,
    left_out: Mapping[str, str] | None = None,
) -> dict[str, About]:
    """Descriptions of states by name."""
    return {
        state.name: About(
            state.name,
            condition=_sentence(type(state)),
            place=(places or {}).get(state.name, ""),
            only=state.only.text if state.only is not None else "",
            left_out=(left_out or {}).get(state.name, ""),
            absent=state.absent,
            validating=state.validating,
            worst=state.worst,
        )
        for state in states
    }


def _sentence(cls: type[Any]) -> str:
    lines = (inspect.cleandoc(cls.__doc__ or "")).splitlines()
    return lines[0].replace("``", "") if lines else ""


def reasons(graph: Graph, name: str) -> dict[str, list[str]]:
    """The states before a state, by reason."""
    names: dict[str, list[str]] = {}
    for edge in graph.edges:
        if edge.successor == name:
            names.setdefault("after" if edge.why == "before" else edge.why, []).append(edge.first)
    return {why: sorted(names[why]) for why in WHYS if why in names}


def describe_reasons(graph: Graph, name: str) -> str:
    """The reasons in one line: ``needs driver; after nouveau``."""
    return "; ".join(f"{why} {', '.join(names)}" for why, names in reasons(graph, name).items())


def describe_origin(about: About) -> str:
    """Where a state is set in the policy, and for which nodes."""
    # A state derived from an Operator file as a whole has no line.
    word = "set at " if about.place.rpartition(":")[2].isdecimal() else "set by "
    words = [
        about.place and f"{'' if about.place.startswith(COMES_WITH) else word}{about.place}",
        about.only and f"only where {about.only}",
    ]
    words.append("to be removed" if about.absent else "")
    words.append(about.left_out and f"not on this node: {about.left_out}")
    return "; ".join(word for word in words if word)
