"""Reasons not to change a node: stale plans, refusals, too much disruption, locks.

Each function returns the reason or ``None``, or raises it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from gpustate import compat
from gpustate.compat.facts import Facts, Value
from gpustate.core.change import Disruption, Plan
from gpustate.core.inventory import InventoryNode
from gpustate.core.layering import ALLOW, layers_of
from gpustate.core.outcome import NodeStatus, Outcome, StateResult
from gpustate.core.policy import Policy
from gpustate.core.state import AnyState
from gpustate.engine.ledger import LOCK_TTL_S, Ledger, Lock, read_lock
from gpustate.errors import GpustateError, LockHeld, RefusedError, StepFailed
from gpustate.formats import gpu_services
from gpustate.plan import make
from gpustate.plan.make import Observations
from gpustate.probes import gpu_clients
from gpustate.remote.nodeprogram import LockInfo

#: Why a node must not be changed although each of its states may be; ``None`` if there is no reason.
NodeCheck = Callable[[Sequence[AnyState], Observations], RefusedError | None]


@dataclass(frozen=True, slots=True)
class Controller:
    """The controller that takes a lock.

    Args:
        name: user@host.
        pid: process id on that host.
        alive: whether a controller still runs, as far as this host knows.
        born: start time of a process of this host; empty if unknown.
    """

    name: str
    pid: int
    alive: Callable[[str, int], bool]
    born: Callable[[int], str] = lambda _: ""

    def holds(self, lock: Lock) -> bool:
        """Whether the controller that took a lock still runs. Its process id may have been reused."""
        if not self.alive(lock.holder, lock.pid):
            return False
        born = self.born(lock.pid) if lock.holder == self.name else ""
        return not (born and lock.born) or born == lock.born


def stale(
    node: str,
    planned: Mapping[str, object] | None,
    observed: Mapping[str, object],
    at: str,
    *,
    now: bool = False,
) -> GpustateError | None:
    """A plan was made from other observations than the node's current ones.

    Args:
        node: its name.
        planned: what was observed when the plan was made; ``None``: the plan does not have the node.
        observed: what is observed now.
        at: when the plan was made: ``2026-11-28T14:19:05Z``.
        now: it was made by the same command.
    """
    if planned is None:
        return RefusedError("the saved plan does not include this node", fix=_PLAN)
    moved = make.moved(planned, observed)
    if not moved:
        return None
    names = ", ".join((*moved[:3], *["..."] * (len(moved) > 3)))
    since = at.removesuffix("Z").replace("T", " ")[:16]
    again = "run the same command again" if now else "plan again"
    return RefusedError(f"{node} has changed since {since}Z ({names})", fix=again)


def too_much(results: Mapping[str, StateResult], allowed: Disruption) -> GpustateError | None:
    """The plan may cause more disruption than is allowed."""
    worst = max((r.worst for r in results.values()), default=Disruption.NONE)
    if worst <= allowed:
        return None
    states = ", ".join(r.state for r in results.values() if r.worst > allowed)
    return RefusedError(
        f"the plan may cause disruption {worst.word} ({states}), but --max-disruption is {allowed.word}",
        fix=f"allow it with --max-disruption {worst.word}, or remove these states from the policy",
    )


def dead(ledger: Ledger, holder: Controller) -> bool:
    """The run that holds the lock no longer runs, so its lock is void."""
    lock, program = ledger.lock, ledger.program
    if lock is None or lock.reason != "apply":
        return False
    if program is not None and program.run.startswith(lock.run) and not program.alive:
        return True
    return lock.holder == holder.name and not holder.holds(lock)


_PLAN = "make a new plan: gpustate plan POLICY --out FILE"
_UNLOCK = "wait until it is released, or release it: gpustate node unlock -l NODE --force"
_CHECKING = threading.Lock()


@dataclass(frozen=True, slots=True)
class Judged:
    """Result of the compatibility matrix for a node as it will be after the run.

    Args:
        notes: for the plan.
        reason: why the node is refused.
        allowed: rules that would have refused it, each with the policy's reason to allow it.
    """

    notes: tuple[str, ...]
    reason: GpustateError | None
    allowed: Mapping[str, str]


def compatible(facts: Facts, allow: Mapping[str, str]) -> Judged:
    """Check a node as it will be after the run against the compatibility matrix."""
    # Nodes are processed in threads: the first one reads the rules, and the others wait for it.
    with _CHECKING:
        report = _checked(frozenset(facts.items()), frozenset(allow.items()))
    notes = [
        *(f"matrix warns: {r.rule.id}: {r.rule.because} ({r.rule.fix})" for r in report.warnings),
        *(f"matrix: {r.rule.id}: {r.rule.because}" for r in report.informs),
        *(f"matrix: {r.rule.id} is allowed: {r.allowed}" for r in report.overridden),
    ]
    allowed = {r.rule.id: r.allowed for r in report.overridden}
    if not report.blocks:
        return Judged(tuple(notes), None, allowed)
    rule = report.blocks[0].rule
    further = ", ".join(result.rule.id for result in report.blocks[1:])
    more = f"; also {further}" if further else ""
    because = rule.because.rstrip(".")
    reason = RefusedError(f"blocked by compatibility rule {rule.id}: {because}{more}", fix=rule.fix)
    return Judged(tuple(notes), reason, allowed)


def read_rules() -> None:
    """Read the rules of the compatibility matrix, once."""
    with _CHECKING:
        compat.load()


def refuse_unknown_rules(policy: Policy, node: InventoryNode, allow: Iterable[str]) -> None:
    """Refuse exceptions from rules that do not exist, in any layer of a node.

    Raises:
        PolicyError: with the place, and the nearest rule.
    """
    for name in allow:
        rules = compat.load()
        if name in rules.rules:
            continue
        layers = layers_of(policy, node)
        setting = [layer for layer in layers if name in (layer.states.get(ALLOW) or {})]
        place = setting[-1].place_of((ALLOW, name)) if setting else policy.places.get((ALLOW, name))
        rules.allow(name, place or None)


@lru_cache(maxsize=1024)
def _checked(
    facts: frozenset[tuple[str, Value]], allow: frozenset[tuple[str, str]]
) -> compat.Report:
    # Nodes of one kind have the same facts, so a kind is checked once.
    return compat.check(dict(facts), allow=dict(allow))


def locked(ledger: Ledger, run: str, holder: Controller) -> GpustateError | None:
    """Another run or person holds the lock of the node."""
    lock = ledger.lock
    if lock is None or not ledger.locked or lock.run == run or dead(ledger, holder):
        return None
    return LockHeld(lock.describe(), fix=_UNLOCK)


def idle(results: Mapping[str, StateResult]) -> bool:
    """There are no changes and no failures."""
    nothing = (Outcome.UNCHANGED, Outcome.NOT_APPLICABLE)
    return all(result.outcome in nothing for result in results.values())


def unfit(results: Mapping[str, StateResult]) -> bool:
    """A state refuses the node, or its probe failed."""
    return any(r.outcome in (Outcome.REFUSED, Outcome.FAILED) for r in results.values())


def proceeds(status: NodeStatus, results: Mapping[str, StateResult]) -> bool:
    """Some states are refused or failed, and others that do not depend on them will be applied."""
    if status not in (NodeStatus.REFUSED, NodeStatus.FAILED):
        return False
    return bool(announced(results))


def half_done(ledger: Ledger, run: str, holder: Controller) -> list[str]:
    """Notes of a plan for a node that another run is changing."""
    lock = ledger.lock
    if lock is None or lock.reason != "apply" or locked(ledger, run, holder) is None:
        return []
    return [lock.half_done()]


def refuse_held(
    ledger: Ledger,
    results: Mapping[str, StateResult],
    again: Callable[[], Ledger],
    run: str,
    holder: Controller,
) -> None:
    """Refuse a node that would be changed, or has failures, while another run or person holds its lock.

    Args:
        ledger: from the probe.
        results: of the plan.
        again: reads the ledger again, since another run may have started during the probes.
        run, holder: the present run.

    Raises:
        LockHeld: another run or person holds the lock.
    """
    if idle(results):
        return
    reason = locked(ledger, run, holder)
    if reason is None and unfit(results):
        reason = begun_meanwhile(ledger, again(), run, holder)
    if reason is not None:
        raise reason


def taken(run: str, holder: Controller, plan: str, ticket: str = "") -> LockInfo:
    """The lock that a run takes."""
    since = int(time.time())
    lock: LockInfo = {
        "run": run,
        "holder": holder.name,
        "pid": holder.pid,
        "born": holder.born(holder.pid),
        "reason": "apply",
        "plan": plan,
        "since": since,
        "expires": since + LOCK_TTL_S,
    }
    if ticket:
        lock["ticket"] = ticket
    return lock


def begun_meanwhile(
    before: Ledger, current: Ledger, run: str, holder: Controller
) -> GpustateError | None:
    """Another run has changed the node since the probe began, so its answers are inconsistent."""
    if current.newest not in (before.newest, "none"):
        holder_text = (
            f": {current.lock.describe()}" if current.lock is not None and current.locked else ""
        )
        reason = f"run {current.newest} started while this one was probing{holder_text}"
        return LockHeld(reason, fix="run the same command again")
    return locked(current, run, holder)


def not_started(error: StepFailed) -> GpustateError:
    """Why a node did not start a program: another run was first, or the node's own error."""
    word, _, run = error.message.partition(" ")
    if error.message.startswith("lock held"):
        lock = read_lock(error.message.removeprefix("lock held").strip())
        reason = lock.describe() if lock else "another run held the lock a moment ago"
        return LockHeld(reason, fix=_UNLOCK)
    if word == "overtaken":
        return LockHeld(
            f"run {run} changed this node after it was probed", fix="run the same command again"
        )
    return error


