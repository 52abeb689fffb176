"""Rollback of nodes to before a run, planned and applied like a policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpustate import clock, compat, registry
from gpustate.api import functions
from gpustate.api.results import ApplyResult, PlanResult
from gpustate.api.rolling import roll_out
from gpustate.core.change import Disruption
from gpustate.core.drain import DrainPolicy, drain_policy
from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.core.node import Node
from gpustate.core.outcome import NodeResult, NodeStatus
from gpustate.core.policy import Policy, Resolved
from gpustate.core.state import AnyState
from gpustate.engine import before, fleet
from gpustate.engine.events import Listener, ignore
from gpustate.engine.kept import KeptPackages, KeptPackagesQuery
from gpustate.engine.maintenance import Maintenance
from gpustate.errors import PolicyError, RefusedError, UsageError
from gpustate.formats.masking import keep_readable
from gpustate.plan import document as documents
from gpustate.plan.make import Observations
from gpustate.rollout.options import SCHEDULERS, Schedulers
from gpustate.rollout.strategy import Strategy

if TYPE_CHECKING:
    from gpustate.api.sources import InventorySource

_KEPT = "from packages that are kept on the node, if no repository offers them by then"
_LIST = "list the runs of nodes: gpustate rollback --list"
#: States of a node and the order in which they are applied.
_Plans = list[tuple[Resolved, list[AnyState]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan(PlanResult):
    """How nodes would go back; :func:`rollback` takes it.

    Args:
        inventory: the nodes.
        ways: by node, the states that take it back.
        kept: by node, the packages that it keeps for that.
        stays: by node, states that cannot go back, each with the reason.
    """

    inventory: Inventory = field(repr=False)
    ways: Mapping[str, before.WayBack] = field(repr=False)
    plans: _Plans = field(repr=False)
    kept: Mapping[str, KeptPackages] = field(repr=False)

    @property
    def stays(self) -> dict[str, tuple[str, ...]]:
        """States that the run changed and that cannot go back, with the reason, by node."""
        return {name: way.stays for name, way in self.ways.items() if way.stays}


def runs_of(
    inventory: Inventory, forks: int = fleet.DEFAULT_FORKS
) -> tuple[dict[str, tuple[before.RunBefore, ...]], dict[str, str]]:
    """The runs that changed nodes, by node, oldest first; and why the other nodes could not be asked."""
    answers = fleet.question(inventory.nodes, forks, lambda node: node.query(before.BeforeQuery()))
    runs = {node.name: found for node, found, _ in answers if found is not None}
    return runs, {node.name: str(error) for node, found, error in answers if found is None}


def _records_and_kept(
    node: Node,
) -> tuple[tuple[before.RunBefore, ...], KeptPackages]:
    return node.query(before.BeforeQuery()), node.query(KeptPackagesQuery())


def plan_rollback(
    nodes: InventorySource,
    run: str = "",
    *,
    limit: str | None = None,
    exclude: str | None = None,
    forks: int = fleet.DEFAULT_FORKS,
    all_or_nothing: bool = False,
    serial: Sequence[str] = (),
    schedulers: Schedulers = SCHEDULERS,
    events: Listener = ignore,
    stop: Callable[[], bool] = functions.never,
    context: Mapping[str, Any] | None = None,
) -> RollbackPlan:
    """Show what takes nodes back to before a run; nothing is written on the nodes.

    Args:
        nodes: the inventory.
        run: the run to undo, with all that followed it on a node; empty: the last run that changed
            the node, or the one that the last rollback undid.
        limit, exclude, forks, all_or_nothing, serial, schedulers, events, stop, context: as for
            :func:`gpustate.api.plan`. What they leave open, how workloads leave and how many nodes go at a
            time, is as in the policies of the runs that are undone.

    Raises:
        GpustateError: the inventory is invalid, or no node knows the run.
    """
    compat.load()
    inventory = functions.nodes_of(nodes, limit, exclude)
    names = registry.names()
    keep_readable(names)
    answers = fleet.question(inventory.nodes, forks, _records_and_kept)
    runs = {node.name: found[0] for node, found, _ in answers if found is not None}
    kept = {node.name: found[1] for node, found, _ in answers if found is not None}
    if run and runs and not any(before.target(found, run) for found in runs.values()):
        raise UsageError(f"no run {run!r} has changed these nodes", fix=_LIST)
    ways = {name: _way(found, run) for name, found in runs.items()}
    plans = [_planned(node, ways.get(node.name), names) for node in inventory.nodes]
    drains, pace = drains_of(ways), pace_of(ways)
    sizes = functions.batch_sizes(serial, pace, len(inventory.nodes))
    fleet.batches((), sizes)
    with schedulers.maintenance(inventory, drains=drains) as maintenance:
        request = _request(inventory, plans, ways, forks, maintenance)
        request.forecast = True
        request.all_or_nothing = all_or_nothing
        result = fleet.run(request, events, stop)
    _tell(result.nodes, ways, kept)
    policy = Policy(*_different(plans), name=f"before {run}" if run else "before", pace=pace)
    document = documents.plan_document(
        policy,
        "rollback",
        result.nodes,
        run=result.run,
        created=clock.now(),
        context=context,
    )
    return RollbackPlan(
        **functions.common_fields(result, inventory.notes),
        document=document,
        policy=policy,
        pending=result.pending,
        inventory=inventory,
        ways=ways,
        plans=plans,
        kept=kept,
    )


def rollback(
    planned: RollbackPlan,
    *,
    forks: int = fleet.DEFAULT_FORKS,
    max_disruption: Disruption = Disruption.REBOOT,
    all_or_nothing: bool = False,
    serial: Sequence[str] = (),
    max_failures: int = 0,
    canary: str = "",
    soak: str = "",
    soak_alerts: str = "",
    window: str = "",
    spread: str = "",
    soak_pods: bool = False,
    reason: str = "",
    schedulers: Schedulers = SCHEDULERS,
    events: Listener = ignore,
    stop: Callable[[], bool] = functions.never,
    started: Callable[[str], None] | None = None,
    run: str = "",
    context: Mapping[str, Any] | None = None,
) -> ApplyResult:
    """Take nodes back as planned, without confirmation.

    A node whose observed state is not the one of the plan is refused.

    Args:
        planned: of :func:`plan_rollback`.
        forks, max_disruption, all_or_nothing, serial, max_failures, canary, soak, soak_alerts, window, spread, soak_pods, reason,
            schedulers: as for :func:`gpustate.api.apply`.
        events, stop, started, run, context: likewise.

    Raises:
        GpustateError: options are invalid; no node was reached.
    """
    inventory, ways = planned.inventory, planned.ways
    request = _request(inventory, planned.plans, ways, forks)
    request.apply = True
    request.run = run or fleet.new_run_id()
    request.max_disruption = max_disruption
    request.all_or_nothing, request.forecast = all_or_nothing, True
    request.planned = documents.planned_observations(planned.document)
    request.announced = documents.announced_disruptions(planned.document)
    request.ticket = " ".join(reason.split())
    request.undoes = {name: way.run for name, way in ways.items()}
    sizes = functions.batch_sizes(serial, request.policy.pace, len(inventory.nodes))
    waves = (sizes, max_failures, canary, soak, soak_alerts, window, spread)
    strategy = Strategy(*waves, soak_pods=soak_pods)
    result = roll_out(request, strategy, schedulers, events, stop, started)
    _tell(result.nodes, ways, planned.kept)
    for node in result.nodes:
        if node.status is NodeStatus.OK and node.name in ways:
            way = ways[node.name]
            remains = before.remains(way, f"run {way.run}", node.observed)
            node.notes += [note for note in remains if note not in node.notes]
    outcome = documents.result_document(
        result.nodes,
        run=result.run,
        created=clock.now(),
        verb="rollback",
        summary=result.summary(),
        exit_code=result.exit_code,
        notes=(f"stopped: {result.stopped}",) if result.stopped else (),
        skipped=result.skipped,
        context=context,
    )
    return ApplyResult(
        **functions.common_fields(result, inventory.notes),
        document=outcome,
        skipped=tuple(result.skipped),
        stopped=result.stopped,
    )


def drains_of(ways: Mapping[str, before.WayBack]) -> dict[str, DrainPolicy]:
    """How the workloads of nodes leave: as in the runs that are undone."""
    found: dict[str, DrainPolicy] = {}
    for name, way in ways.items():
        with suppress(PolicyError):  # of a newer release
            found[name] = drain_policy(way.drain, {}) or DrainPolicy()
    return found


def pace_of(ways: Mapping[str, before.WayBack]) -> tuple[str, ...]:
    """Batch sizes of the policies of the runs that are undone; none of them is exceeded."""
    return tuple(dict.fromkeys(size for way in ways.values() for size in way.pace))


def _way(records: Sequence[before.RunBefore], run: str) -> before.WayBack:
    undone = before.target(records, run)
    kinds: dict[str, type[AnyState]] = {}
    for name in {name for record in records for name in record.states}:
        found = registry.find(name)
        if found is not None:
            kinds[name] = found
    return before.way_back(records, undone, kinds)


def _planned(
    node: InventoryNode, way: before.WayBack | None, names: Collection[str]
) -> tuple[Resolved, list[AnyState]]:
    """The states of one node; none for one that has nothing to go back from, or that could not be asked."""
    states = way.states if way is not None else ()
    return Resolved(node.going_back(), states), fleet.ordered_back(states, names)


def _request(
    inventory: Inventory,
    plans: _Plans,
    ways: Mapping[str, before.WayBack],
    forks: int,
    maintenance: Maintenance | None = None,
) -> fleet.Request:
    def untouched(states: Sequence[AnyState], observations: Observations) -> RefusedError | None:
        way = ways.get(observations.view.name)
        changed = before.changed_since(way, observations) if way is not None else ()
        if not changed:
            return None
        return RefusedError(
            f"changed by something else since the run: {', '.join(changed)}",
            fix="restore the file's content of the run, for example by applying its policy, and run again",
        )

    request = fleet.Request(
        Policy(pace=pace_of(ways)),
        inventory,
        known=registry.names(),
        forks=forks,
        plans=plans,
        checks=(untouched,),
        drains=drains_of(ways),
    )
    return request if maintenance is None else replace(request, maintenance=maintenance)


def _tell(
    nodes: Sequence[NodeResult],
    ways: Mapping[str, before.WayBack],
    kept: Mapping[str, KeptPackages],
) -> None:
    """Add to nodes which run they go back from, where packages come from, and what cannot go back."""
    for node in nodes:
        way = ways.get(node.name)
        if way is None:
            continue
        if not way.run:
            node.notes.append("nothing to roll back: no run of gpustate is recorded here")
            continue
        lines = [f"goes back to before run {way.run}"]
        if names := kept[node.name].needed(way.states):
            lines.append(f"{_KEPT}: {', '.join(names)}")
        lines += (*way.notes, *way.stays)
        node.notes[:0] = [line for line in lines if line not in node.notes]


def _different(plans: _Plans) -> list[AnyState]:
    """One state of each name, for the document."""
    found: dict[str, AnyState] = {}
    for _, states in plans:
        for state in states:
            found.setdefault(state.name, state)
    return list(found.values())
