"""Service accounts and their rights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Json = dict[str, Any]

_GROUP = "rbac.authorization.k8s.io"


def rule(group: str, resources: str, verbs: str) -> Json:
    """One rule; resources and verbs are separated by blanks."""
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}


#: To read the label that selects a configuration.
READ_NODES = rule("", "nodes", "get list watch")


def account(name: str, namespace: str) -> Json:
    """A service account."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": namespace},
    }


def grant(
    name: str, namespace: str, rules: Sequence[Json], *, cluster: bool, account: str = ""
) -> Iterator[Json]:
    """A role with its binding, in the namespace or in the whole cluster; without ``account``, of the role's name."""
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
        "subjects": [{"kind": "ServiceAccount", "name": account or name, "namespace": namespace}],
    }