def at_work(ledger: Ledger, holder: Controller) -> GpustateError | None:
    """A program runs on the node, and its own controller is still following it."""
    lock = ledger.lock
    if lock is None:
        return None
    if lock.holder != holder.name:
        return LockHeld(f"a run is in progress: {lock.describe()}", fix="wait until it ends")
    if lock.pid != holder.pid and holder.holds(lock):
        return LockHeld(
            f"another run of yours is in progress: {lock.describe()}", fix="wait until it ends"
        )
    return None


def announced(results: Mapping[str, StateResult]) -> dict[str, Disruption]:
    """Most disruption of each state, from the plan that a run starts with."""
    planned = (Outcome.PENDING, Outcome.KNOWN_AFTER)
    return {r.state: r.worst for r in results.values() if r.outcome in planned}


def refuse_what_exceeds(
    results: dict[str, StateResult],
    allowed: Mapping[str, Disruption],
    planned: Mapping[str, StateResult],
    final_results: Mapping[str, StateResult],
) -> dict[str, StateResult]:
    """Refuse states that would exceed the plan; return them.

    Args:
        results: of the plan now.
        allowed: what the plan that the run started with announced.
        planned: results of that plan; what it refused stays refused for that reason.
        final_results: states that have ended. What exceeds the plan once one of them has failed does so because of that.
    """
    failures = (Outcome.FAILED, Outcome.ROLLED_BACK)
    cause = next((r for r in final_results.values() if r.outcome in failures), None)
    refused: dict[str, StateResult] = {}
    for name, result in results.items():
        beyond = make.exceeds(result, allowed)
        if beyond is None:
            continue
        if planned[name].outcome in make.FAILED:
            refused[name] = planned[name]
        elif cause is not None:
            reason = f"because {cause.state} {cause.outcome.value}"
            refused[name] = replace(result, outcome=Outcome.NOT_RUN, plan=Plan(), reason=reason)
        else:
            reason = f"{beyond}; {_PLAN}"
            refused[name] = replace(result, outcome=Outcome.REFUSED, reason=reason)
    results.update(refused)
    return refused


def in_use(
    states: Iterable[AnyState], processes: Iterable[gpu_clients.GpuProcess]
) -> RefusedError | None:
    """Processes that would end with a reboot and that the policy does not let end, as for a reload of the driver.

    Those of pods are left to the scheduler of their node.
    """
    stoppable = {*gpu_services.STOPPABLE}
    for state in states:
        if state.may_end is None:
            return None
        stoppable.update(state.may_end)
    users = [user.description for user in processes if not user.pod and user.unit not in stoppable]
    if not users:
        return None
    return RefusedError(
        f"it needs a reboot, and the GPUs are in use by {', '.join(users)}",
        fix="stop these processes, or set in_use: reboot in the state driver",
    )


def check_node(
    checks: Iterable[NodeCheck],
    states: Sequence[AnyState],
    observations: Observations,
    results: Mapping[str, StateResult],
) -> None:
    """Refuse a node that would be changed, for reasons outside of its states.

    Raises:
        RefusedError: the first of these reasons.
    """
    if not idle(results):
        for check in checks:
            reason = check(states, observations)
            if reason is not None:
                raise reason
