"""What to add to a role of a user, by the words of the API server (Kubernetes 1.36) that refuses a request."""

from __future__ import annotations

import pytest

from gpustate.cluster.api import RefusedRequest
from gpustate.cluster.rights import missing_right

LIST = (
    'nodes is forbidden: User "u" cannot list resource "nodes" in API group "" at the cluster scope'
)
ROLE = (
    'roles.rbac.authorization.k8s.io "nvidia-gpu-feature-discovery" is forbidden: user "u" '
    '(groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:\n'
)
UPDATE = '{APIGroups:["nfd.k8s-sigs.io"], Resources:["nodefeatures"], Verbs:["update"]}'
NAMED = '{APIGroups:["coordination.k8s.io"], Resources:["leases"], ResourceNames:["a", "b"], Verbs:["get" "update"]}'


@pytest.mark.parametrize(
    ("words", "rules"),
    [
        (LIST, ['{apiGroups: [""], resources: ["nodes"], verbs: ["list"]}']),
        (
            f"{ROLE}{UPDATE}",
            ['{apiGroups: ["nfd.k8s-sigs.io"], resources: ["nodefeatures"], verbs: ["update"]}'],
        ),
        (
            f"{ROLE}{UPDATE}\n{NAMED}; resolution errors: [role not found]",
            [
                '{apiGroups: ["nfd.k8s-sigs.io"], resources: ["nodefeatures"], verbs: ["update"]}',
                '{apiGroups: ["coordination.k8s.io"], resources: ["leases"], resourceNames: ["a", "b"], '
                'verbs: ["get", "update"]}',
            ],
        ),
    ],
)
def test_the_rules_are_those_that_are_missing(words: str, rules: list[str]) -> None:
    fix = missing_right(words)
    assert fix is not None
    role = "ClusterRole" if "at the cluster scope" in words else "role"
    assert fix.startswith(f"add to a {role} of its user")
    assert fix.endswith(": " + ", ".join(rules))
    assert "escalate" not in fix


def test_a_refused_request_names_the_right_in_one_line() -> None:
    error = RefusedRequest(f"https://k: apply role/x: {ROLE}{UPDATE}", 403)
    assert str(error).endswith('resources: ["nodefeatures"], verbs: ["update"]}')
    assert "\n" not in str(error)
    assert RefusedRequest("quota exceeded", 403).fix is None
    assert RefusedRequest(LIST, 403, fix="get a kubeconfig").fix == "get a kubeconfig"
