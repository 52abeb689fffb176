"""The condition ``GPUHealthy`` and the start-up taint of Nodes through the API server.

Surprising: conditions are a map by type, so that server-side apply owns one of them; taints are one field, which is
only written together with the version that was read.

Sources:
    Kubernetes API: NodeStatus.conditions (listType=map), NodeSpec.taints (listType=atomic);
    kubernetes/node-problem-detector, pkg/exporters/k8sexporter/condition (patches nodes/status, heartbeat).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from lightkube.resources.core_v1 import Node
from lightkube.types import PatchType

from gpustate.cluster.api import Api, RefusedRequest
from gpustate.documents import Json
from gpustate.errors import ClusterError

#: Type of the condition, and the field manager that owns it.
CONDITION = "GPUHealthy"
CONDITION_MANAGER = "gpustate-health"
_CONFLICTS = 5


class OtherWriter(ClusterError):
    """Another field manager writes the condition; the message names it."""


class NodeStatusApi:
    """Writes what a run says about the GPUs of a Node.

    Args:
        api: access to the cluster.
    """

    def __init__(self, api: Api) -> None:
        self._api = api

    def nodes(self) -> list[Json]:
        """List all Nodes."""
        return self._api.nodes()

    def apply_condition(self, name: str, condition: Mapping[str, str] | None) -> None:
        """Write the condition of a Node, or remove it.

        Raises:
            OtherWriter: another manager writes it.
            ClusterError: the request failed.
        """
        body: Json = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        if condition is not None:
            body["status"] = {"conditions": [{"type": CONDITION, **condition}]}
        try:
            self._api.call(
                f"patch status of node {name}",
                lambda client: client.patch(
                    Node.Status,
                    name,
                    cast(Any, body),
                    patch_type=PatchType.APPLY,
                    field_manager=CONDITION_MANAGER,
                ),
            )
        except RefusedRequest as error:
            if error.status == 409 and "FieldManagerConflict" in error.causes:
                raise OtherWriter(" ".join(error.words.split())) from None
            raise

    def lift_taint(self, node: Json, key: str) -> bool:
        """Remove every taint with a key from a Node; return whether there was one.

        Raises:
            ClusterError: a request failed.
        """
        name = node["metadata"]["name"]
        for attempt in range(_CONFLICTS):
            if attempt:
                node = self._api.node(name)
            taints = (node.get("spec") or {}).get("taints") or []
            remaining = [taint for taint in taints if taint["key"] != key]
            if len(remaining) == len(taints):
                return False
            version = {"resourceVersion": node["metadata"]["resourceVersion"]}
            patch = {"metadata": version, "spec": {"taints": remaining or None}}
            try:
                self._api.patch_node(name, patch)
            except RefusedRequest as error:
                if error.status != 409:
                    raise
            else:
                return True
        raise ClusterError(f"node {name} changed {_CONFLICTS} times while its taint was removed")


def condition_of(node: Json) -> Json | None:
    """The condition of a Node; ``None`` without one."""
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition["type"] == CONDITION:
            return cast(Json, condition)
    return None


def owns_condition(node: Json) -> bool:
    """Whether the condition of a Node is gpustate's."""
    return any(
        entry.get("manager") == CONDITION_MANAGER and entry.get("subresource") == "status"
        for entry in node["metadata"].get("managedFields") or ()
    )


def has_taint(node: Json, key: str) -> bool:
    """Whether a Node has a taint with a key."""
    return any(taint["key"] == key for taint in (node.get("spec") or {}).get("taints") or ())
