"""Resolve the driver sets of an inventory: query the nodes, solve once for identical nodes.

Every node is probed as for a plan, so that compatibility rules see the same facts. Equal package indexes are
read from one node only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpustate import compat
from gpustate.compat.collect import collect
from gpustate.compat.facts import Value
from gpustate.core.inventory import InventoryNode
from gpustate.core.node import Node
from gpustate.core.outcome import Outcome
from gpustate.core.policy import Resolved
from gpustate.core.state import AnyState
from gpustate.engine import fleet
from gpustate.engine.probing import probe_states
from gpustate.errors import ConnectionFailed, GpustateError, PolicyError, RefusedError
from gpustate.plan import make
from gpustate.remote.session import Session
from gpustate.resolver.deb_indexes import (
    DebDriverQuery,
    OtherPackagesQuery,
    PackageListsQuery,
    with_pins,
)
from gpustate.resolver.rpm_indexes import OtherRpmsQuery, RpmDriverQuery, with_others
from gpustate.resolver.rpm_repositories import Repositories, RepositoriesQuery
from gpustate.solve import keeping
from gpustate.solve.keeping import Outdated, Resolution
from gpustate.solve.lock import Lock, Platform, merge_sets
from gpustate.solve.packages import Package, Universe, unresolved_names
from gpustate.solve.problem import Problem
from gpustate.solve.request import DriverRequest, FabricManagerState, SolvedState
from gpustate.solve.solver import describe_conflict
from gpustate.states.repository.base import RepositoryState

_ADD = "add DriverInstalled() to it"
#: Facts of the matrix that depend on the chosen driver.
_OF_DRIVER = ("driver", "module_type", "module_source", "fabric_manager", "imex", "nscq", "nvsdm")


@dataclass(frozen=True, slots=True)
class Case:
    """The input of the solver for one node, without packages.

    Args:
        driver: the state that installs it.
        wanted: the policy's request.
        situation: platform of the node.
        gpus: on PCI.
        os_id, kernels, scheme: as in :class:`~gpustate.solve.problem.Problem`.
        facts: for compatibility rules, without the driver.
        allow: accepted compatibility rules.
        lists: digest of its package indexes.
        repositories: of rpm packages; ``None`` on a node with apt.
    """

    driver: SolvedState[Any] = field(compare=False)
    wanted: DriverRequest
    situation: Platform
    gpus: tuple[Any, ...] = field(compare=False)
    os_id: str
    kernels: tuple[str, ...]
    scheme: str
    facts: frozenset[tuple[str, Value]]
    allow: frozenset[tuple[str, str]]
    lists: str
    repositories: Repositories | None = field(default=None, compare=False)

    @property
    def index(self) -> tuple[str, tuple[str, ...]]:
        """Key of the package index that the node needs."""
        return self.lists, self.kernels if self.wanted.precompiled else ()

    def problem(self, universe: Universe) -> Problem:
        """The problem, with the packages of the node's repositories."""
        return Problem(
            self.wanted,
            universe,
            self.os_id,
            self._modules,
            self._blocks,
            self.kernels,
            self.scheme,
        )

    def _modules(self, branch: int, wanted: str) -> tuple[str | None, str]:
        return self.driver.modules_for(self.gpus, branch, wanted)

    def _blocks(self, version: str, kind: str) -> tuple[tuple[str, str], ...]:
        known = dict(self.facts) | compat.facts({"driver": version, "module_type": kind})
        if self.wanted.fabric_manager:
            known |= compat.facts({"fabric_manager": version})
        report = compat.check(known, allow=dict(self.allow))
        return tuple((r.rule.id, r.rule.because.rstrip(".")) for r in report.blocks)


@dataclass(slots=True)
class Survey:
    """Answers of all nodes.

    Args:
        cases: by node.
        universes: packages by index key.
        unreachable, failed: by node, why.
        skipped: by node, why it gets no driver.
    """

    cases: dict[str, Case] = field(default_factory=dict[str, Case])
    universes: dict[object, Universe] = field(default_factory=dict[object, Universe])
    unreachable: dict[str, str] = field(default_factory=dict[str, str])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    skipped: dict[str, str] = field(default_factory=dict[str, str])

    def problem(self, node: str) -> Problem:
        """The problem of a node."""
        case = self.cases[node]
        return case.problem(self.universes[case.index])


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
    found = Survey()

    def one(session: Session) -> Case | str:
        return _case(*plans[session.node.name], session)

    for node, case, error in fleet.each(request.inventory.nodes, request.forks, one):
        if error is not None:
            _failed(found, node.name, error)
        elif isinstance(case, str):
            found.skipped[node.name] = case
        elif case is not None:
            found.cases[node.name] = case
    _read_indexes(found, request)
    return found


def _failed(found: Survey, name: str, error: GpustateError) -> None:
    where = found.unreachable if isinstance(error, ConnectionFailed) else found.failed
    where[name] = str(error)


