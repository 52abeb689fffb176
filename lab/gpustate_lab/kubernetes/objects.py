"""Initial objects of the cluster: roles of its users, and resources of node feature discovery.

Source: sigs.k8s.io/node-feature-discovery v0.18.3, deployment/base/rbac: the roles of master and worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gpustate_lab.kubernetes.client import Client
from gpustate_lab.kubernetes.layout import ADMINISTRATORS, DEVELOPER_NAMESPACE
from gpustate_lab.kubernetes.machine import NFD_NAMESPACE

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_GROUP = "rbac.authorization.k8s.io"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

Item = tuple[str, dict[str, Any]]


def create(client: Client, crds: Path | None) -> None:
    """Create missing objects; existing ones are left unchanged.

    Args:
        crds: the custom resources of node feature discovery, a YAML file; ``None``: nothing of it is created.
    """
    for path, item in _items():
        client.create(path, item)
    if crds is None:
        return
    for path, item in _feature_discovery():
        client.create(path, item)
    for document in yaml.load_all(crds.read_text(), Loader=yaml.CSafeLoader):
        client.create(_CRDS, document)


def _items() -> Iterator[Item]:
    yield "/api/v1/namespaces", {"metadata": {"name": DEVELOPER_NAMESPACE}}
    yield _cluster_binding("administrators", "cluster-admin", "Group", ADMINISTRATORS)
    # The role `view` has no cluster-scoped resources.
    yield _cluster_role("gpustate-lab:view-nodes", [_rule("", ["nodes"], _READ)])
    yield _cluster_binding("viewer", "view", "User", "viewer")
    yield _cluster_binding("viewer-nodes", "gpustate-lab:view-nodes", "User", "viewer")
    yield _binding(DEVELOPER_NAMESPACE, "developer", "ClusterRole", "edit", "developer")
    yield _cluster_role("gpustate-lab:kwok", _KWOK)
    yield _cluster_binding("kwok", "gpustate-lab:kwok", "User", "kwok")


def _feature_discovery() -> Iterator[Item]:
    yield "/api/v1/namespaces", {"metadata": {"name": NFD_NAMESPACE}}
    yield _cluster_role("gpustate-lab:nfd-master", _NFD_MASTER)
    yield _cluster_binding("nfd-master", "gpustate-lab:nfd-master", "User", "nfd-master")
    role = {"metadata": {"name": "nfd-worker"}, "rules": _NFD_WORKER}
    yield f"{_RBAC}/namespaces/{NFD_NAMESPACE}/roles", role
    for agent in ("nfd-worker", "gpu-feature-discovery"):
        yield _binding(NFD_NAMESPACE, agent, "Role", "nfd-worker", agent)


_READ = ("get", "list", "watch")
_CHANGE = ("update", "patch")


def _rule(group: str, resources: list[str], verbs: tuple[str, ...]) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}


_NFD_API = "nfd.k8s-sigs.io"
_NFD_MASTER = [
    _rule("", ["namespaces"], _READ),
    _rule("", ["nodes", "nodes/status"], ("get", "list", *_CHANGE)),
    _rule(_NFD_API, ["nodefeatures", "nodefeaturerules", "nodefeaturegroups"], _READ),
    _rule(_NFD_API, ["nodefeaturegroups/status"], _CHANGE),
]
_NFD_WORKER = [
    _rule(_NFD_API, ["nodefeatures"], (*_READ, "create", "update", "delete")),
    _rule("", ["pods"], ("get",)),
]
_KWOK = [
    _rule("", ["nodes"], (*_READ, *_CHANGE)),
    _rule("", ["pods"], (*_READ, *_CHANGE, "delete")),
    _rule("", ["nodes/status", "pods/status"], _CHANGE),
    _rule("", ["events"], ("create", *_CHANGE)),
    _rule("coordination.k8s.io", ["leases"], (*_READ, "create", *_CHANGE, "delete")),
]


def _cluster_role(name: str, rules: list[dict[str, Any]]) -> Item:
    return f"{_RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules}


def _cluster_binding(name: str, role: str, kind: str, subject: str) -> Item:
    return f"{_RBAC}/clusterrolebindings", {
        "metadata": {"name": f"gpustate-lab:{name}"},
        "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": _GROUP, "kind": kind, "name": subject}],
    }


def _binding(namespace: str, name: str, kind: str, role: str, user: str) -> Item:
    return f"{_RBAC}/namespaces/{namespace}/rolebindings", {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _GROUP, "kind": kind, "name": role},
        "subjects": [{"apiGroup": _GROUP, "kind": "User", "name": user}],
    }
