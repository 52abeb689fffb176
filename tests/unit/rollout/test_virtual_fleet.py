"""A rollout over many virtual nodes: the loop, its slots and the Kubernetes scheduler are real, the nodes are not.

The cluster is in memory behind HTTP, with an API as strict as the real one; its history is the witness. 40 nodes by
default, 200 with ``--proof``. Nodes that answer over ssh: ``tests/proof/test_rollout_waves.py``.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from apigate import HOLD, Gate
from shares import everything
from stubcluster import TOKEN, StubCluster

from gpustate.api.rolling import roll_out
from gpustate.core.change import Disruption
from gpustate.core.facts import NodeFacts
from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.core.outcome import NodeResult, NodeStatus
from gpustate.core.policy import Policy
from gpustate.engine import fleet
from gpustate.engine.events import Event, ignore
from gpustate.engine.maintenance import Subject
from gpustate.errors import ConnectionFailed, GpustateError, RefusedError
from gpustate.rollout import slots
from gpustate.rollout.options import Schedulers
from gpustate.rollout.strategy import Strategy
from gpustate.schedulers.kubernetes import drain, holds

#: How long a change takes, and how long until a node that hangs is given up.
CHANGE_S, HANG_S = 0.05, 1.5


@dataclass(slots=True)
class Fleet:
    """Virtual nodes and their cluster.

    Args:
        count: of nodes.
        fails, hangs: numbers of nodes.
    """

    count: int
    fails: set[int]
    hangs: set[int]
    done: set[str] = field(default_factory=set)
    tries: list[str] = field(default_factory=list)
    cluster: StubCluster = field(init=False)

    def __post_init__(self) -> None:
        ids = {f"n{n}": (f"b{n}", f"m{n}", f"u{n}") for n in range(self.count)}
        self.cluster = StubCluster(ids)

    @property
    def inventory(self) -> Inventory:
        return Inventory("test", tuple(InventoryNode(f"n{n}") for n in range(self.count)))

    def held(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for node in self.cluster.all("nodes"):
            record = node["metadata"]["annotations"].get(HOLD)
            if record:
                found[node["metadata"]["name"]] = json.loads(record)["phase"]
        return found

    def most(self) -> int:
        """Most Nodes that were unschedulable at a time."""
        return max(len(moment.held) for moment in self.cluster.history)


@pytest.fixture
def virtual(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    many = everything()
    made = (
        Fleet(200, {15, 40, 60, 120, 160}, {30, 90, 140})
        if many
        else Fleet(40, {3, 12, 33}, {9, 14})
    )
    monkeypatch.setattr(slots, "_POLL_S", 0.05)
    monkeypatch.setattr(drain, "_RETRY_S", 0.05)
    monkeypatch.setattr(drain, "_POLL_S", 0.05)
    monkeypatch.setattr(holds, "_POLL_S", 0.05)
    monkeypatch.setattr(holds, "_REPORTED_S", 0.2)

    class Walk:
        """A node whose change costs a GPU reset, unless it was made before."""

        def __init__(self, session: Any, resolved: Any, states: Any, *more: Any) -> None:
            self.node: InventoryNode = resolved.node
            self.options, self.stop, self.listen = more

        def run(self) -> NodeResult:
            number = int(self.node.name[1:])
            facts = NodeFacts(
                agents=("kubelet",),
                boot_id=f"b{number}",
                machine_id=f"m{number}",
                system_uuid=f"u{number}",
            )
            maintenance = self.options.maintenance

            def emit(text: str) -> None:
                self.listen(Event(self.node.name, "draining", text))

            subject = Subject(self.node, facts, Disruption.RESET, lambda: ("driver",))
            try:
                if self.node.name not in made.done:
                    maintenance.begin(subject, emit, self.stop)
                    made.tries.append(self.node.name)
                    self.listen(Event(self.node.name, "started", "stage 1: driver"))
                    self._change(number, subject, emit)
                maintenance.end(subject, "", emit)
            except RefusedError as error:
                return NodeResult(self.node.name, NodeStatus.REFUSED, str(error))
            except ConnectionFailed as error:
                return NodeResult(self.node.name, NodeStatus.UNREACHABLE, str(error))
            except GpustateError as error:
                return NodeResult(self.node.name, NodeStatus.FAILED, str(error))
            return NodeResult(self.node.name)

        def _change(self, number: int, subject: Subject, emit: Any) -> None:
            time.sleep(HANG_S if number in made.hangs else CHANGE_S)
            if number in made.hangs | made.fails:
                why = "no answer" if number in made.hangs else "the installation failed"
                self.options.maintenance.end(subject, why, emit)
                raise ConnectionFailed(why) if number in made.hangs else GpustateError(why)
            made.done.add(self.node.name)

    monkeypatch.setattr(fleet, "Walk", Walk)
    return made


def run(
    virtual: Fleet, gate: Gate, folder: Path, run_id: str, **strategy: Any
) -> fleet.FleetResult:
    request = fleet.Request(Policy(), virtual.inventory, apply=True, forks=30, run=run_id)
    schedulers = Schedulers(str(gate.kubeconfig(folder, TOKEN)))
    wanted = Strategy(("1", "10%", "50%"), max_unavailable="10%", **strategy)
    return roll_out(request, wanted, schedulers, ignore, lambda: False, None)


def test_a_rollout_stops_at_the_threshold_resumes_and_leaves_only_the_failed_held(
    virtual: Fleet, tmp_path: Path
) -> None:
    gate = Gate(lambda request: virtual.cluster.answer(request))
    gate.open()
    bad = {f"n{number}" for number in virtual.fails | virtual.hangs}
    try:
        first = run(virtual, gate, tmp_path, "r1", max_failures=3)
        failed = {
            n.name for n in first.nodes if n.status in (NodeStatus.FAILED, NodeStatus.UNREACHABLE)
        }
        assert "(--max-failures 3)" in first.stopped
        assert first.exit_code != 0
        assert first.skipped
        assert 3 <= len(failed) < len(bad)
        assert virtual.held() == dict.fromkeys(failed, "failed")
        assert virtual.most() <= virtual.count // 10
        assert len(set(virtual.tries)) == len(virtual.tries), "each node at most once"

        numbers = {int(name[1:]) for name in failed}
        virtual.fails -= numbers
        virtual.hangs -= numbers
        virtual.cluster.history.clear()
        second = run(virtual, gate, tmp_path, "r2", max_failures=len(bad))
        assert second.skipped == []
        assert virtual.held() == dict.fromkeys(bad - failed, "failed")
        assert virtual.most() <= virtual.count // 10
        assert virtual.done == {f"n{n}" for n in range(virtual.count)} - (bad - failed)
    finally:
        gate.close()


def test_failed_nodes_that_use_up_the_budget_end_the_run_and_are_named(
    virtual: Fleet, tmp_path: Path
) -> None:
    gate = Gate(lambda request: virtual.cluster.answer(request))
    gate.open()
    virtual.fails = set(range(virtual.count))
    virtual.hangs = set()
    try:
        result = run(virtual, gate, tmp_path, "r1", max_failures=virtual.count)
        most = virtual.count // 10
        failed = [node.name for node in result.nodes if node.status is NodeStatus.FAILED]
        assert len(failed) == most
        assert "--max-unavailable 10% is used up" in result.stopped
        assert all(f"{name} (failed, run r1)" in result.stopped for name in failed)
        assert virtual.most() == most
        assert result.skipped
    finally:
        gate.close()
