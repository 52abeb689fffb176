"""The matrix on the walk of a node: nothing is written on one whose plan cannot work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from filestates import First, here, request

from gpustate import Policy
from gpustate.core.inventory import InventoryNode
from gpustate.core.outcome import NodeStatus
from gpustate.core.planned import PlannedObservation
from gpustate.engine import fleet

RULE = "proprietary-modules-615"


class Pretender(First):
    """A file, under the name and with the parameters of the driver."""

    name: ClassVar[str] = "driver"
    version: str = "615.71.09"
    module_type: str = "proprietary"

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        return {"driver": self.version, "module_type": self.module_type}


@pytest.fixture
def node(tmp_path: Path) -> InventoryNode:
    return here(tmp_path / "state")


def walk(
    node: InventoryNode, path: Path, allow: str = "", *, apply: bool = True
) -> fleet.FleetResult:
    asked = request(node, Pretender(path=str(path)), apply=apply)
    policy = Policy(*asked.policy.states, allow={RULE: allow} if allow else {})
    return fleet.run(replace(asked, policy=policy))


@pytest.mark.parametrize("apply", [False, True])
def test_a_blocked_node_is_refused_before_the_first_write(
    node: InventoryNode, tmp_path: Path, apply: bool
) -> None:
    result = walk(node, tmp_path / "a", apply=apply)
    assert result.exit_code == 5
    assert result.nodes[0].status is NodeStatus.REFUSED
    assert result.nodes[0].reason.startswith(f"blocked by compatibility rule {RULE}: From R615 on")
    assert result.nodes[0].execs == 1
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "state").exists()


def test_an_allowed_rule_lets_it_pass_and_its_reason_is_in_plan_and_journal(
    node: InventoryNode, tmp_path: Path
) -> None:
    reason = 'it\'s a $(trial) of "ours"'
    result = walk(node, tmp_path / "a", reason)
    assert result.exit_code == 0
    assert f"matrix: {RULE} is allowed: {reason}" in result.nodes[0].notes
    assert (tmp_path / "a").exists()
    (journal,) = (tmp_path / "state" / "runs").glob("*/journal")
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    assert {"e": "allowed", "rule": RULE, "reason": reason} in entries


def test_a_node_that_would_not_change_is_not_judged(node: InventoryNode, tmp_path: Path) -> None:
    walk(node, tmp_path / "a", "a trial")
    result = walk(node, tmp_path / "a")
    assert result.exit_code == 0
    assert (result.nodes[0].execs, result.nodes[0].notes) == (1, [])
