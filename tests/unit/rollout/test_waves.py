"""Waves of a run: their nodes, how far it goes on after failures, pause, abort and soak time."""

from __future__ import annotations

from typing import Any

import pytest

from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.core.outcome import NodeResult, NodeStatus
from gpustate.core.policy import Policy
from gpustate.engine import fleet
from gpustate.rollout.strategy import Strategy
from gpustate.rollout.waves import Waves

NAMES = [f"n{number}" for number in range(10)]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of nodes whose walk fails."""
    names: set[str] = set()

    class Walk:
        def __init__(self, session: Any, resolved: Any, *_: Any) -> None:
            self.name = resolved.node.name

        def run(self) -> NodeResult:
            failed = self.name in names
            return NodeResult(self.name, NodeStatus.FAILED if failed else NodeStatus.OK)

    monkeypatch.setattr(fleet, "Walk", Walk)
    return names


def run(*, serial: tuple[str, ...] = (), max_failures: int = 0) -> fleet.FleetResult:
    inventory = Inventory("test", tuple(InventoryNode(name) for name in NAMES))
    strategy = Strategy(serial, max_failures)
    turns = Waves(strategy.rollout(inventory, 1, 0.0))
    return fleet.run(fleet.Request(Policy(), inventory, apply=True, forks=1, turns=turns))


def test_the_batch_of_the_first_failure_is_the_last(broken: set[str]) -> None:
    broken.add("n1")
    result = run(serial=("1", "3"))
    assert [node.name for node in result.nodes] == NAMES[:4]
    assert result.skipped == NAMES[4:]


@pytest.mark.parametrize(("most", "begun"), [(1, 2), (2, 5), (3, 10)])
def test_nothing_is_begun_once_so_many_have_failed(broken: set[str], most: int, begun: int) -> None:
    broken.update({"n1", "n4"})
    for serial in ((), ("2",), ("1", "3")):
        result = run(serial=serial, max_failures=most)
        assert [node.name for node in result.nodes] == NAMES[:begun]
        assert result.skipped == NAMES[begun:]


def test_without_batches_all_nodes_are_begun(broken: set[str]) -> None:
    broken.update(NAMES)
    assert run().skipped == []
