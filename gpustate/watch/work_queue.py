"""Which Nodes are set up now, and which later. Pure.

A Node that has failed is tried again, later each time; one that changes meanwhile is tried at once. A Node that is not
in the inventory is looked for again when its labels or addresses have changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpustate.watch.nodes import COMPLETED, NodeSnapshot, Reason

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
        snapshot: as it was seen last.
        at: when it is due, in seconds; only while it is wanted.
        tries: that failed, for this reason.
        applied: what it was set up for by this watcher; its record may not have been seen yet.
        unknown: its identity when the inventory did not have it; ``None``: it did, or was not asked.
    """

    snapshot: NodeSnapshot
    at: float
    tries: int = 0
    applied: Reason | None = None
    unknown: int | None = None

    @property
    def pending(self) -> bool:
        in_inventory = self.unknown != self.snapshot.identity
        return self.snapshot.pending and in_inventory and self.applied != self.snapshot.reason


class WorkQueue:
    """The Nodes of one cluster."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def listed(self, nodes: Iterable[NodeSnapshot], time_s: float) -> None:
        """These are all Nodes."""
        by_name = {node.name: node for node in nodes}
        for name in self._entries.keys() - by_name.keys():
            del self._entries[name]
        for node in by_name.values():
            self.changed(node, time_s)

    def changed(self, snapshot: NodeSnapshot, time_s: float) -> None:
        """A Node is new, or not as it was."""
        entry = self._entries.get(snapshot.name)
        if entry is None:
            self._entries[snapshot.name] = _Entry(snapshot, time_s + SETTLE_S)
            return
        was, entry.snapshot = entry.snapshot, snapshot
        if snapshot.record is None and was.record is not None and was.record.phase == COMPLETED:
            # The policy was removed on purpose: this watcher does not undo that.
            entry.applied = was.record.reason
        if entry.unknown is not None and entry.unknown != snapshot.identity:
            entry.unknown = None
            entry.at = max(entry.at, time_s + _UNKNOWN_S)
        elif snapshot.reason != was.reason or (snapshot.ready and not was.ready):
            entry.tries, entry.at = 0, time_s + SETTLE_S

    def remove(self, name: str) -> None:
        """A Node was deleted."""
        self._entries.pop(name, None)

    def due(self, time_s: float) -> list[NodeSnapshot]:
        """Nodes that are to be set up now."""
        return [
            entry.snapshot
            for entry in self._entries.values()
            if entry.pending and entry.at <= time_s
        ]

    def wait_s(self, time_s: float) -> float | None:
        """Seconds until a Node is due; ``None``: none is."""
        times = [entry.at for entry in self._entries.values() if entry.pending]
        return max(0.0, min(times) - time_s) if times else None

    def postpone(self, name: str, at: float) -> None:
        """A Node waits until a time."""
        if name in self._entries:
            self._entries[name].at = at

    def unknown(self, snapshot: NodeSnapshot) -> None:
        """A Node is not in the inventory."""
        if snapshot.name in self._entries:
            self._entries[snapshot.name].unknown = snapshot.identity

    def failed(self, name: str, time_s: float) -> float:
        """A Node was not set up; seconds until it is tried again."""
        entry = self._entries.get(name)
        if entry is None:
            return 0.0
        delay_s = min(_LONGEST_S, _FIRST_S * float(2**entry.tries))
        entry.tries += 1
        entry.at = time_s + delay_s
        return delay_s

    def finish(self, name: str, reason: Reason) -> None:
        """A Node was set up."""
        entry = self._entries.get(name)
        if entry is not None:
            entry.tries, entry.applied = 0, reason
