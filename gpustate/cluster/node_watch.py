"""Follow the Nodes of a cluster for as long as it takes: one list, then a watch that is continued where it ended.

A watch is continued from the last version that was seen, bookmarks included, so a quiet cluster is listed once. Only
when that version is too old (410) the Nodes are listed again. Whatever else fails is tried again, later each time.

Sources:
    kubernetes.io/docs/reference/using-api/api-concepts: watch, bookmarks, 410 Gone;
    kubernetes/client-go, tools/cache/reflector.go: backoff, timeouts of five to ten minutes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from gpustate.cluster.api import Api, RefusedRequest
from gpustate.documents import Json
from gpustate.errors import ClusterError, GpustateError

#: A watch ends after so many seconds at least, and twice as many at most.
_WATCH_S = 300
#: Bookmarks come once a minute.
_SILENT_S = 150.0
_FIRST_S, _LONGEST_S = 1.0, 60.0
_EXPIRED, _UNAUTHORIZED = 410, 401


class EventKind(Enum):
    """What an event says."""

    LISTED = "listed"  # these are all Nodes
    CHANGED = "changed"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One event.

    Args:
        kind: it says.
        nodes: all Nodes, or the one that it is about.
    """

    kind: EventKind
    nodes: tuple[Json, ...]


@dataclass(slots=True)
class NodeWatch:
    """A watch of all Nodes of a cluster.

    Args:
        connect: reads the kubeconfig and connects; again where the credentials have expired.
        emit: tells once what keeps the watch from going on, and that it goes on again.
        stop: asked between two tries.
        sleep: waits so many seconds.
        chance: a number from 0 to 1.
    """

    connect: Callable[[], Api]
    emit: Callable[[str], None]
    stop: Callable[[], bool]
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random
    _api: Api | None = None
    _version: str = ""
    _tries: int = 0
    _lists: int = 0  # that were too old at once
    _reported: str = ""

    def events(self) -> Iterator[NodeEvent]:
        """Events, without an end."""
        while not self.stop():
            try:
                if self._api is None:
                    self._api = self.connect()
                if not self._version:
                    nodes, self._version = self._api.nodes_with_version(0.0)
                    self._reset()
                    yield NodeEvent(EventKind.LISTED, tuple(nodes))
                yield from self._watched(self._api)
            except RefusedRequest as error:
                if error.status == _EXPIRED:
                    self._version = ""
                    self._lists += 1
                    if self._lists < 2:
                        continue
                if error.status == _UNAUTHORIZED:
                    self._reconnect()
                self._wait(error, error.retry_after_s)
            except GpustateError as error:
                self._wait(error)
        self._reconnect()

    def _watched(self, api: Api) -> Iterator[NodeEvent]:
        """The events of one watch."""
        began = time.monotonic()
        timeout_s = int(_WATCH_S * (1 + self.chance()))
        for event in api.watch_nodes(self._version, timeout_s, _SILENT_S):
            self._reset()
            self._lists = 0
            item: Json = event["object"]
            kind = event["type"]
            if kind in ("ADDED", "MODIFIED"):
                yield NodeEvent(EventKind.CHANGED, (item,))
            elif kind == "DELETED":
                yield NodeEvent(EventKind.DELETED, (item,))
            # Only now: an event that was not handled comes again.
            self._version = str(item["metadata"]["resourceVersion"])
        if time.monotonic() - began < _FIRST_S:
            raise ClusterError(f"API server {api.server}: watch nodes: the watch ended at once")

    def _reconnect(self) -> None:
        """Connect again the next time, with credentials as they are then."""
        if self._api is not None:
            self._api.close()
            self._api = None

    def _reset(self) -> None:
        """The server answers."""
        if self._reported:
            self.emit("the API server answers again")
        self._tries, self._reported = 0, ""

    def _wait(self, error: GpustateError, after_s: float | None = None) -> None:
        """Wait before the next try, longer each time, and at least as long as the server says."""
        if str(error) != self._reported:
            self._reported = str(error)
            self.emit(self._reported)
        delay_s = min(_LONGEST_S, _FIRST_S * 2**self._tries) * (0.5 + self.chance() / 2)
        self._tries = min(self._tries + 1, 10)
        self.sleep(max(delay_s, after_s or 0.0))
