"""Outcomes of states, from the journal and a new probe, which decides. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpustate import ops
from gpustate.core.change import Change, Disruption
from gpustate.core.outcome import NodeStatus, Outcome, StateResult
from gpustate.core.state import AnyState, State
from gpustate.core.step import Step
from gpustate.engine import journal
from gpustate.engine.maintenance import INTERRUPTED
from gpustate.errors import GpustateError, StepFailed
from gpustate.formats import package_errors
from gpustate.formats.words import distinguish
from gpustate.plan.make import Observations, left_to_first_boot

#: Most fields that a reason lists if they still differ after the steps.
_MOST_FIELDS = 4
#: Output of a step about a service that it could not restart.
_STOPPED = re.compile(r"^still stopped: (\S+)$", re.MULTILINE)
_AGAIN = re.compile(r"^running again: (\S+)$", re.MULTILINE)
_WORST_FIRST = (
    (Outcome.ROLLED_BACK, NodeStatus.ROLLED_BACK),
    (Outcome.FAILED, NodeStatus.FAILED),
    (Outcome.REFUSED, NodeStatus.REFUSED),
    (Outcome.INTERRUPTED, NodeStatus.INTERRUPTED),
    (Outcome.BLOCKED, NodeStatus.BLOCKED),
    (Outcome.REBOOT_PENDING, NodeStatus.FAILED),
)


def steps(state: AnyState, observations: Observations, planned: StateResult) -> tuple[Step, ...]:
    """A state's steps; an exception in the state is reported as its bug."""
    try:
        steps = tuple(state.apply(observations.observed[state.name], planned.plan))
    except GpustateError:
        raise
    except Exception as error:
        raise StepFailed(
            f"{state.name}: its steps could not be created ({type(error).__name__}: {error}); "
            "this is a bug in the state"
        ) from error
    if not observations.view.facts.image:
        return steps
    return tuple(part for step in steps if (part := step.in_image) is not None)


def after_steps(
    state: AnyState, planned: StateResult, record: journal.Record, observations: Observations
) -> StateResult:
    """Return the outcome of one state whose steps were in the program.

    Args:
        state: the state.
        planned: its planned changes.
        record: the program's journal.
        observations: of the node now.
    """

    def become(outcome: Outcome, reason: str = "", evidence: str = "") -> StateResult:
        return replace(planned, outcome=outcome, reason=reason, evidence=evidence)

    entry = record.states.get(state.name, journal.StateRecord())
    if entry.skipped_because:
        return become(Outcome.NOT_RUN, f"because {entry.skipped_because} failed")
    if entry.failed_step:
        outcome = Outcome.ROLLED_BACK if entry.rolled_back else Outcome.FAILED
        error = package_errors.find_error(entry.output)
        cause, move = error or (journal.cause(entry.output), "")
        reason = f"{entry.failed_step} ended with {entry.status}: {cause}" + (move and f"; {move}")
        reason += still_stopped(entry.output, observations.observed.get(state.name))
        # A line that the reason quotes is not repeated.
        lines = journal.last_lines(entry.output, 12 if error else 60).splitlines()
        evidence = "\n".join(line for line in lines if line.strip() not in reason)
        result = become(outcome, reason, evidence)
        return replace(result, command=entry.command, inspect=entry.inspect)
    if state.name not in observations.observed:
        why = observations.errors.get(state.name, "it could not be probed afterwards")
        return become(Outcome.FAILED, why)
    observed = observations.observed[state.name]
    remaining = state.verify(observed)
    refusal = state.refuse(observed) or remaining.refusal
    if refusal is not None:
        # A state that refuses may plan no changes and is not converged anyway.
        return become(Outcome.FAILED, refusal)
    image = observations.view.facts.image
    if not remaining and remaining.blocked is not None:
        return become(Outcome.BLOCKED, remaining.blocked)
    if not remaining or (image and left_to_first_boot(state, observed, remaining)):
        return become(Outcome.CHANGED)
    if record.stopped:
        return become(Outcome.INTERRUPTED, f"{INTERRUPTED} before its steps were finished")
    if record.died:
        return become(
            Outcome.FAILED,
            "the node program was killed before it finished; run the same command again",
        )
    wants_reboot = not image and any(
        isinstance(step, ops.Reboot) for step in state.apply(observed, remaining)
    )
    if wants_reboot and all(c.disruption is Disruption.REBOOT for c in remaining.changes):
        return become(Outcome.REBOOT_PENDING, "the remaining changes need a reboot")
    if state.family and remaining.changes != planned.plan.changes:
        return become(Outcome.PENDING)
    reason = f"it still differs after its steps: {differences(remaining.changes)}"
    return become(Outcome.FAILED, f"{reason}; {next_step(remaining.changes)}")


