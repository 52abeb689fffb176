"""Restart the device plugin's pod on a Node whose list of quarantined GPUs has changed.

The plugin looks for GPUs only at its start. Pods that use GPUs go on meanwhile; for some seconds the Node offers none.
Only pods of gpustate's DaemonSet leave quarantined GPUs out, so other device plugins are named and left alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpustate.cluster import pods
from gpustate.documents import Json
from gpustate.formats.quarantine import FILE
from gpustate.reconcile import readiness

_PLUGIN = "nvidia-device-plugin"
_POLL_S = 1.0
#: A kubelet reports what its Node offers every ten seconds, so the first report is of before.
REPORT_S = 12.0


class PodApi(Protocol):
    """The requests that are needed; see :class:`gpustate.cluster.api.Api`."""

    def node(self, name: str) -> Json: ...
    def pods_on(self, node: str) -> list[Json]: ...
    def delete(self, pod: Json) -> None: ...


@dataclass(frozen=True)
class PluginRestart:
    """Restarts device plugins.

    Args:
        api: of the cluster.
        timeout_s: seconds until the new pod is ready and the Node offers GPUs.
        stop: polled; once true, nothing is waited for.
        sleep, clock: wait, and the time in seconds.
    """

    api: PodApi
    timeout_s: float = 120.0
    stop: Callable[[], bool] = lambda: False
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def restart(self, node: str) -> tuple[bool, str]:
        """Restart the plugin on a Node; return whether the list is in effect, and what happened.

        Raises:
            ClusterError: a request failed.
        """
        plugin_pods = [pod for pod in self.api.pods_on(node) if runs_plugin(pod)]
        if not plugin_pods:
            return True, "no pod of the device plugin is on the Node"
        foreign = [pod for pod in plugin_pods if not leaves_out(pod)]
        if foreign:
            meta = foreign[0]["metadata"]
            name = f"{meta['namespace']}/{meta['name']}"
            return False, (
                f"the device plugin's pod {name} is not gpustate's and offers quarantined GPUs: "
                f"kubectl cordon {node}, or apply the policy with --cluster-objects"
            )
        for pod in plugin_pods:
            self.api.delete(pod)
        return self._wait(node, {pod["metadata"]["uid"] for pod in plugin_pods})

    def _wait(self, node: str, before: set[str]) -> tuple[bool, str]:
        began = self.clock()
        ready_at: float | None = None
        words = "no new pod of the device plugin"
        while True:
            new = [
                pod
                for pod in self.api.pods_on(node)
                if runs_plugin(pod) and pod["metadata"]["uid"] not in before
            ]
            if new:
                words = readiness.problem(new[0])
            if words:
                ready_at = None
            elif ready_at is None:
                ready_at = self.clock()
            stable = ready_at is not None and self.clock() >= ready_at + REPORT_S
            offered = pods.allocatable(self.api.node(node)) if stable else {}
            if offered:
                listed = ", ".join(f"{name}: {count}" for name, count in sorted(offered.items()))
                return True, f"the device plugin was restarted; the Node offers {listed}"
            waited = min(self.clock() - began, self.timeout_s)
            if waited == self.timeout_s or self.stop():
                why = words or "it has not registered with the kubelet"
                return (
                    False,
                    f"the device plugin was restarted, and is not ready after {waited:.0f} s: {why}",
                )
            self.sleep(_POLL_S)


def runs_plugin(pod: Json) -> bool:
    """Whether a pod's container runs NVIDIA's device plugin."""
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return False
    spec = pod.get("spec") or {}
    return any(
        container["name"].startswith(_PLUGIN) or _PLUGIN in (container.get("command") or ())
        for container in spec.get("containers") or ()
    )


def leaves_out(pod: Json) -> bool:
    """Whether a device plugin's pod leaves quarantined GPUs out."""
    return any(
        FILE in word
        for container in (pod.get("spec") or {}).get("containers") or ()
        for word in container.get("command") or ()
    )
