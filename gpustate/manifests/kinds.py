"""Kinds of objects: their names, and the order of their application."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object.

    Args:
        name: its kind.
        version: its apiVersion.
        plural: its resource.
        namespaced: whether it is in a namespace.
    """

    name: str
    version: str
    plural: str
    namespaced: bool

    @property
    def group(self) -> str:
        """Its API group; empty for the core."""
        return self.version.rpartition("/")[0]


#: In the order of their application; they are deleted in the opposite order.
KINDS = (
    Kind("Namespace", "v1", "namespaces", namespaced=False),
    Kind("RuntimeClass", "node.k8s.io/v1", "runtimeclasses", namespaced=False),
    Kind("ServiceAccount", "v1", "serviceaccounts", namespaced=True),
    Kind("ConfigMap", "v1", "configmaps", namespaced=True),
    Kind("ClusterRole", "rbac.authorization.k8s.io/v1", "clusterroles", namespaced=False),
    Kind(
        "ClusterRoleBinding",
        "rbac.authorization.k8s.io/v1",
        "clusterrolebindings",
        namespaced=False,
    ),
    Kind("Role", "rbac.authorization.k8s.io/v1", "roles", namespaced=True),
    Kind("RoleBinding", "rbac.authorization.k8s.io/v1", "rolebindings", namespaced=True),
    Kind("DaemonSet", "apps/v1", "daemonsets", namespaced=True),
)
#: Nodes are labelled, never created or deleted.
NODE = Kind("Node", "v1", "nodes", namespaced=False)
BY_NAME: Mapping[str, Kind] = {kind.name: kind for kind in (*KINDS, NODE)}

#: Kind and name; every namespaced object is in one and the same namespace.
Key = tuple[str, str]


def key(item: Json) -> Key:
    """Kind and name of an object."""
    return item["kind"], item["metadata"]["name"]


def title(item: Json) -> str:
    """An object in messages: ``daemonset/nvidia-device-plugin-daemonset``."""
    return f"{item['kind'].lower()}/{item['metadata']['name']}"


def order(item: Json) -> tuple[int, str]:
    """Sorts objects in the order of their application."""
    names = [kind.name for kind in KINDS]
    kind = item["kind"]
    return (names.index(kind) if kind in names else len(names), item["metadata"]["name"])
