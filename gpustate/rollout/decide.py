"""Which nodes of a rollout begin now, why the others wait, and whether it is over. Pure.

Nodes are taken wave by wave. A wave begins when every node of the waves before it has ended and the soak time
between them is over. Inside a wave a node begins as soon as a slot is free: there is no lock-step.

A node that was refused is as it was, so the next one takes its place in the wave. A node that failed stays out of service. It frees its slot, and counts: against the most failures, and for the other
nodes of its rack, which are skipped, for two nodes of one rack would be out of service.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum

from gpustate.plan.ranges import fold
from gpustate.rollout.windows import Window, wait_s

OUTSIDE = "outside of the maintenance window"
#: Sizes of waves in one line.
_SHOWN = 6
#: Of each, ranges of names.
_RANGES = 2


class End(Enum):
    """How a node ended."""

    RELEASED = "released"
    ROLLED_BACK = "rolled back"  # it failed, is as before the run, and in service
    FAILED = "failed"  # it was changed, or could not be reached, and may be out of service
    SKIPPED = "skipped"  # refused: it is as it was


@dataclass(frozen=True, slots=True)
class Place:
    """A node's place in a rollout.

    Args:
        name: of the node.
        wave: number of its wave, from 0.
        rack: of whose nodes at most one is out of service at a time; empty: it has none.
        windows: in which it may begin, each set on its own; empty: always.
        changes: it is not known to be unchanged.
        domain: its NVLink domain, whose nodes are in one wave; empty: it has none.
    """

    name: str
    wave: int = 0
    rack: str = ""
    windows: tuple[tuple[Window, ...], ...] = ()
    changes: bool = True
    domain: str = ""


@dataclass(frozen=True, slots=True)
class Rollout:
    """What was asked for.

    Args:
        places: of all nodes, in their order.
        slots: nodes at work at a time.
        max_failures: no further node begins once so many have failed; 0: the wave of the first failure is the last.
        soak_s: seconds between two waves.
    """

    places: tuple[Place, ...]
    slots: int
    max_failures: int = 0
    soak_s: float = 0.0

    @property
    def wave_sizes(self) -> tuple[int, ...]:
        """Number of nodes of each wave, without those that are known to be unchanged."""
        counts = Counter(place.wave for place in self.places if place.changes)
        return tuple(counts[wave] for wave in range(max(counts, default=-1) + 1))

    @property
    def surveyed(self) -> Rollout:
        """The same nodes in one wave that changes nothing, so no window or rack has to be waited for."""
        return Rollout(
            tuple(Place(place.name) for place in self.places), self.slots, self.max_failures
        )

    def without(self, refused: str, begun: Collection[str]) -> Rollout:
        """The same, with the next node of a later wave in the wave of a refused one, which does not show what the change does.

        Args:
            refused: name of the refused node.
            begun: names of the nodes that have begun.
        """
        wave = next((place.wave for place in self.places if place.name == refused), 0)
        later = [p for p in self.places if p.wave > wave and p.changes and p.name not in begun]
        following = min(later, key=lambda place: place.wave, default=None)
        if following is None or self.max_failures:
            return self
        moved = {p.name for p in later if p.domain and p.domain == following.domain}
        moved.add(following.name)
        places = (replace(p, wave=wave) if p.name in moved else p for p in self.places)
        return replace(self, places=tuple(places))

    @property
    def words(self) -> str:
        """Its waves in words; empty: there is one."""
        sizes = self.wave_sizes
        if len(sizes) < 2:
            return ""
        waves = [[p.name for p in self.places if p.changes and p.wave == n] for n in range(_SHOWN)]
        ranges = [fold(names) for names in waves[: len(sizes)]]
        firsts = (", ".join(some[:_RANGES]) + " ..." * (len(some) > _RANGES) for some in ranges)
        listed = ", ".join(f"{size} ({nodes})" for size, nodes in zip(sizes, firsts, strict=False))
        more = f", ... ({len(sizes)} in all)" if len(sizes) > _SHOWN else ""
        stop = f"{self.max_failures} failures" if self.max_failures > 1 else "the first failure"
        return f"{listed}{more}; stops at {stop}"


@dataclass(frozen=True, slots=True)
class Progress:
    """What has happened so far.

    Args:
        busy: nodes at work.
        ended: nodes that are done, and how.
        wave_ended_at: when the newest node ended, in seconds since the epoch.
        checked: waves whose soak has ended well.
        paused: who paused it; empty: nobody.
        stopped: why it has to stop, from outside: an abort, a failed check, a budget that is used up.
    """

    busy: frozenset[str] = frozenset()
    ended: Mapping[str, End] = field(default_factory=dict[str, End])
    wave_ended_at: float = 0.0
    checked: int = 0
    paused: str = ""
    stopped: str = ""

    @property
    def failures(self) -> int:
        """Nodes that did not end well."""
        return sum(end is not End.RELEASED for end in self.ended.values())


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens next.

    Args:
        start: nodes that begin now.
        wave: the wave that nodes are taken from.
        soaking: the wave before it has ended, and is watched until the soak time is over.
        stop: why no further node begins; empty: one may.
        why: why nothing begins now, though nodes are left; empty: something does, or all slots are taken.
        wake_s: seconds after which a node may begin by the clock alone; ``None``: never.
        over: nothing will begin any more.
    """

    start: tuple[str, ...] = ()
    wave: int = 0
    soaking: bool = False
    stop: str = ""
    why: str = ""
    wake_s: float | None = None
    over: bool = False


