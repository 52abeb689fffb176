"""Plan, apply and drift as functions; the verbs of the same names call them too."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike
from typing import TYPE_CHECKING, Any

from gpustate import compat, policies, registry
from gpustate.api import saved
from gpustate.api.results import ApplyResult, DriftResult, PlanResult
from gpustate.api.sources import load_inventory, load_policy, lock_file
from gpustate.core.change import Disruption
from gpustate.core.inventory import Inventory
from gpustate.core.outcome import NodeResult, NodeStatus
from gpustate.core.policy import Policy
from gpustate.core.unknown_targets import describe_unknown_targets
from gpustate.engine import fleet
from gpustate.engine.events import Listener, ignore
from gpustate.engine.maintenance import NO_MAINTENANCE, Maintenance
from gpustate.errors import UsageError
from gpustate.plan import document as documents
from gpustate.plan.estimate import Schedule
from gpustate.resolver.checks import node_checks
from gpustate.rollout.options import SCHEDULERS, Schedulers

if TYPE_CHECKING:
    from gpustate.api.sources import InventorySource, PolicySource
    from gpustate.solve.lock import Lock

_UNTOUCHED = (NodeStatus.OK, NodeStatus.UNREACHABLE, NodeStatus.LOCKED)


def never() -> bool:
    """Nothing stops the run."""
    return False


def plan(
    policy: PolicySource,
    nodes: InventorySource,
    *,
    limit: str | None = None,
    exclude: str | None = None,
    lock: bool | str | PathLike[str] = True,
    remove: bool = False,
    forks: int = fleet.DEFAULT_FORKS,
    all_or_nothing: bool = False,
    estimate: bool = False,
    serial: Sequence[str] = (),
    schedulers: Schedulers = SCHEDULERS,
    events: Listener = ignore,
    stop: Callable[[], bool] = never,
    source: str = "",
    context: Mapping[str, Any] | None = None,
) -> PlanResult:
    """Show pending changes and their disruption per node; nothing is written on the nodes.

    Args:
        policy: the policy to plan.
        nodes: the inventory.
        limit, exclude: select nodes by Ansible's host patterns.
        lock: the lock file of ``gpustate solve``: ``True`` uses ``gpustate.lock`` beside the policy's
            file if it exists, ``False`` none, a path that file.
        remove: plan the removal of what the policy installed.
        forks: nodes processed in parallel.
        all_or_nothing: do not change a node if one of its states is refused or fails to plan.
        estimate: query how long such steps took on the nodes before, and estimate the time.
        serial: batch sizes that the estimate is for: ``("1", "10%")``.
        schedulers: how the nodes' schedulers are reached and workloads leave.
        events: called with events, one at a time, from the threads of the run.
        stop: polled between steps; once it returns true no new steps are started.
        source: name of the policy in documents; by default its file.
        context: origin of the document, see :mod:`gpustate.cli.context`.

    Raises:
        GpustateError: policy, inventory, lock file or rules are invalid; no node was reached.
    """
    inputs = _inputs(policy, nodes, limit=limit, exclude=exclude, lock=lock, source=source)
    effective = inputs.policy.with_ensure("absent") if remove else inputs.policy
    with schedulers.maintenance(inputs.inventory.nodes) as maintenance:
        result, sizes = _probe(
            inputs,
            effective,
            forks,
            all_or_nothing,
            estimate,
            serial,
            events,
            stop,
            forecast=True,
            maintenance=maintenance,
        )
    document = documents.plan_document(
        effective,
        inputs.source,
        result.nodes,
        run=result.run,
        created=now(),
        schedule=schedule(result, forks, sizes) if estimate else None,
        context=context,
    )
    _add_lock(document, inputs)
    return PlanResult(
        **_common(inputs, result), document=document, policy=effective, pending=result.pending
    )


def drift(
    policy: PolicySource,
    nodes: InventorySource,
    *,
    limit: str | None = None,
    exclude: str | None = None,
    lock: bool | str | PathLike[str] = True,
    forks: int = fleet.DEFAULT_FORKS,
    events: Listener = ignore,
    stop: Callable[[], bool] = never,
    source: str = "",
    context: Mapping[str, Any] | None = None,
) -> DriftResult:
    """Detect drift from the policy; nothing is written on the nodes.

    A node that an apply would refuse is compared as far as it can be. Parameters are those of
    :func:`plan`.

    Raises:
        GpustateError: policy, inventory, lock file or rules are invalid; no node was reached.
    """
    inputs = _inputs(policy, nodes, limit=limit, exclude=exclude, lock=lock, source=source)
    result, _ = _probe(inputs, inputs.policy, forks, False, False, (), events, stop, forecast=False)
    result.drift = True
    document = documents.plan_document(
        inputs.policy, inputs.source, result.nodes, run=result.run, created=now(), context=context
    )
    _add_lock(document, inputs)
    return DriftResult(**_common(inputs, result), document=document)


def apply(
    policy: PolicySource | PlanResult | Mapping[str, Any],
    nodes: InventorySource,
    *,
    limit: str | None = None,
    exclude: str | None = None,
    lock: bool | str | PathLike[str] = True,
    remove: bool = False,
    forks: int = fleet.DEFAULT_FORKS,
    max_disruption: Disruption = Disruption.REBOOT,
    all_or_nothing: bool = False,
    serial: Sequence[str] = (),
    max_failures: int = 0,
    rollback_on_failure: bool = False,
    reason: str = "",
    schedulers: Schedulers = SCHEDULERS,
    events: Listener = ignore,
    stop: Callable[[], bool] = never,
    started: Callable[[str], None] | None = None,
    run: str = "",
    source: str = "",
    context: Mapping[str, Any] | None = None,
    read_policy: Callable[[str], Policy] = load_policy,
    partly_applied: bool = False,
) -> ApplyResult:
    """Apply a policy, or a plan exactly as it was made, without confirmation.

    Args:
        policy: a policy, a result of :func:`plan`, or a saved plan: its file, or its document.
            A node whose observed state is not the one a plan was made from is refused.
        nodes, limit, exclude, lock, forks, all_or_nothing, events, stop, source, context: as for
            :func:`plan`. A plan includes the lock file that it was made with.
        remove: remove what the policy installed.
        max_disruption: refuse nodes whose plan may exceed it.
        serial: batch sizes, ``("1", "10%", "50%")``; a batch in which a node fails is the last one.
        max_failures: no further node is begun once so many failed; 0: see ``serial``.
        rollback_on_failure: a node whose change failed goes back to before the run; where that ends the run,
            the other nodes of its batch that were changed go back, too.
        reason: a ticket or reason, for the nodes' leases and the records of the run.
        schedulers: how the nodes' schedulers are reached and workloads leave.
        started: called with the id of the run once everything is checked, before the first node is reached.
        run: id of the run; generated by default.
        read_policy: loads the policy of a saved plan, for the secrets that plans do not contain.
        partly_applied: the plan was applied in part already, so the nodes are not compared with its
            observations; the announced disruption of each state is still enforced.

    Raises:
        GpustateError: policy, plan, inventory, lock file or rules are invalid; no node was reached.
    """
    document = _plan_of(policy)
    if document is None:
        inputs = _inputs(policy, nodes, limit=limit, exclude=exclude, lock=lock, source=source)
        effective = inputs.policy.with_ensure("absent") if remove else inputs.policy
    else:
        name = source or (str(policy) if isinstance(policy, str | PathLike) else "plan")
        effective = (
            policy.policy
            if isinstance(policy, PlanResult)
            else saved.policy_of(document, read_policy, name)
        )
        targets = saved.only_planned(nodes_of(nodes, limit, exclude), document, name)
        effective = saved.as_locked(effective, targets, document, name)
        inputs = _Inputs(effective, targets, name, None, targets.notes)
    request = run_request(
        effective,
        inputs.inventory,
        apply=True,
        forks=forks,
        max_disruption=max_disruption,
        planned=documents.planned_observations(document)
        if document and not partly_applied
        else None,
        announced=documents.announced_disruptions(document) if document else None,
        plan_id=str(document["id"]) if document else "",
        serial=batch_sizes(serial, effective.pace, len(inputs.inventory.nodes)),
        max_failures=max_failures,
        rollback_on_failure=rollback_on_failure,
        run=run or fleet.new_run_id(),
        ticket=" ".join(reason.split()),
        all_or_nothing=all_or_nothing,
    )
    fleet.resolve_all(request)
    fleet.batches((), request.serial)
    why = {"run": request.run, "person": fleet.controller().name, "text": request.ticket}
    with schedulers.maintenance(inputs.inventory.nodes, **why) as maintenance:
        request.maintenance = maintenance
        if started is not None:
            started(request.run)
        result = fleet.run(request, events, stop)
    outcome = documents.result_document(
        result.nodes,
        run=result.run,
        created=now(),
        verb="remove" if remove else "apply",
        summary=result.summary(),
        exit_code=result.exit_code,
        notes=effective.notes,
        skipped=result.skipped,
        context=_retried(context, document, result.nodes),
    )
    return ApplyResult(**_common(inputs, result), document=outcome, skipped=tuple(result.skipped))


def batch_sizes(requested: Sequence[str], pace: Sequence[str], count: int) -> tuple[str, ...]:
    """Sizes of batches: the requested ones, else the policy's limit for this number of nodes."""
    if requested:
        return tuple(requested)
    if not pace or not count:
        return ()
    shares = (
        -(-count * int(size[:-1]) // 100) if size.endswith("%") else int(size) for size in pace
    )
    return (str(min(shares)),)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Inputs of a run, loaded and checked."""

    policy: Policy
    inventory: Inventory
    source: str
    lock: Lock | None
    notes: tuple[str, ...]


def _inputs(
    policy: Any,
    nodes: InventorySource,
    *,
    limit: str | None,
    exclude: str | None,
    lock: bool | str | PathLike[str],
    source: str,
) -> _Inputs:
    """Load all inputs, in the order in which the command line reports errors."""
    compat.load()
    if isinstance(policy, Policy):
        effective, name = policy, source or policy.name or "policy"
    else:
        effective, name = load_policy(policy), source or str(policy)
    targets = nodes_of(nodes, limit, exclude)
    notes = (*targets.notes, *describe_unknown_targets(effective, targets, name))
    file = lock_file(name, lock)
    if file is None:
        return _Inputs(effective, targets, name, None, notes)
    from gpustate.resolver import lock_layers

    lock_data = lock_layers.load(file)
    effective = lock_layers.onto(effective, targets, lock_data, file, registry.names())
    return _Inputs(effective, targets, name, lock_data, notes)


def nodes_of(nodes: InventorySource, limit: str | None, exclude: str | None) -> Inventory:
    """The nodes of an inventory, or of its source."""
    if not isinstance(nodes, Inventory):
        return load_inventory(nodes, limit=limit, exclude=exclude)
    if limit is None and exclude is None:
        return nodes
    raise UsageError(
        "limit and exclude need an inventory source, not an Inventory",
        fix="pass them to load_inventory instead",
    )


def _plan_of(policy: object) -> Mapping[str, Any] | None:
    """The document of a plan, if one is to be applied."""
    if isinstance(policy, PlanResult | saved.Plan):
        return saved.document_of(policy)
    if isinstance(policy, Mapping):
        return documents.read_plan(policy, place="plan")
    if isinstance(policy, str | PathLike) and policies.kind(str(policy)) == policies.Kind.PLAN:
        return saved.read(str(policy))
    return None


def _probe(
    inputs: _Inputs,
    policy: Policy,
    forks: int,
    all_or_nothing: bool,
    timings: bool,
    serial: Sequence[str],
    events: Listener,
    stop: Callable[[], bool],
    *,
    forecast: bool,
    maintenance: Maintenance = NO_MAINTENANCE,
) -> tuple[fleet.FleetResult, tuple[str, ...]]:
    """Probe and plan all nodes."""
    sizes = batch_sizes(serial, policy.pace, len(inputs.inventory.nodes))
    fleet.batches((), sizes)
    request = run_request(
        policy,
        inputs.inventory,
        forks=forks,
        timings=timings,
        forecast=forecast,
        maintenance=maintenance,
        all_or_nothing=all_or_nothing,
    )
    return fleet.run(request, events, stop), sizes


def run_request(policy: Policy, inventory: Inventory, **options: Any) -> fleet.Request:
    """A request with the checks, and the states of images, that every run of a policy has.

    Args:
        policy, inventory: what should hold, and where.
        options: other fields of the request.
    """
    return fleet.Request(
        policy,
        inventory,
        known=registry.names(),
        last_in_image=_last_in_image(inventory),
        checks=node_checks(policy),
        **options,
    )


def _last_in_image(inventory: Inventory) -> fleet.LastInImage:
    """The state that comes last on mounted images: their first boot."""
    if not any(node.connection.kind == "chroot" for node in inventory.nodes):
        return ()
    from gpustate.bake.first_boot import first_boot_of

    return (first_boot_of,)


def schedule(result: fleet.FleetResult, forks: int, sizes: Sequence[str]) -> Schedule:
    """How the plan would be executed."""
    words = tuple(word.strip() for word in sizes)
    batches = fleet.batches([node.name for node in result.nodes], words) if words else []
    return Schedule(forks, words, tuple(tuple(batch) for batch in batches))


def _common(inputs: _Inputs, result: fleet.FleetResult) -> dict[str, Any]:
    return {
        "run": result.run,
        "nodes": tuple(result.nodes),
        "exit_code": result.exit_code,
        "summary": result.summary(),
        "interrupted": result.interrupted,
        "notes": inputs.notes,
    }


def _add_lock(document: dict[str, Any], inputs: _Inputs) -> None:
    """Add the lock file to a plan's document."""
    if inputs.lock is not None:
        from gpustate.solve import lock as locks

        document["lock"] = json.loads(locks.to_text(inputs.lock))


def _retried(
    context: Mapping[str, Any] | None,
    document: Mapping[str, Any] | None,
    nodes: Sequence[NodeResult],
) -> Mapping[str, Any] | None:
    """The context of a result; nodes that a saved plan changed in part need a new plan."""
    if not context or document is None or all(node.status in _UNTOUCHED for node in nodes):
        return context
    before = document.get("context") or context
    return {**context, "retry": before.get("retry", context.get("retry"))}


def now() -> str:
    """The present time in UTC, for documents."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