def _case(resolved: Resolved, states: Sequence[AnyState], session: Session) -> Case | str:
    """The case of one node, or why it gets no driver."""
    apt, dnf = PackageListsQuery(), RepositoriesQuery()
    observations, facts, known = probe_states(resolved.node, states, session.answer, (apt, dnf))
    driver = driver_of(states)
    if driver is None:
        raise PolicyError("the policy has no driver", fix=_ADD)
    if driver.name in observations.errors:
        raise RefusedError(observations.errors[driver.name])
    results = make.make(states, observations)
    result = results[driver.name]
    if result.outcome is Outcome.NOT_APPLICABLE or driver.absent:
        return result.reason or "the policy removes the driver here"
    digest, repositories = apt.parse(known[apt]).digest, None
    if not digest:
        repositories = dnf.parse(known[dnf]).checked()
        digest = repositories.digest
    if not digest:
        raise RefusedError(
            "neither apt nor dnf on this node", fix="exclude the node from the driver with only="
        )
    for source in states:
        serves = isinstance(source, RepositoryState) and driver.name in source.serves
        if serves and results[source.name].plan.changes:
            raise RefusedError(
                f"the policy's {source.name} is not configured here yet, so its packages are unknown",
                fix=f"apply {source.name} first",
            )
    applied = [s for s in states if results[s.name].outcome is not Outcome.NOT_APPLICABLE]
    matrix = collect(facts, applied, observations.observed, results)
    fabric_manager = any(
        state.is_needed(facts, observations.observed.get(state.name))
        for state in applied
        if isinstance(state, FabricManagerState) and not state.absent
    )
    installed = driver.installed_set(observations.observed[driver.name])
    return Case(
        driver=driver,
        wanted=replace(driver.request(), fabric_manager=fabric_manager),
        situation=Platform(
            facts.distribution,
            facts.os_codename,
            facts.machine,
            tuple(sorted({gpu.device_id for gpu in facts.gpus})),
        ),
        gpus=facts.gpus,
        os_id=facts.os_id,
        kernels=installed.kernels,
        scheme=installed.scheme,
        facts=frozenset((k, v) for k, v in matrix.items() if k not in _OF_DRIVER),
        allow=frozenset(resolved.allow.items()),
        lists=digest,
        repositories=repositories,
    )


def driver_of(states: Sequence[AnyState]) -> SolvedState[Any] | None:
    """The state whose packages the solver chooses; ``None`` where the policy has none."""
    return next((state for state in states if isinstance(state, SolvedState)), None)


def _read_indexes(found: Survey, request: fleet.Request) -> None:
    """Read each index once: from the first node that has it, or the next when that one fails."""
    waiting: dict[object, list[InventoryNode]] = {}
    for node in request.inventory:
        if node.name in found.cases:
            waiting.setdefault(found.cases[node.name].index, []).append(node)
    while waiting:
        nodes = [rows[0] for rows in waiting.values()]

        def required_packages(node: Node) -> tuple[Package, ...]:
            case = found.cases[node.name]
            if case.repositories is not None:
                return _offers_of_rpms(node, case.repositories)
            return _offers(node, case.index[1])

        for node, packages, error in fleet.question(nodes, request.forks, required_packages):
            index = found.cases[node.name].index
            if error is None:
                found.universes[index] = Universe(packages or ())
                del waiting[index]
                continue
            _failed(found, node.name, error)
            del found.cases[node.name]
            waiting[index].pop(0)
            if not waiting[index]:
                del waiting[index]


def _offers(node: Node, kernels: tuple[str, ...]) -> tuple[Package, ...]:
    mine = node.query(DebDriverQuery(kernels))
    if not mine:
        return ()
    names = tuple(sorted({one.name for one in mine}))
    return with_pins(mine, node.query(OtherPackagesQuery(unresolved_names(mine), names)))


def _offers_of_rpms(node: Node, repositories: Repositories) -> tuple[Package, ...]:
    mine = node.query(RpmDriverQuery(repositories))
    if not mine:
        return ()
    others: tuple[Package, ...] = node.query(OtherRpmsQuery(repositories, unresolved_names(mine)))
    return with_others(mine, others)


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
    found: Survey, old: Lock, *, update: Iterable[str] = (), gone: Iterable[str] = ()
) -> Solved:
    """Resolve every node, identical nodes once. Nodes that were not queried keep their set.

    Args:
        found: answers of the nodes.
        old: the current lock.
        update: nodes to update.
        gone: nodes to remove from the lock.
    """
    moving = frozenset(update)
    had = old.by_node()
    known: dict[object, Resolution | str] = {}
    resolutions: dict[str, Resolution] = {}
    refused: dict[str, str] = dict(found.failed)
    for node, case in found.cases.items():
        key = (case, had.get(node), node in moving)
        if key not in known:
            known[key] = _resolve(found.problem(node), case, had.get(node), old, node in moving)
        answer = known[key]
        if isinstance(answer, str):
            refused[node] = answer
        else:
            resolutions[node] = answer
            if answer.set is None and answer.unsolved is not None:
                refused[node] = describe_conflict(answer.unsolved)
    leaving = {*found.skipped, *gone}
    sets = {node: one for node, one in had.items() if node not in leaving}
    sets |= {node: one.set for node, one in resolutions.items() if one.set is not None}
    return Solved(resolutions, merge_sets(sets, compat.load().digest), refused)


def _resolve(problem: Problem, case: Case, had: Any, old: Lock, update: bool) -> Resolution | str:
    try:
        return keeping.resolve(problem, case.situation, had, old.sets, update=update)
    except RefusedError as error:
        return str(error)


def outdated_all(found: Survey, old: Lock, month: str) -> tuple[list[Outdated], Mapping[str, str]]:
    """Newer drivers by locked set, and per node why they are unknown."""
    had = old.by_node()
    done: dict[object, Outdated] = {}
    troubles = {**found.unreachable, **found.failed}
    for node, case in found.cases.items():
        one = had.get(node)
        if one is None:
            troubles[node] = "not in the lock file; add it with: gpustate solve"
        elif (one, case) not in done:
            try:
                done[one, case] = keeping.outdated(one, found.problem(node), month)
            except RefusedError as error:
                troubles[node] = str(error)
    return list(done.values()), troubles
