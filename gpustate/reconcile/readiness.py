"""Whether the pods of a DaemonSet or a Deployment run, as ``kubectl rollout status`` judges it, and why not.

Sources:
    kubernetes/kubectl, pkg/polymorphichelpers/rollout_status.go; Kubernetes API: DaemonSetStatus, DeploymentStatus,
    PodStatus.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gpustate.documents import Json
from gpustate.formats.words import listed
from gpustate.manifests.kinds import title

#: Reasons of containers that have not started yet.
_STARTING = ("ContainerCreating", "PodInitializing")


def waiting(item: Json) -> str:
    """What a DaemonSet or a Deployment still waits for; empty if it is rolled out."""
    status, spec = item.get("status") or {}, item["spec"]
    if status.get("observedGeneration", 0) < item["metadata"].get("generation", 0):
        return f"{title(item)}: not observed yet by its controller"
    if item["kind"] == "Deployment":
        desired = spec.get("replicas", 1)
        updated, available = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
    else:
        desired = status.get("desiredNumberScheduled", 0)
        updated = status.get("updatedNumberScheduled", 0)
        available = status.get("numberAvailable", 0)
    rolling = spec.get("updateStrategy", {}).get("type") != "OnDelete"
    if rolling and updated < desired:
        return f"{title(item)}: {updated} of {desired} pods are updated"
    if available < desired:
        return f"{title(item)}: {available} of {desired} pods are available"
    return ""


def problems(pods: Iterable[Json], item: Json) -> list[str]:
    """Why pods of a DaemonSet or a Deployment are not ready, one line for those that are alike."""
    places: dict[str, list[str]] = {}
    for pod in _not_ready(pods, item):
        place = f"{pod['metadata']['name']} on {_node(pod) or 'no node'}"
        places.setdefault(problem(pod), []).append(place)
    return sorted(f"{listed(sorted(alike), 1)}: {words}" for words, alike in places.items())


def is_starting(pod: Json) -> bool:
    """Whether a pod is not ready, and nothing is known that keeps it from that."""
    return problem(pod).startswith("phase ") or any(reason in problem(pod) for reason in _STARTING)


def is_elsewhere(pods: Iterable[Json], item: Json, nodes: Collection[str]) -> bool:
    """Whether a DaemonSet, all of whose pods are updated, waits only for pods on other Nodes than these."""
    status = item.get("status") or {}
    desired = status.get("desiredNumberScheduled", 0)
    if item["kind"] != "DaemonSet" or status.get("updatedNumberScheduled", 0) < desired:
        return False
    names = [_node(pod) for pod in _not_ready(pods, item)]
    missing = desired - status.get("numberAvailable", 0)
    return len(names) >= missing and all(name and name not in nodes for name in names)


def ready_on(pods: Iterable[Json], item: Json) -> frozenset[str]:
    """The Nodes on which pods of a DaemonSet are ready."""
    return frozenset(_node(pod) for pod in _pods_of(pods, item) if not problem(pod))


def _not_ready(pods: Iterable[Json], item: Json) -> list[Json]:
    return [pod for pod in _pods_of(pods, item) if problem(pod)]


def _pods_of(pods: Iterable[Json], item: Json) -> list[Json]:
    selector = item["spec"]["selector"]["matchLabels"].items()
    return [pod for pod in pods if selector <= (pod["metadata"].get("labels") or {}).items()]


def _node(pod: Json) -> str:
    return str((pod.get("spec") or {}).get("nodeName", ""))


def creation_failure(events: Iterable[Json], item: Json) -> str:
    """Why the last pod of a DaemonSet or a Deployment was not created; empty if none failed."""
    name = item["metadata"]["name"]
    failures = [
        event
        for event in events
        if event.get("reason") == "FailedCreate"
        and _is_about(event.get("involvedObject") or {}, name)
    ]
    failures.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    return f"creating a pod failed: {failures[-1].get('message', '').strip()}" if failures else ""


def _is_about(target: Json, name: str) -> bool:
    """Whether the object of an event is the one of a name, or the ReplicaSet of that Deployment."""
    target_name = str(target.get("name", ""))
    if target.get("kind") == "ReplicaSet":
        target_name = target_name.rpartition("-")[0]
    return target_name == name


def problem(pod: Json) -> str:
    """Why a pod is not ready; empty if it is."""
    status = pod.get("status") or {}
    containers = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    for container in containers:
        state = container.get("state") or {}
        for kind in ("waiting", "terminated"):
            reason = (state.get(kind) or {}).get("reason")
            if reason and reason != "Completed":
                message = (state[kind].get("message") or "").strip()
                end = _last_end(container)
                ended = f", {end}" if end else ""
                return f"{container['name']}: {reason}{ended}{': ' if message else ''}{message}"
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"not scheduled: {condition.get('message') or condition.get('reason')}"
    ready = any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in status.get("conditions") or ()
    )
    if ready:
        return ""
    for container in containers:
        if not container.get("ready") and (end := _last_end(container)):
            return f"{container['name']}: restarted {container.get('restartCount', 1)} times, last {end}"
    return f"phase {status.get('phase', 'Pending')}"


def _last_end(container: Json) -> str:
    """How a container last ended, by its status; empty if it has not."""
    last = (container.get("lastState") or {}).get("terminated") or {}
    return f"ended with exit code {last['exitCode']}" if "exitCode" in last else ""
