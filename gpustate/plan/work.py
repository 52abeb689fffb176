"""The steps that a plan would take on a node, for the estimate of how long they take. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpustate.core.outcome import Outcome, StateResult
from gpustate.core.state import AnyState
from gpustate.core.timing import PlannedStep
from gpustate.plan.make import Observations


def planned_steps(
    states: Sequence[AnyState], observations: Observations, results: Mapping[str, StateResult]
) -> tuple[PlannedStep, ...]:
    """Steps of every state that would change, in order; without states that are known after others."""
    steps: list[PlannedStep] = []
    for state in states:
        result = results[state.name]
        if result.outcome is not Outcome.PENDING or state.name not in observations.observed:
            continue
        try:
            mine = [
                PlannedStep(state.name, step.label, type(step).__name__, step.timeout_s)
                for step in state.apply(observations.observed[state.name], result.plan)
            ]
        except Exception:  # noqa: BLE001  reported by an apply; here only the estimate is less exact
            continue
        steps += mine
    return tuple(steps)
