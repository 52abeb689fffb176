"""Service accounts and their rights: only what each program uses with these settings.

Sources:
    NVIDIA/k8s-device-plugin v0.20.0: cmd/config-manager (reads and watches its Node), internal/lm/output.go (reads, creates
    and updates the NodeFeature of its Node, and reads its own pod for the owner references).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Json = dict[str, Any]

_GROUP = "rbac.authorization.k8s.io"
_NODES = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}
_FEATURES = (
    {
        "apiGroups": ["nfd.k8s-sigs.io"],
        "resources": ["nodefeatures"],
        "verbs": ["get", "create", "update"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
)


def of_device_plugin(account: str, namespace: str, *, config: bool) -> Iterator[Json]:
    """The device plugin's account; with configurations it reads the Node's label."""
    yield _account(account, namespace)
    if config:
        yield from _grant(account, namespace, (_NODES,), cluster=True)


def of_feature_discovery(account: str, namespace: str, *, config: bool) -> Iterator[Json]:
    """GPU feature discovery's account, which writes NodeFeatures of its namespace."""
    yield _account(account, namespace)
    yield from _grant(account, namespace, _FEATURES, cluster=False)
    if config:
        yield from _grant(account, namespace, (_NODES,), cluster=True)


def _account(name: str, namespace: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": namespace},
    }


def _grant(name: str, namespace: str, rules: Sequence[Json], *, cluster: bool) -> Iterator[Json]:
    """A role with its binding."""
    kind = "ClusterRole" if cluster else "Role"
    meta = {"name": name} if cluster else {"name": name, "namespace": namespace}
    version = f"{_GROUP}/v1"
    yield {
        "apiVersion": version,
        "kind": kind,
        "metadata": dict(meta),
        "rules": [dict(one) for one in rules],
    }
    yield {
        "apiVersion": version,
        "kind": f"{kind}Binding",
        "metadata": dict(meta),
        "roleRef": {"apiGroup": _GROUP, "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
