"""Apply a request to its nodes as a rollout: waves, checks between them, pause and abort."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpustate import clock, registry
from gpustate.api.results import ApplyResult
from gpustate.core.change import Disruption
from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.core.node import Node
from gpustate.core.outcome import NodeResult, NodeStatus
from gpustate.core.policy import Policy, build, parameters
from gpustate.diagnosis import chain_probe, health
from gpustate.engine import fleet
from gpustate.engine.events import Event, Listener
from gpustate.engine.maintenance import out_of_service
from gpustate.formats import quarantine, xids
from gpustate.package_sets.checks import node_checks
from gpustate.plan import document as documents
from gpustate.probes.gpu_facts import GpuFacts
from gpustate.rollout.access import Accesses
from gpustate.rollout.board import RecordBoard
from gpustate.rollout.by_label import ByLabel
from gpustate.rollout.decide import Rollout
from gpustate.rollout.maintenance import ScheduledMaintenance
from gpustate.rollout.options import Schedulers
from gpustate.rollout.signals import Signals
from gpustate.rollout.slots import allowed
from gpustate.rollout.strategy import MAX_UNAVAILABLE, Strategy
from gpustate.rollout.waves import Check, Waves, no_check


def roll_out(
    request: fleet.Request,
    strategy: Strategy,
    schedulers: Schedulers,
    events: Listener,
    stop: Callable[[], bool],
    started: Callable[[str], None] | None,
    access: Accesses | None = None,
    labelled: ByLabel | None = None,
    changing: Mapping[str, Disruption] | None = None,
) -> fleet.FleetResult:
    """Run a request, in waves if it costs ``drain`` or more or they are asked for.

    Args:
        request: with its run's id.
        strategy: how the rollout goes through the nodes.
        schedulers: how they are reached.
        events, stop, started: as for :func:`gpustate.api.apply`.
        access: to the schedulers; by default one of its own.
        labelled: what labels of Nodes select.
        changing: by a plan, what it costs the nodes that change; ``None``: the nodes are looked at first, if it matters.

    Raises:
        GpustateError: the strategy, an inventory variable or a cluster is invalid; no node was reached.
    """
    signals, person = Signals(), fleet.controller().name
    strategy = strategy.beside(request.policy.rollout)
    with schedulers.maintenance(
        request.inventory,
        request.policy.drain,
        drains=request.drains,
        access=access,
        mig=labelled.mig if labelled is not None else None,
        run=request.run,
        person=person,
        text=request.ticket,
        signals=signals,
        max_unavailable=strategy.max_unavailable or MAX_UNAVAILABLE,
    ) as maintenance:
        request.maintenance = maintenance
        scheduled = maintenance if isinstance(maintenance, ScheduledMaintenance) else None
        scheduler_facts: dict[str, Any] = {}
        if scheduled is not None:
            held = scheduled.held() if len(request.inventory.nodes) > 1 else ()
            scheduler_facts = {"labels": scheduled.labels, "held": held}

        def planned(changing: Mapping[str, Disruption] | None) -> Rollout:
            now_s = time.time()
            return strategy.rollout(
                request.inventory, request.forks, now_s, **scheduler_facts, changing=changing
            )

        several = len(request.inventory.nodes) > 1
        unknown = several and changing is None and not strategy.serial
        rollout = planned(changing)
        pods = schedulers.kubeconfig if strategy.soak_pods else None
        check: Check = no_check
        if strategy.soak:
            check = soak_check(request, stop, pods)

        def emit(text: str) -> None:
            events(Event("", "rollout", text))

        def announce(text: str) -> None:
            events(Event("", "wave", text))

        if scheduled is not None and strategy.watched:
            scheduled.enter(emit, stop)
        boards = (RecordBoard(request.run),) if started is not None else ()
        request.turns = Waves(
            rollout,
            request.run,
            person,
            check=check,
            signals=signals,
            boards=boards,
            say=emit,
            announce=announce,
            after=labelled.ended if labelled is not None else _nothing,
            survey=planned if unknown else None,
        )
        if started is not None:
            started(request.run)
        try:
            result = fleet.run(request, events, stop)
            if scheduled is not None:
                _name_left_held(scheduled, request.inventory, result.nodes)
            return result
        finally:
            for board in boards:
                board.publish("")


def _name_left_held(
    maintenance: ScheduledMaintenance, inventory: Inventory, results: Sequence[NodeResult]
) -> None:
    """Note on nodes that have not ended well that a run, which may be another one, has left them out of service."""
    failed_results = {
        result.name: result
        for result in results
        if result.status is not NodeStatus.OK and not out_of_service(result)
    }
    hosts = {
        node.name: node.connection.host for node in inventory.nodes if node.name in failed_results
    }
    for name, words in maintenance.left_held(hosts) if failed_results else ():
        failed_results[name].notes.append(words)


def _nothing(_: NodeResult) -> None:
    """Nothing is recorded."""


def validation(policy: Policy) -> Policy | None:
    """The validators of a policy, made to run again; ``None``: it has none."""
    validators = [state for state in policy.states if state.validating]
    forced = [
        build(type(s), {**parameters(s), "force": True}) if "force" in type(s).model_fields else s
        for s in validators
    ]
    return policy.with_states(*forced) if forced else None


def soak_check(request: fleet.Request, stop: Callable[[], bool], pods: str | None = None) -> Check:
    """Checks nodes of a request again: its validator, and what the kernel log and NVML say of their GPUs.

    Args:
        request, stop: of the run.
        pods: run a pod with a GPU at the end, with this kubeconfig; empty: the inventory's variable counts; ``None``: none.

    Raises:
        GpustateError: a kubeconfig is invalid.
    """
    policy = validation(request.policy)
    run_pods = _pods_of(request, pods, stop) if pods is not None else None

    def check(ages: Mapping[str, float], last: bool) -> Mapping[str, str]:
        nodes = tuple(node for node in request.inventory.nodes if node.name in ages)
        inventory = replace(request.inventory, nodes=nodes)
        bad: dict[str, str] = {}
        if policy is not None:
            result = fleet.run(
                fleet.Request(
                    policy,
                    inventory,
                    apply=True,
                    known=registry.names(),
                    forks=request.forks,
                    run=fleet.new_run_id(),
                    ticket=f"soak time of {request.run}",
                    checks=node_checks(policy),
                ),
                stop=stop,
            )
            bad = {
                node.name: node.reason or node.status.value
                for node in result.nodes
                if node.exit_code
            }
        healthy = [node for node in nodes if node.name not in bad]
        start_s = time.monotonic()

        def gpus(node: Node) -> str:
            return gpu_failures(node, ages[node.name] + time.monotonic() - start_s)

        for node, failures, error in fleet.question(healthy, request.forks, gpus):
            if error is not None or failures:
                bad[node.name] = str(error or failures)
        if last and run_pods is not None:
            bad |= run_pods([node for node in healthy if node.name not in bad])
        return bad

    return check


def _pods_of(
    request: fleet.Request, kubeconfig: str, stop: Callable[[], bool]
) -> Callable[[Sequence[InventoryNode]], dict[str, str]]:
    """Runs a pod with a GPU on some nodes; what failed, by node.

    Raises:
        UsageError: a kubeconfig cannot be used.
    """
    from gpustate.validation import pods

    apis = pods.connect_all(request.inventory.nodes, kubeconfig)

    def run(nodes: Sequence[InventoryNode]) -> dict[str, str]:
        checks = pods.run(pods.Request(nodes, apis, kubeconfig, request.forks), stop)
        return {name: f"pod: {check.evidence}" for name, check in checks.items() if check.failed}

    return run


def gpu_failures(node: Node, age_s: float) -> str:
    """What is wrong with a node's GPUs; empty: nothing, or NVML lists none.

    An Xid counts if NVIDIA recommends more than to look at the application, and if it is younger than the change.

    Args:
        node: the node.
        age_s: seconds since its change began.
    """
    nvml = node.query(GpuFacts())
    text = node.shell(
        f"{quarantine.SCRIPT}{xids.SCRIPT}printf 'uptime=%s\\n' \"$(cut -d ' ' -f 1 /proc/uptime)\""
    ).stdout
    observed = chain_probe.parse(text, nvml)
    uptime = text.rpartition("uptime=")[2].split()
    up_s = float(uptime[0]) if uptime else 0.0
    failures = [
        finding.text
        for finding in health.failed(health.judge(nvml))
        if not observed.quarantine.holds("", finding.pci)
    ]
    for xid in observed.log:
        serious = xids.ACTIONS[xid.action][0] != xids.REPORT
        if (
            serious
            and xid.last_s >= up_s - age_s
            and not observed.quarantine.holds("", f"{xid.pci}.0")
        ):
            failures.append(
                f"{'NVSwitch' if xid.of_switch else 'GPU'} {xid.pci}: {xid.name} since the change"
            )
    return "; ".join(failures) if nvml.gpus else ""


def common_fields(result: fleet.FleetResult, notes: tuple[str, ...]) -> dict[str, Any]:
    """Fields of every result."""
    return {
        "run": result.run,
        "nodes": tuple(result.nodes),
        "exit_code": result.exit_code,
        "summary": result.summary(),
        "interrupted": result.interrupted,
        "notes": notes,
    }


def apply_result(
    result: fleet.FleetResult,
    verb: str,
    notes: tuple[str, ...],
    about: Sequence[str],
    context: Mapping[str, Any] | None,
) -> ApplyResult:
    """The result of a run that changed nodes.

    Args:
        result: of the engine.
        verb: of the run.
        notes: on the inventory.
        about: notes on the policy.
        context: origin of the document.
    """
    outcome = documents.result_document(
        result.nodes,
        run=result.run,
        created=clock.now(),
        verb=verb,
        summary=result.summary(),
        exit_code=result.exit_code,
        notes=(*about, *([f"stopped: {result.stopped}"] if result.stopped else ())),
        skipped=result.skipped,
        context=context,
    )
    return ApplyResult(
        **common_fields(result, notes),
        document=outcome,
        skipped=tuple(result.skipped),
        stopped=result.stopped,
    )


def add_rollout(document: dict[str, Any], inventory: Inventory, strategy: Strategy) -> None:
    """Add to a plan the waves in which its nodes would change, if there are several."""
    rollout = strategy.foreseen(inventory, documents.changing(document))
    if rollout.words:
        limit, total = strategy.max_unavailable or MAX_UNAVAILABLE, len(inventory.nodes)
        share = ""
        if "%" in limit:
            share = f": {allowed(limit, total)} of these {total} nodes, if it has no others"
        document["rollout"] = {
            "waves": list(rollout.wave_sizes),
            "max_unavailable": limit,
            "text": f"{rollout.words}; at most {limit} of a cluster out of service at a time{share}",
        }
