"""Events on a Node: what gpustate does with it, for ``kubectl describe node`` and monitoring.

They are a courtesy: without the right to create them, or where the server refuses one, there is one note, and the
run goes on without them.

Sources:
    kubernetes/kubectl, pkg/describe: Events of a Node are those in any namespace with its uid; those of
    objects without a namespace are in the namespace ``default``.
"""

from __future__ import annotations

import secrets
import socket
import threading

from gpustate import clock
from gpustate.cluster.api import Api
from gpustate.documents import Json
from gpustate.errors import ClusterError
from gpustate.formats.masking import mask
from gpustate.formats.words import shorten
from gpustate.schedulers.base import Emit, Why, discard

#: The optional right: verb, API group, resource.
RIGHT = ("create", "", "events")
HELD, DRAINED, CHANGED = "GpustateHold", "GpustateDrained", "GpustateChanged"
FAILED, RELEASED = "GpustateFailed", "GpustateReleased"
#: Of a watcher.
APPLYING, APPLIED, APPLY_FAILED = "GpustateApplying", "GpustateApplied", "GpustateApplyFailed"
_WARNINGS = (FAILED, APPLY_FAILED)
_COMPONENT = "gpustate"
#: A message of an Event has 1024 bytes at most.
_LONGEST = 1000


class NodeEvents:
    """Records Events of the Nodes of one cluster.

    Args:
        api: access to it.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._emit: Emit = discard
        self._why: Why | None = None
        self._enabled: bool | None = None

    def begin(self, why: Why, emit: Emit, missing: str) -> None:
        """Check the right once.

        Args:
            why: the run.
            emit: gets the note.
            missing: the rule to add, for the note.
        """
        with self._lock:
            if self._enabled is not None:
                return
            self._why, self._emit = why, emit
            try:
                self._enabled = self._api.may(*RIGHT)
            except ClusterError as error:
                self._enabled = False
                missing = str(error)
            enabled = self._enabled
        if not enabled:
            emit(f"note: no Events are recorded on Nodes: {missing}")

    def record(self, node: Json, reason: str, text: str) -> None:
        """Record one Event on a Node.

        Args:
            node: the object.
            reason: one word.
            text: what happened, for a person.
        """
        if not self._enabled or self._why is None:
            return
        try:
            self._api.create_event(_event(node, reason, text, self._why))
        except ClusterError as error:
            with self._lock:
                first, self._enabled = self._enabled, False
            if first:
                self._emit(f"note: no more Events are recorded on Nodes: {error}")


def _event(node: Json, reason: str, text: str, why: Why) -> Json:
    meta, timestamp = node["metadata"], clock.now()
    words = mask(f"{text} (run {why.run} of {why.person}: {why.text})")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "default", "name": f"{meta['name']}.{secrets.token_hex(8)}"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Node",
            "name": meta["name"],
            "uid": str(meta.get("uid") or ""),
        },
        "reason": reason,
        "message": shorten(words, _LONGEST),
        "type": "Warning" if reason in _WARNINGS else "Normal",
        "source": {"component": _COMPONENT, "host": socket.gethostname()},
        "reportingComponent": _COMPONENT,
        "reportingInstance": socket.gethostname(),
        "action": reason.removeprefix("Gpustate"),
        "firstTimestamp": timestamp,
        "lastTimestamp": timestamp,
        "count": 1,
    }
