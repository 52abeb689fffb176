"""A policy with another driver version than it requests."""

from __future__ import annotations

import re

from gpustate.core.policy import Policy, build, parameters
from gpustate.errors import UsageError
from gpustate.resolver.driver_sets import driver_of

_BRANCH = re.compile(r"[4-9][0-9]{2}")


def with_driver(policy: Policy, driver: str, place: str) -> Policy:
    """The same policy with a driver version or branch that no group, node or lock file replaces.

    Args:
        policy: has a driver.
        driver: a version, as ``580.65.06``, or a branch, as ``580``.
        place: of the policy, for messages.

    Raises:
        UsageError: the policy has no driver.
        PolicyError: this is no version.
    """
    state = driver_of(policy.states)
    if state is None or state.absent:
        raise UsageError(
            "the policy has no driver to upgrade", place=place, fix="add the state driver to it"
        )
    branch = _BRANCH.fullmatch(driver) is not None
    wanted: dict[str, object] = {
        "version": None if branch else driver,
        "branch": int(driver) if branch else None,
        "locked": {},
    }
    new = build(type(state), {**parameters(state), **wanted}, place="--driver")
    states = [new if one is state else one for one in policy.states]
    return policy.but(*states, last=[("states", state.name, key) for key in wanted])


__all__ = ["with_driver"]
