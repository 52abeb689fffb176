"""Read from a cluster what decides whether a pod gets its GPUs: read-only, one list per kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpustate.cluster.api import Api, RefusedRequest
from gpustate.cluster.objects import Objects
from gpustate.documents import Json
from gpustate.errors import ClusterError
from gpustate.manifests.kinds import BY_NAME, NODE, Kind

_EVENT = Kind("Event", "v1", "events", namespaced=True)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cluster as a pod sees it.

    Args:
        namespace, name: of the pod.
        pod: ``None`` if it does not exist.
        nodes: all Nodes.
        pods: of all namespaces.
        events: of the namespace.
        runtime_classes: by name, the labels that each demands of a Node.
        claims: ResourceClaims of all namespaces.
        daemon_sets: of all namespaces.
        unread: what could not be read, and why.
    """

    namespace: str
    name: str
    pod: Json | None
    nodes: tuple[Json, ...] = ()
    pods: tuple[Json, ...] = ()
    events: tuple[Json, ...] = ()
    runtime_classes: Mapping[str, Mapping[str, str]] | None = None
    claims: tuple[Json, ...] = ()
    daemon_sets: tuple[Json, ...] = ()
    unread: tuple[str, ...] = field(default=())


def read(api: Api, namespace: str, name: str) -> Snapshot:
    """Read a cluster. What a right is missing for is left out and named, except Nodes and pods.

    Raises:
        ClusterError: Nodes or pods cannot be listed.
    """
    objects, unread = Objects(api), list[str]()

    def optional(kind: Kind, place: str = namespace) -> list[Json]:
        try:
            return objects.list(kind, place)
        except ClusterError as error:
            unread.append(str(error))
            return []

    nodes = objects.list(NODE, "")
    pods = api.pods()
    try:
        claims = api.claims()
    except RefusedRequest as error:
        claims = []
        unread.append(str(error))
    matches = [
        pod
        for pod in pods
        if (pod["metadata"]["namespace"], pod["metadata"]["name"]) == (namespace, name)
    ]
    before = len(unread)
    classes = {
        item["metadata"]["name"]: (item.get("scheduling") or {}).get("nodeSelector") or {}
        for item in optional(BY_NAME["RuntimeClass"])
    }
    runtime_classes = classes if len(unread) == before else None
    return Snapshot(
        namespace,
        name,
        matches[0] if matches else None,
        tuple(nodes),
        tuple(pods),
        tuple(optional(_EVENT)),
        runtime_classes,
        tuple(claims),
        tuple(optional(BY_NAME["DaemonSet"], "*")),
        tuple(unread),
    )
