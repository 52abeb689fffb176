"""Build the dependency graph of a policy's states, in named passes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gpustate.core.state import AnyState
from gpustate.errors import GraphError
from gpustate.formats.words import suggest

#: Of these states the tests compare the names; a comparison here would load each of them.
_TESTED = "gpustate.states."


@dataclass(frozen=True, slots=True)
class Edge:
    """``first`` comes before ``successor``, and why."""

    first: str
    successor: str
    why: str  # needs, after, before, known after


@dataclass(slots=True)
class Graph:
    """States by name, and the edges between them."""

    nodes: list[str] = field(default_factory=list[str])
    edges: list[Edge] = field(default_factory=list[Edge])


def build(
    states: Sequence[AnyState],
    state_names: Collection[str] = (),
    *,
    places: Mapping[str, str] | None = None,
) -> Graph:
    """Build the graph of states.

    Args:
        states: of a policy.
        state_names: names of all registered states, so that a misspelt name is an error even if the policy does
            not have that state.
        places: of the states in the policy, for messages.

    Raises:
        GraphError: an unknown state.
    """
    graph = Graph([state.name for state in states])
    names = set(graph.nodes)
    # Mere order is omitted if there is a stronger reason; "known after" is always kept.
    pairs: set[tuple[str, str]] = set()
    for state in states:
        for why, related in (
            ("needs", state.needs),
            ("known after", state.known_after),
            ("after", state.after),
            ("before", state.before),
        ):
            for name in related:
                if name not in names:
                    if not type(state).__module__.startswith(_TESTED):
                        _check_name(state.name, why, name, names, state_names, places or {})
                    if why in ("needs", "known after"):
                        _check_member(state, why, name, names, places or {})
                if name not in names or name == state.name:
                    continue
                first, successor = (state.name, name) if why == "before" else (name, state.name)
                if (first, successor) not in pairs or why == "known after":
                    graph.edges.append(Edge(first, successor, why))
                    pairs.add((first, successor))
    _put_validators_last(graph, states)
    return graph


def reverse(graph: Graph) -> Graph:
    """Reverse the graph: the order of removal."""
    return Graph(list(graph.nodes), [Edge(e.successor, e.first, e.why) for e in graph.edges])


def _check_name(
    state: str,
    why: str,
    name: str,
    names: set[str],
    state_names: Collection[str],
    places: Mapping[str, str],
) -> None:
    if not state_names or name in state_names:
        return
    known_names = sorted(names.union(state_names))
    hint = suggest(name, known_names, f"known states: {', '.join(known_names)}", form="{!r}")
    raise GraphError(
        f"state {state!r}: {why} {name!r}: unknown state", place=places.get(state), fix=hint
    )


def _check_member(
    state: AnyState, why: str, name: str, names: set[str], places: Mapping[str, str]
) -> None:
    """Refuse a member of a state's own family that is not in the policy: any name would be one."""
    family = type(state).family
    if not family or not name.startswith(f"{family}-"):
        return
    raise GraphError(
        f"state {state.name!r}: {why} {name!r}, which the policy does not have",
        place=places.get(state.name),
        fix=suggest(
            name, sorted(names), f"add {name} to the policy, or drop the name", form="{!r}"
        ),
    )


def _put_validators_last(graph: Graph, states: Sequence[AnyState]) -> None:
    """Validating states come after all others."""
    validators = [state.name for state in states if state.validating]
    ordinary_names = [state.name for state in states if not state.validating]
    for validator in validators:
        for ordinary_name in ordinary_names:
            if not any(e.first == ordinary_name and e.successor == validator for e in graph.edges):
                graph.edges.append(Edge(ordinary_name, validator, "after"))
