"""Looking at a node: the probes of all its states, coalesced into as few execs as their asks allow.

The probes run first against stand-in answers, which shows what they ask; those asks leave in one
exec; then they run again with the answers. An ask that only comes up because of an answer costs
one more exec, shared by all states that have such asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from gpustate.core.facts import AskFacts, NodeFacts, NodeView
from gpustate.core.inventory import InventoryNode
from gpustate.core.node import Node
from gpustate.core.path_conflicts import AskMasked
from gpustate.core.queries import Answer, Ask
from gpustate.core.required_programs import AskMissing
from gpustate.core.state import AnyState
from gpustate.errors import ProbeError, RefusedError
from gpustate.plan.make import Look, applicable

T = TypeVar("T")
Answerer = Callable[[Sequence[Ask[Any]]], Sequence[Answer]]

#: Asks that hang on answers that hang on answers; more rounds than this is a probe that never ends.
_MAX_ROUNDS = 8


class AskingNode(Node):
    """The node as probes see it: answers what is known, and writes down what is not."""

    def __init__(self, node: InventoryNode, known: Mapping[Ask[Any], Answer]) -> None:
        self.name = node.name
        self.vars = node.vars
        self.known = known
        self.wanted: dict[Ask[Any], None] = {}
        self.links: dict[str, str] = {}

    def ask(self, ask: Ask[T]) -> T:
        """The answer, or the ask's stand-in after noting it down."""
        answer = self.known.get(ask)
        if answer is None:
            self.wanted[ask] = None
            return ask.stand_in()
        return ask.parse(answer)

    def linked(self, path: str, target: str) -> None:
        """For the plan: nothing is written through it."""
        self.links[path] = target


def look_at(
    node: InventoryNode,
    states: Sequence[AnyState],
    answerer: Answerer,
    extra: Sequence[Ask[Any]] = (),
) -> tuple[Look, NodeFacts, dict[Ask[Any], Answer]]:
    """Probe all states of a node.

    Args:
        node: as the inventory has it.
        states: those of its policy.
        answerer: sends asks, one exec a call.
        extra: asks of the engine's own, sent along with the first.

    Returns:
        What was seen, the node's facts, and all answers by ask.
    """
    known: dict[Ask[Any], Answer] = {}
    first: dict[Ask[Any], None] = dict.fromkeys((AskFacts(), AskMasked(), *extra))
    programs = AskMissing(tuple(sorted({p for s in states if not s.absent for p in s.uses})))
    if programs.paths:
        first[programs] = None
    for _ in range(_MAX_ROUNDS):
        facts = AskFacts().parse(known[AskFacts()]) if AskFacts() in known else None
        view = NodeView(node.name, node.groups, node.vars, facts or AskFacts().stand_in())
        look = Look(view)
        if AskMasked() in known:
            look.masked = AskMasked().parse(known[AskMasked()])
        if programs in known:
            look.missing = programs.parse(known[programs])
        wanted: dict[Ask[Any], None] = {} if known else dict(first)
        for state in states:
            if facts is not None and applicable(state, view) is not None:
                continue
            asking = AskingNode(node, known)
            try:
                look.seen[state.name] = state.probe(asking)
            except (ProbeError, RefusedError) as error:
                look.errors[state.name] = str(error)
                if isinstance(error, RefusedError):
                    look.refused.add(state.name)
            except Exception as error:  # noqa: BLE001  a mistake in a state must not end the run
                look.errors[state.name] = (
                    f"its probe failed ({type(error).__name__}: {error}); this is a mistake in the state"
                )
            wanted.update(asking.wanted)
            look.links.update(asking.links)
        if not wanted and facts is not None:
            return look, facts, known
        asks = tuple(wanted)
        known.update(zip(asks, answerer(asks), strict=True))
    raise ProbeError(
        "the probes go on asking without end; some state asks for something new each time"
    )


def ask_node(
    node: InventoryNode,
    question: Callable[[Node], T],
    answerer: Answerer,
    answered: Mapping[Ask[Any], Answer] | None = None,
) -> T:
    """Ask one node something outside of any state, with the same coalescing of asks.

    Args:
        node, question, answerer: whom, what, and who sends it.
        answered: answers that are known already.

    Raises:
        ProbeError: the question goes on asking without end, or an answer makes no sense.
    """
    known: dict[Ask[Any], Answer] = dict(answered or {})
    for _ in range(_MAX_ROUNDS):
        asking = AskingNode(node, known)
        try:
            result = question(asking)
        except Exception:
            if not asking.wanted:
                raise
        else:
            if not asking.wanted:
                return result
        asks = tuple(asking.wanted)
        known.update(zip(asks, answerer(asks), strict=True))
    raise ProbeError("the question goes on asking without end")
