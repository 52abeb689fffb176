"""Probing a node: the probes of all its states, with their queries batched into as few execs as possible.

The probes run first against placeholders, which collects their queries. Those are sent in one exec, and the
probes run again with the answers. A query that depends on an answer costs one more exec, shared by all states
that have such queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from gpustate.core.facts import FactsQuery, NodeFacts, NodeView
from gpustate.core.inventory import InventoryNode
from gpustate.core.node import Node
from gpustate.core.path_conflicts import MaskedUnitsQuery
from gpustate.core.queries import Answer, Query
from gpustate.core.state import AnyState
from gpustate.errors import ProbeError, RefusedError
from gpustate.plan.make import Observations, applicable

T = TypeVar("T")
Answerer = Callable[[Sequence[Query[Any]]], Sequence[Answer]]

#: Rounds of queries that depend on earlier answers; a probe that needs more does not end.
_MAX_ROUNDS = 8


class ProbingNode(Node):
    """The node for probes: returns known answers, and collects the other queries."""

    def __init__(
        self,
        node: InventoryNode,
        answers: Mapping[Query[Any], Answer],
        shared: dict[Any, Any] | None = None,
    ) -> None:
        self.name = node.name
        self.vars = node.vars
        self.known = answers
        self._shared = {} if shared is None else shared
        self.missing: dict[Query[Any], None] = {}
        self.links: dict[str, str] = {}

    @property
    def shared(self) -> dict[Any, Any]:
        return self._shared

    def query(self, query: Query[T]) -> T:
        """The answer, or the placeholder of a query that is now collected."""
        answer = self.known.get(query)
        if answer is None:
            self.missing[query] = None
            return query.placeholder()
        return query.parse(answer)

    def linked(self, path: str, target: str) -> None:
        """Record a symbolic link for the plan: nothing is written through it."""
        self.links[path] = target


def probe_states(
    node: InventoryNode,
    states: Sequence[AnyState],
    answerer: Answerer,
    extra: Sequence[Query[Any]] = (),
    shared: dict[Any, Any] | None = None,
) -> tuple[Observations, NodeFacts, dict[Query[Any], Answer]]:
    """Probe all states of a node.

    Args:
        node: as the inventory has it.
        states: those of its policy.
        answerer: sends queries, one exec per call.
        extra: queries of the engine, sent with the first ones.
        shared: what probes keep for the other nodes of the run.

    Returns:
        The observations, the node's facts, and all answers by query.
    """
    answers: dict[Query[Any], Answer] = {}
    first: dict[Query[Any], None] = dict.fromkeys((FactsQuery(), MaskedUnitsQuery(), *extra))
    for _ in range(_MAX_ROUNDS):
        facts = FactsQuery().parse(answers[FactsQuery()]) if FactsQuery() in answers else None
        view = NodeView(node.name, node.groups, node.vars, facts or FactsQuery().placeholder())
        observations = Observations(view)
        if MaskedUnitsQuery() in answers:
            observations.masked = MaskedUnitsQuery().parse(answers[MaskedUnitsQuery()])
        pending: dict[Query[Any], None] = {} if answers else dict(first)
        for state in states:
            if facts is not None and applicable(state, view) is not None:
                continue
            probing = ProbingNode(node, answers, shared)
            try:
                observations.observed[state.name] = state.probe(probing)
            except (ProbeError, RefusedError) as error:
                observations.errors[state.name] = str(error)
                if isinstance(error, RefusedError):
                    observations.refused.add(state.name)
            except Exception as error:  # noqa: BLE001  a bug in a state must not end the run
                observations.errors[state.name] = (
                    f"its probe failed ({type(error).__name__}: {error}); this is a bug in the state"
                )
            pending.update(probing.missing)
            observations.links.update(probing.links)
        if not pending and facts is not None:
            return observations, facts, answers
        queries = tuple(pending)
        answers.update(zip(queries, answerer(queries), strict=True))
    raise ProbeError(
        "the probes do not end: a state sends new queries in every round; this is a bug in the state"
    )


def missing_queries(
    node: InventoryNode, question: Callable[[Node], object]
) -> tuple[Query[Any], ...]:
    """The queries that a question begins with, so that they can be sent with others."""
    probing = ProbingNode(node, {})
    with suppress(Exception):  # of placeholders; the answers decide
        question(probing)
    return tuple(probing.missing)


def query_node(
    node: InventoryNode,
    question: Callable[[Node], T],
    answerer: Answerer,
    answered: Mapping[Query[Any], Answer] | None = None,
) -> T:
    """Query one node outside of any state, with the same batching.

    Args:
        node: the node.
        question: queries it and returns the result.
        answerer: sends queries, one exec per call.
        answered: known answers.

    Raises:
        ProbeError: the queries do not end, or an answer is invalid.
    """
    answers: dict[Query[Any], Answer] = dict(answered or {})
    for _ in range(_MAX_ROUNDS):
        probing = ProbingNode(node, answers)
        try:
            result = question(probing)
        except Exception:
            if not probing.missing:
                raise
        else:
            if not probing.missing:
                return result
        queries = tuple(probing.missing)
        answers.update(zip(queries, answerer(queries), strict=True))
    raise ProbeError("the queries do not end: there are new ones in every round")
