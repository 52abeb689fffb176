"""How many members of a cluster may be out of service at a time.

Every member counts that is not ready, not schedulable or held by anyone, so a node that failed keeps counting. A node
waits for a slot while others of the run are at work, and is refused once nothing of the run could free a slot. One
that goes back does not wait for those that failed in the same run: at least one at a time goes.

Sources:
    NVIDIA/k8s-operator-libs, pkg/upgrade: a percentage of ``maxUnavailable`` is rounded up.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from gpustate.errors import RefusedError, UsageError
from gpustate.rollout.signals import Signals
from gpustate.schedulers.base import Emit, Member, NotDrainedError, Scheduler, Stop

_LIMIT = re.compile(r"(?P<number>[1-9][0-9]{0,6})(?P<percent>%?)")
_POLL_S = 5.0


class NoSlotError(RefusedError):
    """Too many members are out of service for another one."""


def check(limit: str) -> None:
    """Refuse what is not a number or percentage.

    Raises:
        UsageError: it is neither, 0, or more than 100 %.
    """
    match = _LIMIT.fullmatch(limit)
    if limit and (match is None or (match["percent"] and int(match["number"]) > 100)):
        raise UsageError(
            f"--max-unavailable: {limit!r} is not a number of nodes or a percentage",
            fix="use for example 2 or 10%",
        )


def allowed(limit: str, total: int) -> int:
    """How many of so many members may be out of service; without a limit all of them."""
    match = _LIMIT.fullmatch(limit)
    if match is None:
        return total
    number = int(match["number"])
    return -(-total * number // 100) if match["percent"] else number


def full(
    members: Iterable[Member], member: Member, limit: str, taken: Collection[str], without: str = ""
) -> dict[str, str]:
    """Who keeps a member from a slot, each with the reason; empty: it may be taken out of service.

    Args:
        members: all that count, as they are now.
        member: the one in question; if it is out of service already, it costs no slot.
        limit: number or percentage; empty: none.
        taken: members that this run has taken and the list may not show yet.
        without: members that failed in this run cost no slot.
    """
    counted = [row for row in members if row.counts or row.name == member.name]
    out = {row.name: row for row in counted if not row.available}
    if member.name in out or not limit:
        return {}
    failed = {name for name, row in out.items() if without and _failed_in(row, without)}
    waiting = sorted({*out, *taken} - failed - {member.name})
    if len(waiting) < allowed(limit, len(counted)):
        return {}
    return {name: f"{name} ({_why(out.get(name))})" for name in waiting}


def _failed_in(member: Member, run: str) -> bool:
    hold = member.hold
    return hold is not None and (hold.run, hold.phase) == (run, "failed")


def _why(member: Member | None) -> str:
    if member is None:
        return "of this run"
    if member.foreign:
        return member.foreign[0]
    if member.hold is not None:
        return f"{member.hold.phase}, run {member.hold.run}"
    return "unschedulable" if member.ready else "not ready"


class Slots:
    """The slots of one run in its clusters.

    Args:
        limit: members of one cluster that may be out of service; empty: no limit.
        sleep: waits so many seconds.
        clock: seconds, monotonic.
        signals: a pause or a stop of the rollout, or the end of a maintenance window, keeps nodes in service that wait
            for a slot.
        run: id of the run.
    """

    def __init__(
        self,
        limit: str,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        signals: Signals | None = None,
        run: str = "",
    ) -> None:
        check(limit)
        self._signals = signals or Signals()
        self._run = run
        self._limit = limit
        self._sleep = sleep
        self._clock = clock
        self._seen: dict[str, tuple[float, Sequence[Member]]] = {}
        self._lock = threading.Lock()
        self._taken: dict[str, set[str]] = {}
        self._nodes: dict[str, dict[str, str]] = {}

    def take(
        self,
        scheduler: Scheduler,
        member: Member,
        node: str,
        say: Emit,
        stop: Stop,
        *,
        failed: bool = False,
        back: bool = False,
    ) -> None:
        """Wait until this member has a slot.

        Args:
            scheduler: of the member.
            member: as it was seen last.
            node: its name in the inventory.
            say: tells what it waits for.
            stop: polled while it waits.
            failed: an earlier change of it failed, so it is out of service already.
            back: it goes back to before a run.

        Raises:
            NoSlotError: too many others are out of service, and none of them by this run.
            NotDrainedError: interrupted, or the rollout stopped.
        """
        reported = ""
        while True:
            if self._signals.stopped and not failed:
                raise NotDrainedError(f"not started: {self._signals.stopped}")
            waits = self._signals.paused or self._signals.closed(node)
            if not waits:
                names = self._try(scheduler, member, node, back=back)
                if not names:
                    return
                waits = f"out of service are {', '.join(names.values())}"
            if waits != reported:
                say(f"waiting for a slot: {waits}")
                reported = waits
            if stop():
                raise NotDrainedError("interrupted while it waited for a slot")
            self._sleep(_POLL_S)

    def _try(
        self, scheduler: Scheduler, member: Member, node: str, *, back: bool
    ) -> dict[str, str]:
        """Take a slot; who keeps it from that."""
        if not self._limit:
            return {}
        with self._lock:
            slots = self._taken.setdefault(scheduler.title, set())
            nodes = self._nodes.setdefault(scheduler.title, {})
            nodes[member.name] = node
            names = full(self._members(scheduler), member, self._limit, slots)
            if names and not slots:  # what was listed before may be over
                self._seen.pop(scheduler.title, None)
                without = self._run if back else ""
                names = full(self._members(scheduler), member, self._limit, slots, without)
            if not names:
                slots.add(member.name)
            # One that failed and goes back has given its slot, and will free it.
            elif not slots and not any(
                self._signals.at_work(nodes.get(name, "")) for name in names
            ):
                out = ", ".join(names.values())
                self._signals.exhausted = (
                    f"--max-unavailable {self._limit} is used up in {scheduler.title} by {out}"
                )
                raise NoSlotError(
                    f"{scheduler.title}: --max-unavailable {self._limit}: out of service are {out}",
                    fix="return them to service, or raise the limit",
                )
            return names

    def _members(self, scheduler: Scheduler) -> Sequence[Member]:
        """The members as they were a few seconds ago; one list for all nodes that wait."""
        at, members = self._seen.get(scheduler.title, (float("-inf"), ()))
        if self._clock() - at >= _POLL_S:
            members = scheduler.members(fresh=True)
            self._seen[scheduler.title] = (self._clock(), members)
        return members

    def give(self, scheduler: Scheduler, member: Member) -> None:
        """This member is done, well or not."""
        with self._lock:
            # It may have failed, and have been listed before it was held.
            self._seen.pop(scheduler.title, None)
            self._taken.get(scheduler.title, set()).discard(member.name)
