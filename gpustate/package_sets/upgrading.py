"""A policy with another driver version than it requests."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from copy import copy
from typing import Any

from gpustate.core.policy import Policy, build, parameters
from gpustate.documents import Json, JsonView
from gpustate.errors import PolicyError, UsageError
from gpustate.formats.words import quote
from gpustate.package_sets.driver_sets import driver_of
from gpustate.solve.branches import CHANNELS

_BRANCH = re.compile(r"[4-9][0-9]{2}")
_VERSION = re.compile(r"[4-9][0-9]{2}(\.[0-9]+){1,2}")


def with_driver(policy: Policy, driver: str, place: str) -> Policy:
    """The same policy with a driver version or branch that no group, node or lock file replaces.

    Args:
        policy: has a driver.
        driver: a version, as ``580.65.06``, or a branch, as ``580``.
        place: of the policy, for messages.

    Raises:
        UsageError: the policy has no driver.
        PolicyError: this is neither a branch nor a version.
    """
    state = driver_of(policy.states)
    if state is None or state.absent:
        raise UsageError(
            "the policy has no driver to upgrade", place=place, fix="add the state driver to it"
        )
    branch = _BRANCH.fullmatch(driver) is not None
    if not branch and driver not in CHANNELS and not _VERSION.fullmatch(driver):
        raise PolicyError(
            f"{quote(driver)} is neither a driver branch nor a version",
            place="--driver",
            fix="write a branch such as 580, or a version such as 580.65.06",
        )
    driver_values: dict[str, object] = {
        "version": None if branch else driver,
        "branch": int(driver) if branch else None,
        "locked": {},
    }
    new = build(type(state), {**parameters(state), **driver_values}, place="--driver")
    states = [new if policy_state is state else policy_state for policy_state in policy.states]
    upgraded = copy(policy)
    upgraded.notes += _left_behind(policy, state.name, parameters(state), driver, place)
    # A version beside another branch would be a contradiction.
    upgraded.groups, upgraded.nodes = (
        _without(o, state.name, driver_values) for o in (policy.groups, policy.nodes)
    )
    return upgraded.with_states(
        *states, last=[("states", state.name, key) for key in driver_values]
    )


def _left_behind(
    policy: Policy, state: str, state_values: JsonView, driver: str, place: str
) -> tuple[str, ...]:
    """A note that the policy still names another driver."""
    for key in ("version", "branch"):
        if state_values.get(key) is not None and str(state_values[key]) != driver:
            where = policy.places.get(("states", state, key), place)
            text = f"the file keeps {state}.{key} {state_values[key]}: set {driver} there too, or the next apply goes back"
            return (f"{where}: {text}",)
    return ()


def _without(
    overrides: Mapping[str, JsonView], state: str, keys: Collection[str]
) -> dict[str, Json]:
    """Overrides without some parameters of a state."""

    def strip_keys(name: str, values: Any) -> Any:
        if name != state:
            return values
        return {key: value for key, value in values.items() if key not in keys}

    return {
        scope: {name: strip_keys(name, values) for name, values in body.items()}
        for scope, body in overrides.items()
    }


__all__ = ["with_driver"]