def decide(rollout: Rollout, progress: Progress, now: float) -> Decision:
    """What happens next.

    Args:
        rollout: what was asked for.
        progress: what has happened so far.
        now: seconds since the epoch.
    """
    out = racks_out(rollout, progress)
    waiting = [
        place
        for place in rollout.places
        if place.name not in progress.ended
        and place.name not in progress.busy
        and place.rack not in out
    ]
    busy = [place for place in rollout.places if place.name in progress.busy]
    if not waiting:
        wave = max((place.wave for place in busy), default=0)
        return Decision(wave=wave, stop=progress.stopped, over=True)
    wave = min(place.wave for place in (*waiting, *busy))
    stop = _stop(rollout, progress, wave)
    if stop:
        return Decision(wave=wave, stop=stop, over=True)
    if progress.paused:
        return Decision(wave=wave, why=progress.paused)
    chosen = [place for place in waiting if place.wave == wave]
    started = progress.busy | progress.ended.keys()
    begun = any(
        place.wave == wave and place.changes for place in rollout.places if place.name in started
    )
    if wave and not begun and rollout.soak_s and progress.checked < wave and progress.ended:
        left_s = max(0.0, progress.wave_ended_at + rollout.soak_s - now)
        return Decision(
            wave=wave,
            soaking=True,
            why="soak time" if left_s else "checking the nodes after the soak time",
            wake_s=left_s,
        )
    if not chosen:
        return Decision(wave=wave)
    return _choose(rollout, progress, chosen, wave, now)


def _stop(rollout: Rollout, progress: Progress, wave: int) -> str:
    """Why no further node begins."""
    if progress.stopped:
        return progress.stopped
    failures = progress.failures
    if rollout.max_failures and failures >= rollout.max_failures:
        return (
            f"{failures} node{'s' * (failures != 1)} failed (--max-failures {rollout.max_failures})"
        )
    waves = {place.name: place.wave for place in rollout.places}
    before = [
        name
        for name, end in progress.ended.items()
        if end in (End.FAILED, End.ROLLED_BACK) and waves[name] < wave
    ]
    if before and not rollout.max_failures:
        return f"wave {max(waves[name] for name in before) + 1} had failures"
    return ""


def _choose(
    rollout: Rollout, progress: Progress, chosen: Sequence[Place], wave: int, now: float
) -> Decision:
    """The nodes of a wave that begin now."""
    free = rollout.slots - len(progress.busy)
    racks = {place.rack for place in rollout.places if place.name in progress.busy}
    waits: dict[tuple[tuple[Window, ...], ...], float] = {}
    start: list[str] = []
    why, wake = "", None
    for place in chosen:
        if len(start) >= free:
            break
        if place.rack and place.rack in racks:
            why = why or f"another node of {place.rack} is in progress"
            continue
        if place.windows not in waits:
            waits[place.windows] = max(wait_s(some, now) for some in place.windows or ((),))
        wait = waits[place.windows]
        if wait:
            why = OUTSIDE
            wake = wait if wake is None else min(wait, wake)
            continue
        start.append(place.name)
        racks.add(place.rack)
    if why == OUTSIDE and wake is not None:
        why = f"{OUTSIDE} until {_minute(now + wake)}"
    return Decision(tuple(start), wave, why="" if start or free <= 0 else why, wake_s=wake)


def _minute(at: float) -> str:
    """A time in UTC, to the minute: windows open at one."""
    return datetime.fromtimestamp(round(at / 60) * 60, UTC).strftime("%Y-%m-%dT%H:%MZ")


def racks_out(rollout: Rollout, progress: Progress) -> dict[str, str]:
    """Racks with a failed node, and that node; no other node of them begins."""
    return {
        place.rack: place.name
        for place in rollout.places
        if place.rack and progress.ended.get(place.name) is End.FAILED
    }


def never_begins(rollout: Rollout, progress: Progress, stop: str) -> dict[str, str]:
    """Why nodes will not begin any more, of those that have not.

    Args:
        rollout, progress: as for :func:`decide`.
        stop: why the rollout stopped; empty: it has not.
    """
    out = racks_out(rollout, progress)
    reasons: dict[str, str] = {}
    for place in rollout.places:
        if place.name in progress.ended or place.name in progress.busy:
            continue
        if place.rack in out:
            reasons[place.name] = f"{out[place.rack]} of {place.rack} failed and is out of service"
        elif stop:
            reasons[place.name] = stop
    return reasons
