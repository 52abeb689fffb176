"""The protocol of NVIDIA's MIG manager around a change of a Node's MIG layout, on its labels.

During a change the labels ``nvidia.com/gpu.deploy.*`` of programs that keep GPUs open are ``paused-for-mig-change``, so
that their DaemonSets remove the pods.

Unlike the MIG manager, a label that was not ``true`` is never set: whatever keeps a program off a Node keeps doing so.

Sources:
    NVIDIA/mig-parted v0.15: cmd/nvidia-mig-manager, pkg/mig/reconfigure/reconfigure.go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpustate.cluster.api import Api, RefusedRequest
from gpustate.errors import ClusterError
from gpustate.schedulers.base import NotDrainedError, Say, Stop
from gpustate.schedulers.mig_state import (
    CONFIG,
    OURS,
    PENDING,
    REBOOTING,
    STATE,
    is_ours,
    labels_of,
)

Json = dict[str, Any]

PAUSED = "paused-for-mig-change"
_DEPLOY = "nvidia.com/gpu.deploy."
#: Programs that keep GPUs open, by the end of their label.
_CLIENTS = ("device-plugin", "gpu-feature-discovery", "dcgm-exporter", "dcgm", "nvsm", "client")
_LEAVE_S = 300.0
_POLL_S = 1.0
_CONFLICTS = 5


@dataclass(frozen=True, slots=True)
class MigLabels:
    """The protocol on the Nodes of one cluster.

    Args:
        api: access to it.
        sleep: waits so many seconds.
        clock: seconds, monotonic.
    """

    api: Api
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def begin(self, name: str, run: str) -> None:
        """A change begins: ``pending``."""
        self._write(name, lambda _: _patch({STATE: PENDING}, run))

    def rebooting(self, name: str) -> None:
        """The machine reboots for the change."""
        self._write(name, lambda node: _patch({STATE: REBOOTING}) if is_ours(node) else None)

    def pause(self, name: str, say: Say, stop: Stop) -> None:
        """Keep the pods of programs that have GPUs open away, and wait until they have left.

        Raises:
            NotDrainedError: they do not leave.
            ClusterError: the API server does not answer.
        """

        def change(node: Json) -> Json | None:
            running = {key: PAUSED for key, value in _clients(node).items() if value == "true"}
            return _patch(running) if running else None

        node = self._write(name, change)
        paused = {key for key, value in _clients(node).items() if value == PAUSED}
        end, announced = self.clock() + _LEAVE_S, False
        while left := self._clients_on(name, paused):
            words = ", ".join(left)
            if not announced:
                say(f"waiting for {words} to leave, which have GPUs open")
                announced = True
            if self.clock() > end:
                raise NotDrainedError(f"Node {name}: {words} did not leave in {_LEAVE_S:g} s")
            if stop():
                raise NotDrainedError("interrupted while programs with open GPUs left")
            self.sleep(_POLL_S)

    def resume(self, name: str) -> None:
        """Let the pods of these programs run again."""

        def change(node: Json) -> Json | None:
            paused = {key: "true" for key, value in _clients(node).items() if value == PAUSED}
            return _patch(paused) if paused and is_ours(node) else None

        self._write(name, change)

    def end(self, name: str, config: str, state: str) -> None:
        """The change has ended; nothing is written if it said so already, or if the label was changed meanwhile.

        Args:
            name: of the Node.
            config: value of the label that was carried out; empty: it was removed.
            state: ``success`` or ``failed``; empty: without a state.
        """

        def change(node: Json) -> Json | None:
            labels = labels_of(node)
            if labels.get(CONFIG, "") != config:
                return None
            if labels.get(STATE, "") == state and not is_ours(node):
                return None
            return _patch({STATE: state or None}, None)

        self._write(name, change)

    def _clients_on(self, name: str, paused: set[str]) -> list[str]:
        """Pods on a Node that only run there by one of the paused labels."""
        if not paused:
            return []
        return sorted(
            f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"
            for pod in self.api.pods_on(name)
            if paused & ((pod.get("spec") or {}).get("nodeSelector") or {}).keys()
            and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        )

    def _write(self, name: str, change: Callable[[Json], Json | None]) -> Json:
        """Patch a Node as it was read; as it is then."""
        for _ in range(_CONFLICTS):
            node = self.api.node(name)
            patch = change(node)
            if patch is None:
                return node
            patch["metadata"]["resourceVersion"] = node["metadata"]["resourceVersion"]
            try:
                return self.api.patch_node(name, patch)
            except RefusedRequest as error:
                if error.status != 409:
                    raise
        raise ClusterError(f"Node {name} is changed all the time; run again")


def _clients(node: Json) -> dict[str, str]:
    labels = labels_of(node)
    keys = (f"{_DEPLOY}{one}" for one in _CLIENTS)
    return {key: labels[key] for key in keys if key in labels}


_KEEP = object()


def _patch(labels: Mapping[str, str | None], run: object = _KEEP) -> Json:
    """A merge patch of labels, and of the annotation unless it stays as it is."""
    notes = {} if run is _KEEP else {"annotations": {OURS: run}}
    return {"metadata": {"labels": dict(labels), **notes}}
