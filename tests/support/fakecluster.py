"""Nodes, pods and a stub of the API, for tests of the link ``pod`` without a cluster."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from typing import Any

from gpustate.cluster import pods
from gpustate.documents import Json
from gpustate.errors import ClusterError
from gpustate.nodeside.container_inside import MARK

GPU = "GPU-aaaaaaaa"


def node(name: str = "gpu1", gpus: str = "8", **status: Any) -> Json:
    """A Ready Node with GPUs."""
    return {
        "metadata": {"name": name},
        "spec": {},
        "status": {
            "nodeInfo": {
                "bootID": f"boot-{name}",
                "machineID": f"machine-{name}",
                "systemUUID": f"UUID-{name}".upper(),
                "containerRuntimeVersion": "containerd://1.7.24",
            },
            "allocatable": {"cpu": "4", pods.GPU: gpus},
            "capacity": {"cpu": "4", pods.GPU: gpus},
            "conditions": [{"type": "Ready", "status": "True"}],
            **status,
        },
    }


def holder(count: str, phase: str = "Running", resource: str = pods.GPU) -> Json:
    """A pod that holds GPUs."""
    limits = {"limits": {resource: count}}
    return {
        "metadata": {"name": f"job-{count}"},
        "spec": {"containers": [{"name": "main", "resources": limits}]},
        "status": {"phase": phase},
    }


def report(**changes: Any) -> Json:
    """What a pod with one GPU prints."""
    return {
        "devices": {"/dev/nvidia0": 0, "/dev/nvidiactl": 0},
        "files": ["/usr/lib/libcuda.so.580.65.06"],
        "nvml": {"uuids": [GPU], "mig": [], "error": ""},
        "cuda": [{"uuid": GPU, "ok": True, "error": None, "text": ""}],
        **changes,
    }


NOTHING = report(
    devices={},
    files=[],
    nvml={"uuids": [], "mig": [], "error": "libnvidia-ml.so.1: cannot open shared object file"},
    cuda=[],
)


class FakeApi:
    """A cluster with one Node, whose pods take the statuses of a script, one at each look.

    Args:
        found: its Node.
        statuses: of a pod; the last one stays.
        logs: of each pod that is created, in their order.
        others: pods on the Node.
    """

    def __init__(
        self,
        found: Json | None = None,
        *,
        statuses: list[Json] | None = None,
        logs: list[Json] | None = None,
        others: list[Json] | None = None,
    ) -> None:
        self.found = found or node()
        self.statuses = statuses or [{"phase": "Pending"}, {"phase": "Succeeded"}]
        self.logs = logs or [report()]
        self.others = others or []
        self.created: list[Json] = []
        self.deleted: list[str] = []
        self.left: list[Json] = []
        self.warnings: list[Json] = []
        self.classes: tuple[str, ...] = ()
        self.fails: dict[str, str | ClusterError] = {}
        self.at_look: Callable[[], None] = lambda: None
        self._looks = itertools.count()

    def _check(self, verb: str) -> None:
        if verb in self.fails:
            error = self.fails[verb]
            raise ClusterError(error) if isinstance(error, str) else error

    def nodes(self) -> list[Json]:
        self._check("nodes")
        return [self.found]

    def node(self, name: str) -> Json:
        assert name == self.found["metadata"]["name"]
        return copy.deepcopy(self.found)

    def pods_on(self, node: str) -> list[Json]:
        return [*self.others, *self.present()]

    def labelled_pods(self, labels: dict[str, str]) -> list[Json]:
        assert labels == pods.LABELS
        return self.left

    def create_pod(self, pod: Json) -> Json:
        self._check("create_pod")
        self.created.append(pod)
        self._looks = itertools.count()
        return {**pod, "metadata": {**pod["metadata"], "uid": "1"}}

    def present(self) -> list[Json]:
        """Pods that were created and not deleted."""
        return [pod for pod in self.created if pod["metadata"]["name"] not in self.deleted]

    def pod(self, name: str) -> Json | None:
        self.at_look()
        self._check("pod")
        if name in self.deleted:
            return None
        found = next((pod for pod in self.created if pod["metadata"]["name"] == name), None)
        look = min(next(self._looks), len(self.statuses) - 1)
        return None if found is None else {**found, "status": self.statuses[look]}

    def delete_pod(self, name: str) -> None:
        self._check("delete_pod")
        self.deleted.append(name)
        self.left = [pod for pod in self.left if pod["metadata"]["name"] != name]

    def log(self, name: str) -> str:
        self._check("log")
        text = self.logs[min(len(self.created), len(self.logs)) - 1]
        return f"\n{MARK}{json.dumps(text)}\n" if text else "Traceback\nMemoryError\n"

    def events(self, uid: str) -> list[Json]:
        self._check("events")
        return self.warnings

    def has_runtime_class(self, name: str) -> bool:
        return name in self.classes
