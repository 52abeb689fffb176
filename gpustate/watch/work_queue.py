"""Which Nodes are set up now, and which later. Pure.

A Node that has failed is tried again, later each time; one that changes meanwhile is tried at once. A Node that is not
in the inventory is looked for again when its labels or addresses have changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpustate.watch.nodes import DONE, Reason, Seen

#: Changes that come together are one round.
SETTLE_S = 2.0
#: After the first failure, and the longest.
_FIRST_S, _LONGEST_S = 60.0, 1800.0
#: Between two looks into the inventory for Nodes that are not in it.
_UNKNOWN_S = 30.0


@dataclass(slots=True)
class _Entry:
    """One Node.

    Args:
        seen: as it was seen last.
        at: when it is due, in seconds; only while it is wanted.
        tries: that failed, for this reason.
        done: what it was set up for by this watcher; its record may not have been seen yet.
        unknown: its identity when the inventory did not have it; ``None``: it did, or was not asked.
    """

    seen: Seen
    at: float
    tries: int = 0
    done: Reason | None = None
    unknown: int | None = None

    @property
    def wanted(self) -> bool:
        known = self.unknown != self.seen.identity
        return self.seen.wanted and known and self.done != self.seen.reason


class Todo:
    """The Nodes of one cluster."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def listed(self, nodes: Iterable[Seen], now: float) -> None:
        """These are all Nodes."""
        found = {one.name: one for one in nodes}
        for name in self._entries.keys() - found.keys():
            del self._entries[name]
        for one in found.values():
            self.changed(one, now)

    def changed(self, seen: Seen, now: float) -> None:
        """A Node is new, or not as it was."""
        entry = self._entries.get(seen.name)
        if entry is None:
            self._entries[seen.name] = _Entry(seen, now + SETTLE_S)
            return
        was, entry.seen = entry.seen, seen
        if seen.record is None and was.record is not None and was.record.phase == DONE:
            # The policy was removed on purpose: this watcher does not undo that.
            entry.done = was.record.reason
        if entry.unknown is not None and entry.unknown != seen.identity:
            entry.unknown = None
            entry.at = max(entry.at, now + _UNKNOWN_S)
        elif seen.reason != was.reason or (seen.ready and not was.ready):
            entry.tries, entry.at = 0, now + SETTLE_S

    def gone(self, name: str) -> None:
        """A Node was deleted."""
        self._entries.pop(name, None)

    def due(self, now: float) -> list[Seen]:
        """Nodes that are to be set up now."""
        return [one.seen for one in self._entries.values() if one.wanted and one.at <= now]

    def wait_s(self, now: float) -> float | None:
        """Seconds until a Node is due; ``None``: none is."""
        times = [one.at for one in self._entries.values() if one.wanted]
        return max(0.0, min(times) - now) if times else None

    def postpone(self, name: str, at: float) -> None:
        """A Node waits until a time."""
        if name in self._entries:
            self._entries[name].at = at

    def unknown(self, seen: Seen) -> None:
        """A Node is not in the inventory."""
        if seen.name in self._entries:
            self._entries[seen.name].unknown = seen.identity

    def failed(self, name: str, now: float) -> float:
        """A Node was not set up; seconds until it is tried again."""
        entry = self._entries.get(name)
        if entry is None:
            return 0.0
        delay_s = min(_LONGEST_S, _FIRST_S * float(2**entry.tries))
        entry.tries += 1
        entry.at = now + delay_s
        return delay_s

    def done(self, name: str, reason: Reason) -> None:
        """A Node was set up."""
        entry = self._entries.get(name)
        if entry is not None:
            entry.tries, entry.done = 0, reason
