"""What keeps a node from being touched: stale plans, refusals, too much disruption, locks.

Pure: takes what is known, gives the reason or ``None``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpustate import compat
from gpustate.compat.facts import Facts, Value
from gpustate.core.change import Disruption
from gpustate.core.inventory import InventoryNode
from gpustate.core.layering import ALLOW, layers_of
from gpustate.core.outcome import NodeStatus, Outcome, StateResult
from gpustate.core.policy import Policy
from gpustate.core.state import AnyState
from gpustate.engine.ledger import LOCK_TTL_S, Ledger, Lock, read_lock
from gpustate.errors import (
    GpustateError,
    LockHeld,
    PolicyError,
    RefusedError,
    StepFailed,
    UsageError,
)
from gpustate.plan import make
from gpustate.plan.make import Observations

#: Why a node must not be changed although each of its states may be; ``None`` when nothing speaks against it.
NodeCheck = Callable[[Sequence[AnyState], Observations], RefusedError | None]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who runs this: written into locks.

    Args:
        name: user@host.
        pid: process id on that host.
        alive: whether a controller is still there, as far as can be told from here.
        born: when a process of this host began, in a word; empty where that cannot be told.
    """

    name: str
    pid: int
    alive: Callable[[str, int], bool]
    born: Callable[[int], str] = lambda _: ""

    def holds(self, lock: Lock) -> bool:
        """Whether the controller that took a lock is still there. A number may be another's by now."""
        if not self.alive(lock.holder, lock.pid):
            return False
        born = self.born(lock.pid) if lock.holder == self.name else ""
        return not (born and lock.born) or born == lock.born


def stale(
    planned: Mapping[str, object] | None, observed: Mapping[str, object]
) -> GpustateError | None:
    """A saved plan was made from something else than what the node is now."""
    if planned is None:
        return RefusedError("the plan does not know this node", fix="plan again")
    moved = make.moved(planned, observed)
    if not moved:
        return None
    more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
    return RefusedError(f"the plan is stale: {'; '.join(moved[:3])}{more}", fix="plan again")


def too_much(results: Mapping[str, StateResult], allowed: Disruption) -> GpustateError | None:
    """The plan may cost more than is allowed."""
    worst = max((r.worst for r in results.values()), default=Disruption.NONE)
    if worst <= allowed:
        return None
    states = ", ".join(r.state for r in results.values() if r.worst > allowed)
    return RefusedError(
        f"the plan may cost {worst.word} ({states}), and --max-disruption is {allowed.word}",
        fix="allow it or leave these states out",
    )


def dead(ledger: Ledger, holder: Holder) -> bool:
    """The run that holds the lock is known to be dead, so its lock holds nobody."""
    lock, program = ledger.lock, ledger.program
    if lock is None or lock.reason != "apply":
        return False
    if program is not None and program.run.startswith(lock.run) and not program.alive:
        return True
    return lock.holder == holder.name and not holder.holds(lock)


_CHECKING = threading.Lock()


@dataclass(frozen=True, slots=True)
class Judged:
    """What the compatibility matrix says of a node as it is to become.

    Args:
        notes: for the plan.
        reason: why the node is refused.
        allowed: rules that would have refused it, each with the policy's reason to go on.
    """

    notes: tuple[str, ...]
    reason: GpustateError | None
    allowed: Mapping[str, str]


def compatible(facts: Facts, allow: Mapping[str, str]) -> Judged:
    """Hold a node as it is to become against the compatibility matrix."""
    # Nodes are walked in threads: the first that asks reads the rules, the others wait for them.
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
    others = ", ".join(result.rule.id for result in report.blocks[1:])
    more = f"; also {others}" if others else ""
    because = rule.because.rstrip(".")
    reason = RefusedError(f"blocked by compatibility rule {rule.id}: {because}{more}", fix=rule.fix)
    return Judged(tuple(notes), reason, allowed)


def refuse_unknown_rules(
    policy: Policy, node: InventoryNode, allow: Iterable[str], rules: compat.RuleSet
) -> None:
    """Refuse what a node's layers allow and no rule is called.

    Raises:
        PolicyError: with the place, and the nearest rule.
    """
    for name in allow:
        if name in rules.rules:
            continue
        layers = layers_of(policy, node)
        said = [layer for layer in layers if name in (layer.states.get(ALLOW) or {})]
        place = said[-1].place_of((ALLOW, name)) if said else policy.places.get((ALLOW, name))
        refuse_unknown_rule(name, place, rules)


def refuse_unknown_rule(name: str, place: str | None, rules: compat.RuleSet) -> None:
    """Refuse an exception from a rule that there is not.

    Raises:
        PolicyError: with the place, and the nearest rule.
    """
    try:
        rules.rule(name)
    except UsageError as error:
        raise PolicyError(f"allow: {error.message}", place=place or None, fix=error.fix) from None


@lru_cache(maxsize=1024)
def _checked(
    facts: frozenset[tuple[str, Value]], allow: frozenset[tuple[str, str]]
) -> compat.Report:
    # Nodes of one kind have the same facts: a fleet is checked once a kind.
    return compat.check(dict(facts), allow=dict(allow))


