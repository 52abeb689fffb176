"""What the states of a policy say against one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpustate import NodeFacts
from gpustate.core.state import AnyState


def conflict(
    state: AnyState,
    policy: Mapping[str, Any],
    facts: NodeFacts | None = None,
    observed: object = None,
) -> str | None:
    """The first reason against ``state``, its own or that of another state of the policy."""
    reasons = (
        found.reason
        for one in (state, *(other for name, other in policy.items() if name != state.name))
        if one is not None
        for found in one.conflicts(policy, facts or NodeFacts(), observed)
        if (found.state or one.name) == state.name
    )
    return next(reasons, None)
