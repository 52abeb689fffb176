"""Which rule a user lacks, by the API server's refusal. Pure.

Sources:
    kubernetes, staging/src/k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go (``cannot list resource``);
    kubernetes, pkg/registry/rbac/validation (rights that are not currently held).
"""

from __future__ import annotations

import re

_FORBIDDEN = re.compile(r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)"')
#: Rules that a user lacks, in the server's refusal to let them grant these.
_ESCALATION = re.compile(r"RBAC permissions not currently held:(.*)", re.DOTALL)
_RULE = re.compile(r"\{(?:\w+:\[[^\]]*\](?:, )?)+\}")
_VALUE = re.compile(r'"[^"]*"')
_FIELD = re.compile(r"(\w)(\w+):\[([^\]]*)\]")


def missing_right(words: str) -> str | None:
    """What to add to a role, by the server's message; ``None`` if it names no rule."""
    if (match := _FORBIDDEN.search(words)) is not None:
        verb, resource, group = match.groups()
        rule = f'{{apiGroups: ["{group}"], resources: ["{resource}"], verbs: ["{verb}"]}}'
        role = "ClusterRole" if "at the cluster scope" in words else "role"
        return f"add to a {role} of its user: {rule}"
    rules = _RULE.findall(match[1]) if (match := _ESCALATION.search(words)) is not None else []
    more = ", ".join(map(_yaml, rules))
    return (
        f"add to a role of its user, who may grant only rights of their own: {more}"
        if rules
        else None
    )


def _yaml(rule: str) -> str:
    """A rule as in a role, from ``{APIGroups:["apps"], Resources:["daemonsets"], Verbs:["get"]}``."""
    fields = [
        f"{first.lower()}{tail}: [{', '.join(_VALUE.findall(values))}]"
        for first, tail, values in _FIELD.findall(rule.replace("APIGroups", "ApiGroups"))
    ]
    return f"{{{', '.join(fields)}}}"
