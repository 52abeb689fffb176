"""Users of a lab's cluster with exactly the rights of a role, and the roles of the manual."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from labkubernetes import kubectl

from gpustate_lab.api import Lab
from gpustate_lab.kubernetes.cluster import Kubernetes

Rule = tuple[str, str, str]  # API group, resource, verb
_DOCS = Path(__file__).parents[2] / "docs"
#: Where the manual has rules, and how many lists of rules precede them there.
ALWAYS, INSTALLING, DRA = (("cluster-reference.md", number) for number in range(3))
CONTAINERS = ("containers.md", 0)


def documented(place: tuple[str, int] = ALWAYS) -> list[Rule]:
    """The rules of a place of the manual, one for each verb of a resource."""
    page, number = place
    text = (_DOCS / page).read_text("utf-8").partition("## Rights\n")[2]
    blocks = re.findall(r"^    rules:\n(?:    .*\n)+", text, re.MULTILINE)
    return sorted(set(_single(yaml.load(blocks[number], yaml.CSafeLoader)["rules"])))


def _single(rules: list[dict[str, Any]]) -> Iterator[Rule]:
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield group, resource, verb


def user(lab: Lab, name: str) -> Path:
    """A kubeconfig of a user without rights; :func:`grant` gives it some."""
    return Kubernetes(lab).layout.write_system(name, name)


def grant(lab: Lab, name: str, rules: list[Rule]) -> None:
    """Give a user exactly these rights."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [
            {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
            for group, resource, verb in rules
        ],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}],
    }
    for item in (role, binding):
        kubectl(lab, "apply", "-f", "-", stdin=yaml.safe_dump(item))
