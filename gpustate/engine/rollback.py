"""Takes a node back to before the present run, where its change failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpustate.core.inventory import InventoryNode
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome
from gpustate.core.policy import Resolved, parameters
from gpustate.core.state import AnyState
from gpustate.engine import before
from gpustate.engine.events import Event, Listener
from gpustate.engine.maintenance import STAYS_OUT, out_of_service
from gpustate.engine.probing import query_node
from gpustate.engine.walk import Options, Walk
from gpustate.errors import EXIT_VALIDATION, GpustateError
from gpustate.remote.session import Session

#: A node that failed in one of these ways goes back, if the run has changed it.
FAILED = (NodeStatus.FAILED, NodeStatus.ROLLED_BACK)
#: Its rollback is a run of its own, which can be rolled back in turn.
SUFFIX = "-back"


def is_due(node: NodeResult) -> bool:
    """Whether a node goes back by itself: its change failed, not its return to service."""
    return node.status in FAILED and not node.unreleased


def roll_back(
    plan: tuple[Resolved, Sequence[AnyState]],
    result: NodeResult,
    options: Options,
    order: Callable[[Sequence[AnyState]], list[AnyState]],
    stop: Callable[[], bool],
    listen: Listener,
    session: Callable[[InventoryNode], Session],
    because: str = "",
) -> None:
    """Take one node back and enter that into its result.

    A node that the run did not change is only released where the run holds it, otherwise it stays as it is.

    Args:
        plan: the node, and the states that were applied to it.
        result: of the run so far.
        options: of the run.
        order: sorts states by their dependencies.
        stop: polled between steps.
        listen: for events.
        session: makes a connection.
        because: why a node goes back that did not fail itself.
    """
    resolved, states = plan
    resolved = replace(resolved, node=resolved.node.going_back())
    why = because or result.reason
    try:
        records = _records(resolved, session(resolved.node))
        undone = before.target(records, options.run) or options.run
        if all(record.run != undone for record in records) and not out_of_service(result):
            return
        way = before.way_back(
            records,
            undone,
            {state.name: type(state) for state in states},
            {state.name: parameters(state) for state in states},
        )
        ordered = order(way.states)
        options.back_check(resolved.node, way)
    except GpustateError as error:
        _failed(result, why, str(error))
        return
    listen(Event(result.name, "note", f"rolling back: {why}"))
    walk = Walk(
        session(resolved.node),
        replace(resolved, states=way.states, notes=()),
        ordered,
        replace(
            options,
            run=f"{options.run}{SUFFIX}",
            planned=None,
            announced=None,
            surveying=lambda: False,
            looks={},
            checks=(),
            undoes={result.name: undone},
        ),
        stop,
        listen,
    ).run()
    result.execs += walk.execs
    result.connections += walk.connections
    result.reboots += walk.reboots
    result.duration_s += walk.duration_s
    result.observed, result.checks = walk.observed, walk.checks
    notes = result.notes
    if walk.status is NodeStatus.OK or out_of_service(walk):
        # Whether it is in service is known by the last walk that got so far.
        notes = [note for note in notes if STAYS_OUT not in note]
    result.notes = [*notes, *(note for note in (*way.notes, *walk.notes) if note not in notes)]
    complete = walk.status is NodeStatus.OK and not way.stays
    names = {state.state for state in walk.outcomes(Outcome.UNCHANGED, Outcome.CHANGED)}
    result.states = [
        replace(state, outcome=Outcome.ROLLED_BACK)
        if state.outcome in (Outcome.CHANGED, Outcome.REBOOT_PENDING)
        and (complete or state.state in names)
        else state
        for state in result.states
    ]
    if walk.status is not NodeStatus.OK:
        prefix = "" if walk.status in FAILED else f"{walk.status.value}: "
        as_before = walk.exit_code == EXIT_VALIDATION and not way.stays
        _failed(result, why, f"{prefix}{walk.reason}", options.run if as_before else "")
        return
    if way.stays:
        _failed(result, why, "; ".join(way.stays))
        return
    result.status = NodeStatus.ROLLED_BACK
    causes = [text for text in why.split("; ") if STAYS_OUT not in text]
    result.reason = "; ".join((*causes, f"rolled back to before run {options.run}"))


def _records(resolved: Resolved, session: Session) -> tuple[before.RunBefore, ...]:
    try:
        session.connect()
        return query_node(
            resolved.node, lambda node: node.query(before.BeforeQuery()), session.answer
        )
    finally:
        session.close()


def _failed(result: NodeResult, why: str, problem: str, undone: str = "") -> None:
    """Enter a failed rollback; ``undone``: the run before which the node is again, where only its validation failed."""
    result.status = NodeStatus.FAILED
    verdict = "its rollback failed"
    if undone:
        verdict = f"rolled back to before run {undone}, and its validation failed"
    result.reason = f"{why}; {verdict}: {problem}"
    if out_of_service(result) and STAYS_OUT not in result.reason:
        result.reason += f"; it {STAYS_OUT}"
