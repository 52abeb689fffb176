"""Resolve the driver sets of an inventory: every node is probed as for a plan, and its driver state chooses.

Repositories of the policy that a node does not have yet are read in temporary folders, as for a plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpustate import compat
from gpustate.compat.collect import collect
from gpustate.core.outcome import Outcome
from gpustate.core.policy import Resolved
from gpustate.core.state import AnyState
from gpustate.engine import fleet
from gpustate.engine.probing import probe_states, query_node
from gpustate.errors import ConnectionFailed, PolicyError, RefusedError
from gpustate.plan import make
from gpustate.remote.session import Session
from gpustate.solve import keeping
from gpustate.solve.keeping import Case, Outdated, Resolution
from gpustate.solve.lock import Lock, Platform, merge_sets
from gpustate.solve.request import SolvedState

_ADD = "add DriverInstalled() to it"
#: Facts of the matrix that depend on the chosen driver.
_OF_DRIVER = ("driver", "module_type", "module_source", "fabric_manager", "imex", "nscq", "nvsdm")


@dataclass(slots=True)
class Survey:
    """Answers of all nodes.

    Args:
        cases: by node.
        unreachable, failed: by node, why.
        skipped: by node, why it gets no driver.
    """

    cases: dict[str, Case] = field(default_factory=dict[str, Case])
    unreachable: dict[str, str] = field(default_factory=dict[str, str])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    skipped: dict[str, str] = field(default_factory=dict[str, str])


def survey(request: fleet.Request) -> Survey:
    """Query all nodes.

    Raises:
        GpustateError: policy or overrides are invalid; no node was reached.
    """
    plans = {
        resolved.node.name: (resolved, states) for resolved, states in fleet.resolve_all(request)
    }
    if driver_of(request.policy.states) is None:
        raise PolicyError("the policy has no driver", fix=_ADD)
    result = Survey()
    for node, case, error in fleet.each(
        request.inventory.nodes,
        request.forks,
        lambda session: _case(*plans[session.node.name], session),
    ):
        if error is not None:
            unreachable = isinstance(error, ConnectionFailed)
            troubles = result.unreachable if unreachable else result.failed
            troubles[node.name] = str(error)
        elif isinstance(case, str):
            result.skipped[node.name] = case
        elif case is not None:
            result.cases[node.name] = case
    return result


def _case(resolved: Resolved, states: Sequence[AnyState], session: Session) -> Case | str:
    """The case of one node, or why it gets no driver."""
    observations, facts, answers = probe_states(resolved.node, states, session.answer)
    driver = driver_of(states)
    if driver is None:
        raise PolicyError("the policy has no driver", fix=_ADD)
    if driver.name in observations.errors:
        raise RefusedError(observations.errors[driver.name])
    results = make.make(states, observations)
    result = results[driver.name]
    if result.outcome is Outcome.NOT_APPLICABLE or driver.absent:
        return result.reason or "the policy removes the driver here"
    previews = [
        state.preview(observations.observed[state.name])
        for state in states
        if state.name in driver.known_after and results[state.name].outcome is Outcome.PENDING
    ]
    # Never empty: lists that the node itself has not read yet are read, too.
    preview = "\n".join((":", *filter(None, previews)))
    solution = query_node(
        resolved.node, partial(driver.solve, preview=preview), session.answer, answers
    )
    applied = [s for s in states if results[s.name].outcome is not Outcome.NOT_APPLICABLE]
    matrix = collect(facts, applied, observations.observed, results)
    other_facts = {key: value for key, value in matrix.items() if key not in _OF_DRIVER}
    allow = dict(resolved.allow)

    def blocks(version: str, module_type: str) -> tuple[str, ...]:
        chosen = compat.facts({"driver": version, "module_type": module_type})
        return tuple(
            f"blocked by compatibility rule {row.rule.id}: {row.rule.because.rstrip('.')}"
            for row in compat.check({**other_facts, **chosen}, allow=allow).blocks
        )

    platform = Platform(
        facts.distribution,
        facts.os_codename,
        facts.machine,
        tuple(sorted({gpu.device_id for gpu in facts.gpus})),
    )
    return Case(driver.request(), platform, solution, blocks)


def driver_of(states: Sequence[AnyState]) -> SolvedState[Any] | None:
    """The state whose packages a lock file pins; ``None`` where the policy has none."""
    return next((state for state in states if isinstance(state, SolvedState)), None)


@dataclass(slots=True)
class Solved:
    """Result for all nodes.

    Args:
        resolutions: by node.
        lock: the new lock.
        refused: by node, why it has no set.
    """

    resolutions: dict[str, Resolution]
    lock: Lock
    refused: dict[str, str]


def resolve_all(
    answered: Survey, old: Lock, *, update: Iterable[str] = (), absent_nodes: Iterable[str] = ()
) -> Solved:
    """Resolve every node. Nodes that were not queried keep their set.

    Args:
        answered: answers of the nodes.
        old: the current lock.
        update: nodes to update.
        absent_nodes: nodes to remove from the lock.
    """
    moving, before = frozenset(update), old.by_node()
    resolutions = {
        node: keeping.resolve(case, before.get(node), old.sets, update=node in moving)
        for node, case in answered.cases.items()
    }
    unsolved = {node: r.why for node, r in resolutions.items() if r.set is None}
    leaving = {*answered.skipped, *absent_nodes}
    sets = {node: locked for node, locked in before.items() if node not in leaving}
    sets |= {node: r.set for node, r in resolutions.items() if r.set is not None}
    return Solved(resolutions, merge_sets(sets), {**answered.failed, **unsolved})


def outdated_all(
    answered: Survey, old: Lock, month: str
) -> tuple[list[Outdated], Mapping[str, str]]:
    """Newer drivers by locked set, and per node why they are unknown."""
    before = old.by_node()
    sets: dict[object, Outdated] = {}
    troubles = {**answered.unreachable, **answered.failed}
    for node, case in answered.cases.items():
        locked = before.get(node)
        if locked is None:
            troubles[node] = "not in the lock file; add it with: gpustate driver solve"
        else:
            result = keeping.outdated(locked, case, month)
            sets.setdefault((locked, result.newer, result.notes), result)
    return list(sets.values()), troubles