def still_stopped(output: str, observed: object) -> str:
    """Services that ran before a failed step and do not run now, by the step's output or the state's record."""
    recorded = getattr(observed, "stopped", ())
    again = {*_AGAIN.findall(output)}
    units = [*_STOPPED.findall(output), *(recorded if isinstance(recorded, tuple) else ())]
    named = ", ".join(unit for unit in dict.fromkeys(map(str, units)) if unit not in again)
    return (
        f"; ran before and is stopped now: {named}; find the reason: systemctl status {named.replace(',', '')}"
        if named
        else ""
    )


def after_reboot(
    state: AnyState, waiting: StateResult, observations: Observations
) -> StateResult | None:
    """Return the outcome of a state that waited for a reboot; ``None`` if it has more changes now."""
    if state.name not in observations.observed:
        return replace(
            waiting, outcome=Outcome.FAILED, reason=observations.errors.get(state.name, "")
        )
    if state.plan(observations.observed[state.name]):
        return None
    return replace(waiting, outcome=Outcome.CHANGED, reason="")


def reboot_steps(state: AnyState, observations: Observations) -> list[ops.Reboot]:
    """Reboots that a state still needs."""
    observed = observations.observed.get(state.name)
    if observed is None:
        return []
    return [
        step for step in state.apply(observed, state.plan(observed)) if isinstance(step, ops.Reboot)
    ]


def wait_for_console(waiting: Iterable[AnyState], results: dict[str, StateResult]) -> bool:
    """Block reboots while a state waits for a boot at the console: an unattended boot would lose its request."""
    blocked = [r.state for r in results.values() if r.outcome is Outcome.BLOCKED]
    for state in waiting if blocked else ():
        results[state.name] = replace(
            results[state.name],
            outcome=Outcome.BLOCKED,
            reason=f"it needs the reboot at the console that {blocked[0]} waits for",
        )
    return bool(blocked)


def reboot_blocker(states: Iterable[AnyState], observations: Observations) -> str | None:
    """Why the node must not reboot now, by the first state that objects."""
    for state in states:
        observed = observations.observed.get(state.name)
        if observed is None and state.name in observations.errors and _may_object(state):
            return f"{state.name} cannot determine whether the node may reboot: {observations.errors[state.name]}"
        reason = state.reboot_blocker(observed) if observed is not None else None
        if reason is not None:
            return f"{state.name}: {reason}"
    return None


def _may_object(state: AnyState) -> bool:
    return not state.absent and type(state).reboot_blocker is not State.reboot_blocker


def node_status(results: Iterable[StateResult]) -> tuple[NodeStatus, str]:
    """A node's status and the reason for it, from the outcomes of its states."""
    by_outcome: dict[Outcome, StateResult] = {}
    for result in results:
        by_outcome.setdefault(result.outcome, result)
    for outcome, status in _WORST_FIRST:
        if outcome in by_outcome:
            return status, f"{by_outcome[outcome].state}: {by_outcome[outcome].reason}"
    return NodeStatus.OK, ""


def differences(changes: Sequence[Change]) -> str:
    """Fields with actual and expected value, cut to the difference; of mappings only keys that differ."""
    rows = [row for change in changes for row in _rows(change)]
    more = len(rows) - _MOST_FIELDS
    return "; ".join(rows[:_MOST_FIELDS]) + (f"; and {more} more" if more > 0 else "")


def _rows(change: Change) -> Iterator[str]:
    before, after = change.before, change.after
    if change.secret:
        yield f"{change.field} is (secret), expected (secret)"
    elif isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys((*before, *after)):
            if (key in before, before.get(key)) != (key in after, after.get(key)):
                yield _both(f"{change.field} of {key}", before.get(key), after.get(key))
    else:
        yield _both(change.field, before, after)


def _both(field: str, before: object, after: object) -> str:
    is_, expected = distinguish(repr(before), repr(after))
    return f"{field} is {is_}, expected {expected}"


def next_step(changes: Sequence[Change]) -> str:
    """Advice for a state that still differs after its steps."""
    paths = dict.fromkeys(change.path for change in changes if change.path)
    cause = f"find out what else writes {', '.join(paths)}" if paths else "find out what changes it"
    return f"apply again; if that does not help, run: gpustate explain NODE; otherwise {cause}"
