"""Keep NVIDIA's programs that have GPUs open off a Node during a change, by the labels that select their DaemonSets.

The labels ``nvidia.com/gpu.deploy.*`` that are ``true`` become ``paused-for-...``, and the DaemonSets remove the pods.

Surprising: a label that was not ``true`` is never set, so whatever keeps a program off a Node keeps doing so.

Sources:
    NVIDIA/mig-parted v0.15: pkg/mig/reconfigure/reconfigure.go;
    NVIDIA/k8s-driver-manager v0.8: internal/kubernetes/client.go (``paused-for-driver-upgrade``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpustate.cluster.api import Api, RefusedRequest
from gpustate.documents import Json
from gpustate.errors import ClusterError
from gpustate.manifests.ownership import DEPLOY, applied_labels
from gpustate.schedulers.base import Emit, NotDrainedError, Stop, Waiting
from gpustate.schedulers.mig_state import labels_of

FOR_MIG, FOR_DRIVER = "paused-for-mig-change", "paused-for-driver-upgrade"
#: The programs, by the end of their label.
_CLIENTS = (
    *("device-plugin", "gpu-feature-discovery", "dcgm-exporter", "dcgm", "nvsm", "client"),
    "dra-driver",
)
_LEAVE_S = 300.0
_POLL_S = 1.0
_CONFLICTS = 5


@dataclass(frozen=True, slots=True)
class NvidiaPods:
    """These programs on the Nodes of one cluster.

    Args:
        api: access to it.
        value: of the labels meanwhile.
        sleep: waits so many seconds.
        clock: seconds, monotonic.
    """

    api: Api
    value: str
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def pause(self, name: str, emit: Emit, stop: Stop) -> None:
        """Keep their pods away, and wait until they have left.

        Raises:
            NotDrainedError: they do not leave.
            ClusterError: the API server does not answer.
        """

        def change(node: Json) -> Json | None:
            running = {
                key: self.value
                for key, value in _labels_of_programs(node).items()
                if value == "true"
            }
            return {"metadata": {"labels": running}} if running else None

        node = patch_node(self.api, name, change)
        paused = {key for key, value in _labels_of_programs(node).items() if value == self.value}
        end = self.clock() + _LEAVE_S
        waiting = Waiting(emit, self.clock, "programs that have GPUs open to leave")
        while names := self._pods(name, paused):
            words = ", ".join(names)
            waiting.report(words)
            if self.clock() > end:
                raise NotDrainedError(f"Node {name}: {words} did not leave in {_LEAVE_S:g} s")
            if stop():
                raise NotDrainedError("interrupted while programs with open GPUs left")
            self.sleep(_POLL_S)

    def resume(self, name: str, is_own: Callable[[Json], bool]) -> None:
        """Let their pods run again.

        Args:
            name: of the Node.
            is_own: whether the change of a Node is gpustate's.
        """

        def change(node: Json) -> Json | None:
            labels = self.resumed(node)
            return {"metadata": {"labels": labels}} if labels and is_own(node) else None

        patch_node(self.api, name, change)

    def resumed(self, node: Json) -> dict[str, str]:
        """The labels that let them run again."""
        return {
            key: "true" for key, value in _labels_of_programs(node).items() if value == self.value
        }

    def _pods(self, name: str, paused: set[str]) -> list[str]:
        """Pods on a Node that only run there by one of the paused labels."""
        if not paused:
            return []
        return sorted(
            f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"
            for pod in self.api.pods_on(name)
            if paused & ((pod.get("spec") or {}).get("nodeSelector") or {}).keys()
            and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        )


def patch_node(api: Api, name: str, change: Callable[[Json], Json | None]) -> Json:
    """Patch a Node as it was read; as it is then.

    Raises:
        ClusterError: the API server does not answer, or others change the Node all the time.
    """
    for _ in range(_CONFLICTS):
        node = api.node(name)
        patch = change(node)
        if patch is None:
            return node
        try:
            return write_node(api, node, patch)
        except RefusedRequest as error:
            if error.status != 409:
                raise
    raise ClusterError(f"Node {name} is changed all the time; run again")


def write_node(api: Api, node: Json, patch: Json) -> Json:
    """Patch a Node as it was read; labels that gpustate has applied stay its own, so that a removal finds them.

    Raises:
        RefusedRequest: the server refuses; 409: the Node has changed since.
    """
    labels = patch["metadata"].get("labels") or {}
    applied = {name: labels[name] for name in applied_labels(node) & labels.keys()}
    patched = {name: value for name, value in labels.items() if name not in applied}
    if applied:
        node = api.apply_labels(node, applied)
        if not patched and patch.keys() == {"metadata"} and patch["metadata"].keys() == {"labels"}:
            return node
    meta = {**patch["metadata"], "resourceVersion": node["metadata"]["resourceVersion"]}
    if labels:
        meta["labels"] = patched
    return api.patch_node(node["metadata"]["name"], {**patch, "metadata": meta})


def _labels_of_programs(node: Json) -> Mapping[str, str]:
    labels = labels_of(node)
    keys = (f"{DEPLOY}{program}" for program in _CLIENTS)
    return {key: labels[key] for key in keys if key in labels}
