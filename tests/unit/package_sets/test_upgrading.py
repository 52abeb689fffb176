"""A policy with another driver version than it requests."""

from __future__ import annotations

from typing import Any

import pytest

from gpustate import Policy
from gpustate.core.inventory import InventoryNode
from gpustate.core.policy import parameters, resolve
from gpustate.errors import PolicyError, UsageError
from gpustate.package_sets.upgrading import with_driver
from gpustate.states.driver import DriverInstalled
from gpustate.states.nouveau import NouveauBlacklisted

NODE = InventoryNode("gpu1", vars={"gpustate": {"driver": {"branch": 570, "load": False}}})


@pytest.mark.parametrize(
    ("driver", "version", "branch"), [("580", None, 580), ("580.65.06", "580.65.06", None)]
)
def test_it_wins_over_policy_group_node_and_lock_file(
    driver: str, version: str | None, branch: int | None
) -> None:
    old = DriverInstalled(
        version="570.211.01", locked={"libcuda1": "570.211.01-1"}, module_type="open"
    )
    policy = Policy(NouveauBlacklisted(), old, nodes={"gpu1": {"driver": {"branch": 570}}})
    locked = policy.with_locks({"gpu1": {"driver": {"version": "570.211.01"}}}, "gpustate.lock")
    upgraded = with_driver(locked, driver, "policy.py")
    (state,) = (s for s in resolve(upgraded, NODE).states if s.name == "driver")
    found = parameters(state)
    assert (found["version"], found["branch"], found["locked"]) == (version, branch, {})
    assert (found["module_type"], found["load"]) == ("open", False)
    assert [s.name for s in upgraded.states] == ["nouveau", "driver"]


@pytest.mark.parametrize(
    ("parameters", "kept"),
    [({"version": "570.211.01"}, "version 570.211.01"), ({"branch": 570}, "branch 570")],
)
def test_a_version_that_the_file_keeps_is_noted(parameters: dict[str, Any], kept: str) -> None:
    policy = Policy(DriverInstalled(**parameters))
    assert with_driver(policy, "580", "policy.py").notes == (
        f"policy.py: the file keeps driver.{kept}: set 580 there too, or the next apply goes back",
    )
    assert not with_driver(Policy(DriverInstalled(branch=580)), "580", "policy.py").notes
    assert not with_driver(Policy(DriverInstalled()), "580", "policy.py").notes


def test_a_policy_without_a_driver_is_refused() -> None:
    for policy in (Policy(NouveauBlacklisted()), Policy(DriverInstalled(ensure="absent"))):
        with pytest.raises(UsageError, match="the policy has no driver to upgrade"):
            with_driver(policy, "580", "policy.py")


@pytest.mark.parametrize("driver", ["newest", "58", "5800", "580.", "580.65.06.1"])
def test_what_is_no_version_is_refused(driver: str) -> None:
    with pytest.raises(PolicyError) as caught:
        with_driver(Policy(DriverInstalled()), driver, "policy.py")
    assert str(caught.value) == (
        f"--driver: {driver!r} is neither a driver branch nor a version; "
        "write a branch such as 580, or a version such as 580.65.06"
    )
