"""Plan a node's states from their observations. Pure.

Each state, in order, gets one outcome: not applicable, refused, known after (its plan depends on a state that
has changes), would change, unchanged, blocked (it needs the node's console), or not run because another failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from gpustate.core.change import Change, Disruption, Plan
from gpustate.core.encode import fingerprint, plain
from gpustate.core.facts import NodeView
from gpustate.core.outcome import Outcome, StateResult
from gpustate.core.path_conflicts import in_the_way
from gpustate.core.planned import PlannedObservation
from gpustate.core.state import AnyState
from gpustate.errors import GpustateError
from gpustate.formats.dpkg import Candidate, repository

_BLOCKS_VIEW = (Outcome.PENDING, Outcome.KNOWN_AFTER, Outcome.REBOOT_PENDING)
_DRIVER_VERSION = re.compile(r"[0-9]+(\.[0-9]+)+")
_NO_GPU = "the policy expects no GPU on this node"
FAILED = (
    Outcome.FAILED,
    Outcome.ROLLED_BACK,
    Outcome.NOT_RUN,
    Outcome.REFUSED,
    Outcome.INTERRUPTED,
    Outcome.BLOCKED,
)


SeenBy = Callable[[Sequence[AnyState]], Sequence[object]]


def _not_seen(states: Sequence[AnyState]) -> Sequence[object]:
    return [None] * len(states)


@dataclass(slots=True)
class Observations:
    """Result of probing a node once.

    Args:
        view: the node, for conditions.
        observed: observation of each state that could be probed.
        errors: why a state could not be probed.
        refused: states among them that need a fix on the node first.
        masked: masked systemd units.
        links: symbolic links in the place of gpustate's files, with their targets.
        expects_no_gpu: the whole policy expects no GPU on the node, although only a part of it is planned.
        as_seen_by: observes the node as other states do; ``None`` for each that cannot.
    """

    view: NodeView
    observed: dict[str, object] = field(default_factory=dict[str, object])
    errors: dict[str, str] = field(default_factory=dict[str, str])
    refused: set[str] = field(default_factory=set[str])
    masked: frozenset[str] = frozenset()
    links: dict[str, str] = field(default_factory=dict[str, str])
    expects_no_gpu: bool = False
    as_seen_by: SeenBy = _not_seen


def applicable(state: AnyState, view: NodeView) -> str | None:
    """``None`` if a state applies to a node, otherwise the reason why not."""
    if state.only is not None and not state.only.holds(view):
        return f"only where {state.only.text}"
    return None


def make(
    states: Sequence[AnyState],
    observations: Observations,
    final_results: Mapping[str, StateResult] | None = None,
) -> dict[str, StateResult]:
    """Plan states in their order.

    Args:
        states: in graph order.
        observations: of the node now.
        final_results: final results (failed, or waiting for a reboot), which are not planned again.
    """
    results: dict[str, StateResult] = {}
    edges = _edges(states)
    relevant = {s.name: s for s in states if applicable(s, observations.view) is None}
    facts = observations.view.facts
    if not facts.gpus and not facts.image:
        observations.expects_no_gpu |= any(s.expects_no_gpu for s in relevant.values())
    conflicts = _conflicts(relevant, observations)
    for state in states:
        standing = (final_results or {}).get(state.name)
        if standing is None:
            standing = _plan_state(
                state, observations, results, _first(state.name, edges), relevant, conflicts
            )
        results[state.name] = standing
    return results


def _conflicts(
    states: Mapping[str, AnyState], observations: Observations
) -> dict[str, tuple[Outcome, str]]:
    """States that conflict with the policy on this node, or with what another state observed, with the reasons."""
    facts = observations.view.facts
    ruled_out: dict[str, tuple[Outcome, str]] = {}
    for name, state in states.items():
        try:
            for conflict in state.conflicts(states, facts, None):
                ruled_out.setdefault(conflict.state or name, (Outcome.REFUSED, conflict.reason))
        except Exception as error:  # noqa: BLE001  a bug in a state must not end the run
            ruled_out.setdefault(name, (Outcome.FAILED, _bug(error)))
        with suppress(Exception):  # evaluated again with the state's own plan
            if (observed := observations.observed.get(name)) is not None:
                for conflict in state.conflicts(states, facts, observed):
                    later = conflict.warning or conflict.with_changes
                    if conflict.state not in (None, name) and not later:
                        refused = (Outcome.REFUSED, conflict.reason)
                        ruled_out.setdefault(conflict.state, refused)
    return ruled_out


def _refused_changes(
    name: str, states: Mapping[str, AnyState], observations: Observations
) -> str | None:
    """Why other states refuse the changes of one."""
    for other_name, state in states.items():
        observed = observations.observed.get(other_name)
        if other_name == name or observed is None:
            continue
        for conflict in state.conflicts(states, observations.view.facts, observed):
            if conflict.state == name and conflict.with_changes and not conflict.warning:
                return conflict.reason
    return None


def must_hold_first(state: AnyState, states: Sequence[AnyState]) -> tuple[str, ...]:
    """States of the policy whose failure prevents running this one, in their order.

    Indirect dependencies count too. The first of them that failed is the cause, the others are its symptoms. A
    removal goes in reverse: a state stays as long as one that depends on it is installed.
    """
    return _first(state.name, _edges(states))


#: Name, needs, known_after, whether it is removed.
_Edges = tuple[tuple[str, tuple[str, ...], tuple[str, ...], bool], ...]


def _edges(states: Sequence[AnyState]) -> _Edges:
    return tuple((s.name, tuple(s.needs), tuple(s.known_after), s.absent) for s in states)


@lru_cache(4096)
def _first(state: str, states: _Edges) -> tuple[str, ...]:
    """Cached, since all nodes with the same states have the same result."""
    by_name = {name: (*needs, *behind) for name, needs, behind, _ in states}
    absent_needs = {name: needs for name, needs, _, absent in states if absent}
    predecessors: dict[str, None] = {}
    queue = [state]
    while queue:
        current = queue.pop(0)
        if state in absent_needs:
            names = [name for name, needs in absent_needs.items() if current in needs]
        else:
            names = [name for name in by_name.get(current, ()) if name in by_name]
        queue += [name for name in names if name not in predecessors]
        predecessors.update(dict.fromkeys(names))
    return tuple(name for name in by_name if name in predecessors)


def _plan_state(
    state: AnyState,
    observations: Observations,
    results: Mapping[str, StateResult],
    first: tuple[str, ...],
    states: Mapping[str, AnyState],
    conflicts: Mapping[str, tuple[Outcome, str]],
) -> StateResult:
    name = state.name
    removes = state.own_units if state.absent else ()
    result = partial(StateResult, name, validating=state.validating, removes=removes)
    reason = applicable(state, observations.view)
    if reason is not None:
        return result(Outcome.NOT_APPLICABLE, reason=reason)
    if state.needs_gpu and observations.expects_no_gpu and not state.absent:
        return result(Outcome.NOT_APPLICABLE, reason=_NO_GPU)
    if name in conflicts:
        outcome, reason = conflicts[name]
        return result(outcome, reason=reason)
    failed = [n for n in first if n in results and results[n].outcome in FAILED]
    if failed:
        because = results[failed[0]]
        root = (
            because.reason
            if because.outcome is Outcome.NOT_RUN
            else f"because {failed[0]} {because.outcome.value}"
        )
        return result(Outcome.NOT_RUN, reason=root)
    # Removed in reverse, nothing is waited for: what this state looks behind is still there.
    # Beside one that is, it may find something that goes with that.
    absent = tuple(n for n in state.after if n in states and states[n].absent)
    behind = () if state.absent else (*state.known_after, *absent)
    waits = tuple(n for n in behind if n in results and results[n].outcome in _BLOCKS_VIEW)
    case = _worst_case(state, observations) if waits else None
    # A problem that needs a fix on the node will not go away.
    if case is not None and name not in observations.refused:
        masked, plan = _masked_already(state, observations)
        if masked is not None:
            return result(Outcome.REFUSED, plan, reason=masked)
        return result(
            Outcome.KNOWN_AFTER,
            known_after=waits,
            worst=case[0],
            condition=case[1] if case[0] else "",
        )
    if name in observations.errors:
        outcome = Outcome.REFUSED if name in observations.refused else Outcome.FAILED
        return result(outcome, reason=observations.errors[name])
    observed = observations.observed[name]
    try:
        refusal = state.refuse(observed)
        plan = state.plan(observed)
        if not isinstance(plan, Plan):
            raise TypeError(f"plan() returned {plan!r}")
        for conflict in state.conflicts(states, observations.view.facts, observed):
            if conflict.with_changes and not plan:
                continue
            if conflict.warning:
                plan = replace(plan, warnings=(*plan.warnings, conflict.reason))
            elif refusal is None and conflict.state in (None, name):
                refusal = conflict.reason
        if plan and refusal is None:
            refusal = _refused_changes(name, states, observations)
            same = (r.state for r in results.values() if refusal and r.reason == refusal)
            if cause := next(same, None):
                return result(Outcome.NOT_RUN, reason=f"because {cause} refused")
        plan = replace(plan, changes=labelled(state, plan))
        refused = refusal or plan.refusal or state.absent
        if plan and not refused and (observations.masked or observations.links):
            refusal = in_the_way(
                state.apply(observed, plan), observations.masked, observations.links
            )
    except GpustateError as error:
        return result(Outcome.FAILED, reason=str(error))
    except Exception as error:  # noqa: BLE001  a bug in a state must not end the run
        return result(Outcome.FAILED, reason=_bug(error))
    refusal = refusal or plan.refusal
    if refusal is not None:
        return result(Outcome.REFUSED, plan, reason=refusal)
    if plan.blocked is not None and not plan:
        return result(Outcome.BLOCKED, plan, reason=plan.blocked)
    outcome = Outcome.PENDING if plan else Outcome.UNCHANGED
    if plan and observations.view.facts.image and left_to_first_boot(state, observed, plan):
        outcome = Outcome.FIRST_BOOT
    return result(outcome, plan, worst=plan.disruption, condition=plan.condition)


def _worst_case(state: AnyState, observations: Observations) -> tuple[Disruption, str] | None:
    """The most a plan that is not known yet may cost; ``None``: there is nothing to wait for."""
    if state.name not in observations.observed:
        return state.worst, state.worst_if
    try:
        return state.worst_case(observations.observed[state.name], observations.view.facts)
    except Exception:  # noqa: BLE001  evaluated again in its stage
        return state.worst, state.worst_if


def labelled(state: AnyState, plan: Plan) -> tuple[Change, ...]:
    """The changes of a plan with their labels."""
    return tuple(replace(change, label=state.field_label(change.field)) for change in plan.changes)


def with_sources(
    plan: Plan,
    fields: Sequence[str],
    installs: Mapping[str, Candidate],
    candidates: Mapping[str, Sequence[Candidate]],
) -> Plan:
    """A plan that names the repositories of its packages.

    Args:
        fields: with packages and their versions, or the version of one package.
        installs: what all plans install together, by name.
        candidates: what repositories offer, by name.
    """
    changes: list[Change] = []
    for change in plan.changes:
        coming = _coming(plan, change, candidates) if change.field in fields else {}
        rows = (row for name, row in installs.items() if coming.get(name) == row.version)
        sources = dict.fromkeys(repository(row.origin) for row in rows if row.origin)
        source = f"from {' or '.join(sources)}" if sources else ""
        changes.append(replace(change, why="; ".join(filter(None, (change.why, source)))))
    return replace(plan, changes=tuple(changes))


def _coming(
    plan: Plan, change: Change, candidates: Mapping[str, Sequence[Candidate]]
) -> dict[str, object]:
    """Packages that come by a change of packages and versions, or of the version of one package, as far as those are known."""
    packages = change.after
    if not isinstance(packages, Mapping):
        named = [c.after for c in plan.changes if c.field == "package" and c.after in candidates]
        packages = dict.fromkeys(named or candidates, packages)
    before = change.before if isinstance(change.before, Mapping) else {}
    return {str(n): version for n, version in packages.items() if before.get(n) != version}


def transaction(
    states: Sequence[AnyState],
    results: Mapping[str, StateResult],
    candidates: Mapping[str, Sequence[Candidate]],
) -> tuple[dict[str, tuple[tuple[str, str], ...]], tuple[str, ...]]:
    """The packages that each state installs, by its plan, and all packages that leave with them."""
    installs: dict[str, tuple[tuple[str, str], ...]] = {}
    leaving: dict[str, None] = {}
    for state in states:
        result = results[state.name]
        if state.absent or result.outcome not in (Outcome.PENDING, Outcome.KNOWN_AFTER):
            continue
        rows = dict(result.plan.installs)
        for change in result.plan.changes:
            if change.field not in (*state.predicted, "packages"):
                continue
            for name, version in _coming(result.plan, change, candidates).items():
                offered = [candidate.version for candidate in candidates.get(name, ())]
                if isinstance(version, str) and (
                    isinstance(change.after, Mapping) or version in offered
                ):
                    rows[name] = version
            if isinstance(change.before, Mapping) and isinstance(change.after, Mapping):
                leaving |= dict.fromkeys(n for n in change.before if not change.after.get(n))
        if rows:
            installs[state.name] = tuple(rows.items())
    return installs, tuple(leaving)


def refused(state: AnyState, reason: str) -> StateResult:
    """The result of a state that must not be applied."""
    return StateResult(state.name, Outcome.REFUSED, reason=reason, validating=state.validating)


def predict(
    state: AnyState,
    observed: Any,
    driver: str,
    packages: Mapping[str, str] | None = None,
    *,
    masked: frozenset[str] = frozenset(),
    repositories_known: bool = True,
) -> Plan:
    """What a state that waits will install, and its facts for the compatibility matrix.

    Args:
        observed: with the packages that the node's repositories will have.
        driver: version that it will have, ``580.*`` where only the branch is known; empty: nothing is.
        packages: of the driver that it will have; ``None``: they stay, or are not known.
        masked: names of units.
        repositories_known: the states ahead bring no other ones.

    Returns:
        A plan with a refusal only where that cannot change with the states ahead.
    """
    try:
        if state.follows:
            coming = (driver or None, *filter(None, (packages,)))
            observed = replace(observed, **dict(zip(state.follows, coming, strict=False)))
        plan = state.plan(observed)
        planned = PlannedObservation(observed, StateResult(state.name, Outcome.PENDING, plan))
        facts = {n: v for n, v in state.matrix_facts(planned).items() if v is not None}
        exact = not state.follows or _DRIVER_VERSION.fullmatch(driver)
        refusal = plan.refusal if exact and repositories_known else None
        # A mask stays, whatever the states ahead bring.
        refusal = refusal or in_the_way(state.apply(observed, plan), masked, {})
        plan = plan.predicted(state.predicted)
        return Plan(labelled(state, plan), refusal=refusal, facts=facts if plan else {})
    except Exception:  # noqa: BLE001  evaluated again in its stage
        return Plan()


def _masked_already(state: AnyState, observations: Observations) -> tuple[str | None, Plan]:
    """A refusal that is certain before the states ahead have run: a mask stays."""
    if not observations.masked or state.absent or state.name not in observations.observed:
        return None, Plan()
    try:
        observed = observations.observed[state.name]
        plan = state.plan(observed)
        if not plan or plan.refusal is not None:
            return None, plan
        return in_the_way(state.apply(observed, plan), observations.masked, {}), plan
    except Exception:  # noqa: BLE001  evaluated again in its stage
        return None, Plan()


def may_change(state: AnyState, observations: Observations) -> bool:
    """Whether a state whose plan is known only after others has something to do: changes already, or a refusal for what they bring."""
    if state.name not in observations.observed:
        return True
    observed = observations.observed[state.name]
    try:
        plan = state.plan(observed)
        return bool(plan) or (plan.refusal or plan.blocked or state.refuse(observed)) is not None
    except Exception:  # noqa: BLE001  evaluated again in its stage
        return True


def _bug(error: Exception) -> str:
    return f"its plan failed ({type(error).__name__}: {error}); this is a bug in the state"


def left_to_first_boot(state: AnyState, observed: object, plan: Plan) -> bool:
    """All changes are left to the first boot: every step needs a running system."""
    return all(step.in_image is None for step in state.apply(observed, plan))


def ready(states: Sequence[AnyState], results: Mapping[str, StateResult]) -> list[AnyState]:
    """States whose steps can run now: they would change, and the plans of all states before them are known.

    The order holds across stages: a state after one whose plan is not known yet waits for it.
    """
    waiting = {name for name, r in results.items() if r.outcome is Outcome.KNOWN_AFTER}
    free: list[AnyState] = []
    for state in states:
        before_it = {o.name for o in states if state.name in o.before}
        before_it.update(state.needs, state.after, state.known_after)
        if not state.absent and before_it & waiting:
            waiting.add(state.name)
        elif results[state.name].outcome is Outcome.PENDING:
            free.append(state)
    return free


def observed_data(states: Sequence[AnyState], observations: Observations) -> dict[str, object]:
    """Observations as plain data, for comparison with a saved plan."""
    data: dict[str, object] = {}
    for state in states:
        if state.name not in observations.observed:
            continue
        observed = observations.observed[state.name]
        if state.stable is None:
            data[state.name] = plain(observed)
        else:
            data[state.name] = {
                key: plain(getattr(observed, key)) for key in state.stable if hasattr(observed, key)
            }
    return data


def moved(planned: Mapping[str, object], current: Mapping[str, object]) -> list[str]:
    """States whose observations differ from those of a saved plan."""
    return [
        state
        for state in sorted({*planned, *current})
        if fingerprint(planned.get(state)) != fingerprint(current.get(state))
    ]


def exceeds(result: StateResult, announced: Mapping[str, Disruption]) -> str | None:
    """How a state's current plan exceeds the announced one; ``None`` if it does not."""
    if result.outcome is not Outcome.PENDING:
        return None
    if result.state not in announced:
        return f"it had no changes in the plan, and now {_fields(result.plan)} would change"
    allowed = announced[result.state]
    if result.plan.disruption > allowed:
        return f"the plan announced disruption {allowed.word}, and it is now {result.plan.disruption.word} ({_fields(result.plan)})"
    return None


def _fields(plan: Plan) -> str:
    return ", ".join(change.field for change in plan.changes)
