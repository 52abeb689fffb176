"""What keeps a node from being touched: stale plans, refusals, too much disruption, locks.

Pure: takes what is known, gives the reason or ``None``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpustate.errors import GpustateError, LockHeld, RefusedError
from gpustate.model.change import Disruption
from gpustate.model.outcome import Outcome, StateResult
from gpustate.plan import make
from gpustate.run.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Holder:
    """Who runs this: written into locks.

    Args:
        name: user@host.
        pid: process id on that host.
        alive: whether a controller is still there, as far as can be told from here.
    """

    name: str
    pid: int
    alive: Callable[[str, int], bool]


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
    return lock.holder == holder.name and not holder.alive(lock.holder, lock.pid)


def locked(ledger: Ledger, run: str, holder: Holder) -> GpustateError | None:
    """Somebody else holds the node."""
    lock = ledger.lock
    if lock is None or not ledger.locked or lock.run == run or dead(ledger, holder):
        return None
    return LockHeld(lock.told(), fix="wait, or break it: gpustate unlock --force")


def at_work(ledger: Ledger, holder: Holder) -> GpustateError | None:
    """A program is at work on the node, and its controller is there to follow it."""
    lock = ledger.lock
    if lock is None:
        return None
    if lock.holder != holder.name:
        return LockHeld(f"a run is at work: {lock.told()}", fix="wait for it")
    if lock.pid != holder.pid and holder.alive(lock.holder, lock.pid):
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
