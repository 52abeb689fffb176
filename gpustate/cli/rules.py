"""What verbs do with the rules of the matrix before anything else: read them, and hold exceptions against them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpustate.core.policy import Policy


def read() -> None:
    """Read the rules of the matrix first of all: what is wrong with them is told before anything is asked.

    Raises:
        UsageError, RefusedError: as :func:`gpustate.compat.load`.
    """
    from gpustate import compat

    compat.load()


def check_allowed(policy: Policy, source: str) -> None:
    """Refuse exceptions from rules that there are not, whether or not a node of the group is asked for.

    Raises:
        PolicyError: with the place, and the nearest rule.
    """
    said: list[tuple[tuple[str, ...], Mapping[str, str]]] = [(("allow",), policy.allow)]
    for section, overrides in (("groups", policy.groups), ("nodes", policy.nodes)):
        said += [
            ((section, name, "allow"), body.get("allow") or {}) for name, body in overrides.items()
        ]
    if not any(allow for _, allow in said):
        return
    from gpustate import compat
    from gpustate.core.layers import Layer
    from gpustate.engine import gate

    rules, whole = compat.load(), Layer("fleet", place=source, places=policy.places)
    for path, allow in said:
        for name in allow:
            if name not in rules.rules:
                gate.refuse_unknown_rule(name, whole.place_of((*path, name)), rules)
