"""Whether the pods of a DaemonSet run, as ``kubectl rollout status`` judges it, and why not.

Sources:
    kubernetes/kubectl, pkg/polymorphichelpers/rollout_status.go (DaemonSet); Kubernetes API: DaemonSetStatus, PodStatus.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]


def waiting(daemon_set: Json) -> str:
    """What a DaemonSet still waits for; empty if it is rolled out."""
    status = daemon_set.get("status") or {}
    name = daemon_set["metadata"]["name"]
    if status.get("observedGeneration", 0) < daemon_set["metadata"].get("generation", 0):
        return f"daemonset/{name}: not observed yet by its controller"
    desired = status.get("desiredNumberScheduled", 0)
    rolling = daemon_set["spec"].get("updateStrategy", {}).get("type") != "OnDelete"
    updated = status.get("updatedNumberScheduled", 0)
    if rolling and updated < desired:
        return f"daemonset/{name}: {updated} of {desired} pods are updated"
    available = status.get("numberAvailable", 0)
    if available < desired:
        return f"daemonset/{name}: {available} of {desired} pods are available"
    return ""


def problems(pods: Iterable[Json], daemon_set: Json) -> list[str]:
    """Why pods of a DaemonSet are not ready, one line for each."""
    selector = daemon_set["spec"]["selector"]["matchLabels"]
    found: list[str] = []
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        if selector.items() <= labels.items() and (words := problem(pod)):
            node = (pod.get("spec") or {}).get("nodeName", "no node")
            found.append(f"{pod['metadata']['name']} on {node}: {words}")
    return sorted(found)


def problem(pod: Json) -> str:
    """Why a pod is not ready; empty if it is."""
    status = pod.get("status") or {}
    containers = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    for one in containers:
        state = one.get("state") or {}
        for kind in ("waiting", "terminated"):
            reason = (state.get(kind) or {}).get("reason")
            if reason and reason != "Completed":
                message = (state[kind].get("message") or "").strip()
                last = (one.get("lastState") or {}).get("terminated") or {}
                ended = f", ended with exit code {last['exitCode']}" if "exitCode" in last else ""
                return f"{one['name']}: {reason}{ended}{': ' if message else ''}{message}"
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"not scheduled: {condition.get('message') or condition.get('reason')}"
    ready = any(
        one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ()
    )
    return "" if ready else f"phase {status.get('phase', 'Pending')}"
