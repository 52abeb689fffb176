"""The protocol of NVIDIA's MIG manager around a change of a Node's MIG layout, on its labels.

Sources:
    NVIDIA/mig-parted v0.15: cmd/nvidia-mig-manager, pkg/mig/reconfigure/reconfigure.go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpustate.cluster.api import Api
from gpustate.documents import Json
from gpustate.schedulers.mig_state import (
    CONFIG,
    PENDING,
    REBOOTING,
    RUN_ANNOTATION,
    STATE,
    is_ours,
    labels_of,
)
from gpustate.schedulers.nvidia_pods import FOR_MIG, NvidiaPods, patch_node


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

    @property
    def nvidia_pods(self) -> NvidiaPods:
        """The programs that have GPUs open, which leave for the change."""
        return NvidiaPods(self.api, FOR_MIG, self.sleep, self.clock)

    def begin(self, name: str, run: str) -> None:
        """A change begins: ``pending``."""
        patch_node(self.api, name, lambda _: _patch({STATE: PENDING}, run))

    def rebooting(self, name: str) -> None:
        """The machine reboots for the change."""

        def change(node: Json) -> Json | None:
            return _patch({STATE: REBOOTING}) if is_ours(node) else None

        patch_node(self.api, name, change)

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

        patch_node(self.api, name, change)


_KEEP = object()


def _patch(labels: Mapping[str, str | None], run: object = _KEEP) -> Json:
    """A merge patch of labels, and of the annotation unless it stays as it is."""
    notes = {} if run is _KEEP else {"annotations": {RUN_ANNOTATION: run}}
    return {"metadata": {"labels": dict(labels), **notes}}
