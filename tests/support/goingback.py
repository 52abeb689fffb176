"""A state on a node in memory: applied, applied with other parameters, and rolled back.

A module below ``tests/unit/states`` that tests this says so with a literal at its top, ``GOES_BACK``: a state's name to
what is compared. ``tests/contract/test_rollback.py`` wants one for every state that keeps originals.
"""

from __future__ import annotations

from typing import Any

from gpustate.core.facts import NodeView
from gpustate.core.outcome import Outcome, StateResult
from gpustate.core.policy import parameters
from gpustate.core.state import AnyState
from gpustate.engine import before
from gpustate.engine.before import RunBefore, StateBefore
from gpustate.plan.make import Observations
from gpustate.testing import FakeNode

#: Configuration files, units among them, that dpkg keeps though the installed version does not have them.
OBSOLETE = r"dpkg-query -W -f '${Conffiles}\n' | sed -n 's/^ \([^ ]*\) .* obsolete$/\1/p'"


def _apply(node: FakeNode, state: AnyState) -> None:
    """Carry out a state until nothing is left to do."""
    for _ in range(3):
        observed = state.probe(node)
        assert state.refuse(observed) is None, state.refuse(observed)
        plan = state.plan(observed)
        if not plan:
            return
        for step in state.apply(observed, plan):
            node.carry_out(step)
    raise AssertionError(f"{state.name} still differs: {state.plan(state.probe(node)).fields}")


def _seen(node: FakeNode) -> dict[str, Any]:
    """What a rollback restores."""
    return {
        "files": dict(node.files),
        "modes": {path: mode for path, mode in node.modes.items() if path in node.files},
        "packages": dict(node.installed),
        "held": set(node.held),
        "enabled": set(node.enabled),
    }


def rolled_back(
    node: FakeNode, first: AnyState | None, second: AnyState, *, but: tuple[str, ...] = ()
) -> FakeNode:
    """Apply a state, then with other parameters, then go back; assert that the node is as before the second time.

    Args:
        node: as it is at first.
        first: what was applied before; ``None``: the node has nothing of the state.
        second: what is undone.
        but: parts of the node that stay as they are.

    Returns:
        The node after the rollback.
    """
    records: list[RunBefore] = []
    if first is not None:
        _apply(node, first)
        records.append(RunBefore("first", states={first.name: StateBefore(parameters(first))}))
    then = _seen(node)
    observed = second.probe(node)
    assert second.plan(observed), "the second run has nothing to do"
    made = before.record(
        [second],
        Observations(NodeView(node.name, (), {}, node.node_facts), {second.name: observed}),
        {second.name: StateResult(second.name, Outcome.PENDING)},
        lambda states: [state.probe(node) for state in states],
    )
    records.append(RunBefore("second", states=made))
    _apply(node, second)
    assert _seen(node) != then, "the second run has changed nothing that is compared"
    way = before.way_back(records, "second", {second.name: type(second)})
    assert way.stays == (), way.stays
    (back,) = way.states
    _apply(node, back)
    now = _seen(node)
    for part in but:
        then[part] = now[part]
    assert now == then, {key: (then[key], now[key]) for key in now if now[key] != then[key]}
    return node