def locked(ledger: Ledger, run: str, holder: Holder) -> GpustateError | None:
    """Somebody else holds the node."""
    lock = ledger.lock
    if lock is None or not ledger.locked or lock.run == run or dead(ledger, holder):
        return None
    return LockHeld(lock.told(), fix="wait, or break it: gpustate unlock --force")


def idle(results: Mapping[str, StateResult]) -> bool:
    """Nothing is to be done and nothing is wrong."""
    nothing = (Outcome.UNCHANGED, Outcome.NOT_APPLICABLE)
    return all(result.outcome in nothing for result in results.values())


def unfit(results: Mapping[str, StateResult]) -> bool:
    """A state refuses the node as it looks, or could not make sense of it."""
    return any(r.outcome in (Outcome.REFUSED, Outcome.FAILED) for r in results.values())


def proceeds(status: NodeStatus, results: Mapping[str, StateResult]) -> bool:
    """States are refused or failed, and others, which do not depend on them, are to be applied."""
    if status not in (NodeStatus.REFUSED, NodeStatus.FAILED):
        return False
    return bool(announced(results))


def half_done(ledger: Ledger, run: str, holder: Holder) -> list[str]:
    """What a plan says of a node that somebody is at work on."""
    lock = ledger.lock
    if lock is None or lock.reason != "apply" or locked(ledger, run, holder) is None:
        return []
    return [lock.half_done()]


def refuse_held(
    ledger: Ledger,
    results: Mapping[str, StateResult],
    again: Callable[[], Ledger],
    run: str,
    holder: Holder,
) -> None:
    """Refuse a node that is to be changed, or looks unfit, while somebody holds it.

    Args:
        ledger: as the look found it.
        results: of the plan.
        again: reads the ledger anew: somebody may have begun while the probes were on their way.
        run, holder: who is asking.

    Raises:
        LockHeld: somebody does.
    """
    if idle(results):
        return
    reason = locked(ledger, run, holder)
    if reason is None and unfit(results):
        reason = begun_meanwhile(ledger, again(), run, holder)
    if reason is not None:
        raise reason


def taken(run: str, holder: Holder, plan: str, ticket: str = "") -> dict[str, Any]:
    """The lock that a run takes."""
    now = int(time.time())
    return {
        "run": run,
        "holder": holder.name,
        "pid": holder.pid,
        "born": holder.born(holder.pid),
        "reason": "apply",
        "plan": plan,
        **({"ticket": ticket} if ticket else {}),
        "since": now,
        "expires": now + LOCK_TTL_S,
    }


def begun_meanwhile(before: Ledger, now: Ledger, run: str, holder: Holder) -> GpustateError | None:
    """Somebody has been at work since a look was begun, whose answers are then of no time in particular."""
    if now.newest not in (before.newest, "none"):
        told = f": {now.lock.told()}" if now.lock is not None and now.locked else ""
        return LockHeld(f"run {now.newest} began while this one looked{told}", fix="run again")
    return locked(now, run, holder)


def not_started(error: StepFailed) -> GpustateError:
    """Why a node did not start a program: somebody else was there first, or what it says itself."""
    what, _, rest = error.message.partition(" ")
    if error.message.startswith("lock held"):
        other = read_lock(error.message.removeprefix("lock held").strip())
        told = other.told() if other else "somebody held the node just now"
        return LockHeld(told, fix="wait, or break it: gpustate unlock --force")
    if what == "overtaken":
        return LockHeld(f"run {rest} was at work here after this one had looked", fix="run again")
    return error


def at_work(ledger: Ledger, holder: Holder) -> GpustateError | None:
    """A program is at work on the node, and its controller is there to follow it."""
    lock = ledger.lock
    if lock is None:
        return None
    if lock.holder != holder.name:
        return LockHeld(f"a run is at work: {lock.told()}", fix="wait for it")
    if lock.pid != holder.pid and holder.holds(lock):
        return LockHeld(f"another gpustate of yours is at work: {lock.told()}", fix="wait for it")
    return None


def announced(results: Mapping[str, StateResult]) -> dict[str, Disruption]:
    """What each state may cost at most, from the plan a run begins with."""
    told = (Outcome.PENDING, Outcome.KNOWN_AFTER)
    return {r.state: r.worst for r in results.values() if r.outcome in told}


def refuse_what_exceeds(
    results: dict[str, StateResult], allowed: Mapping[str, Disruption]
) -> dict[str, StateResult]:
    """Turn what goes beyond the plan into refusals; return them."""
    refused: dict[str, StateResult] = {}
    for name, result in results.items():
        beyond = make.exceeds(result, allowed)
        if beyond is not None:
            refused[name] = StateResult(
                name,
                Outcome.REFUSED,
                result.plan,
                reason=f"{beyond}; plan again",
                proof=result.proof,
            )
    results.update(refused)
    return refused


def check_node(
    checks: Iterable[NodeCheck],
    states: Sequence[AnyState],
    observations: Observations,
    results: Mapping[str, StateResult],
) -> None:
    """Refuse a node that is to be changed, for reasons that lie outside of its states.

    Raises:
        RefusedError: the first of these reasons.
    """
    if not idle(results):
        for check in checks:
            reason = check(states, observations)
            if reason is not None:
                raise reason
