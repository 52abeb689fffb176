"""The steps that a plan would take on a node, for the estimate of how long they take. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpustate.core.outcome import Outcome, StateResult
from gpustate.core.state import AnyState
from gpustate.core.timing import PlannedStep
from gpustate.plan.make import Look


def planned_steps(
    states: Sequence[AnyState], look: Look, results: Mapping[str, StateResult]
) -> tuple[PlannedStep, ...]:
    """Steps of every state that would change, in order; none of what is not known yet."""
    steps: list[PlannedStep] = []
    for state in states:
        result = results[state.name]
        if result.outcome is not Outcome.PENDING or state.name not in look.seen:
            continue
        try:
            mine = [
                PlannedStep(state.name, step.label, type(step).__name__, step.timeout_s)
                for step in state.apply(look.seen[state.name], result.plan)
            ]
        except Exception:  # noqa: BLE001  told when it is applied; here it costs only a better estimate
            continue
        steps += mine
    return tuple(steps)
