"""A state that is refused: what does not depend on it is applied anyway, and drift is still drift."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from filestates import First, Second, Seen, Third, here, request

from gpustate import Node, Plan, Policy, State
from gpustate.compat.collect import collect
from gpustate.core.change import Change
from gpustate.core.facts import NodeFacts, NodeView
from gpustate.core.inventory import InventoryNode
from gpustate.core.outcome import NodeStatus, Outcome, StateResult
from gpustate.engine import fleet, gate, verdicts
from gpustate.errors import RefusedError
from gpustate.plan import document, html, markdown, render
from gpustate.plan.make import Observations
from gpustate.probes.gpu_clients import GpuProcess
from gpustate.states.driver import DriverInstalled
from gpustate.states.mig import MigLayoutApplied


class Masked(First):
    """A file whose state is refused although it is known what differs."""

    def refuse(self, observed: Seen) -> str | None:
        return "x.service is masked; systemctl unmask x.service, or leave the state out"


class Unreadable(First):
    """A file that cannot be looked at."""

    def probe(self, node: Node) -> Seen:
        raise RefusedError("a pipe is where a file belongs", fix="remove it")


class Unable(First):
    """A state that refuses the node as such."""

    def refuse(self, observed: Seen) -> str | None:
        return "unsupported distribution"

    def plan(self, observed: Seen) -> Plan:
        return Plan()


@pytest.fixture
def node(tmp_path: Path) -> InventoryNode:
    return here(tmp_path / "state")


def states(tmp_path: Path, first: type[First]) -> tuple[State[Any], ...]:
    return (
        first(path=str(tmp_path / "a")),
        Second(path=str(tmp_path / "b")),
        Third(path=str(tmp_path / "c")),
    )


@pytest.mark.parametrize("first", [Masked, Unreadable, Unable])
def test_what_does_not_depend_on_a_refused_state_is_applied(
    node: InventoryNode, tmp_path: Path, first: type[First]
) -> None:
    result = fleet.run(request(node, *states(tmp_path, first)))
    assert {s.state: s.outcome for s in result.nodes[0].states} == {
        "first": Outcome.REFUSED,
        "second": Outcome.NOT_RUN,
        "third": Outcome.CHANGED,
    }
    assert [(tmp_path / name).exists() for name in "abc"] == [False, False, True]
    assert result.exit_code == 5
    assert " changed=1 " in result.summary()
    assert " refused=1 " in result.summary()
    again = fleet.run(request(node, *states(tmp_path, first)))
    assert again.exit_code == 5
    assert again.nodes[0].execs == 2  # a refusal is looked at twice, and nothing is run


@pytest.mark.parametrize("first", [Masked, Unreadable, Unable])
def test_all_or_nothing_leaves_the_node_alone(
    node: InventoryNode, tmp_path: Path, first: type[First]
) -> None:
    result = fleet.run(request(node, *states(tmp_path, first), all_or_nothing=True))
    assert result.exit_code == 5
    assert not any((tmp_path / name).exists() for name in "abc")
    assert " changed=0 " in result.summary()


def test_a_plan_says_what_is_applied_beside_a_refusal(node: InventoryNode, tmp_path: Path) -> None:
    result = fleet.run(request(node, *states(tmp_path, Masked), apply=False))
    assert " changed=1 " in result.summary()
    plan = json.loads(
        json.dumps(document.plan_document(Policy(), "test", result.nodes, run="r", created="now"))
    )
    assert plan["nodes"][0]["proceeds"] is True
    assert plan["fleet"]["nodes"] == {"change": 1, "unchanged": 0, "not_planned": 0}
    assert plan["fleet"]["disruption"][-1]["changes"] == 1, "what is refused costs nothing"
    assert document.announced_disruptions(plan)["here"].keys() == {"third"}
    shown = render.nodes_page(plan).plain()
    assert "here  refused in part" in shown
    assert "--all-or-nothing" in shown
    assert render.plan_sentence(plan).startswith("Plan: 1 node would change")
    assert ", 1 of them in part, " in render.plan_sentence(plan)
    held = fleet.run(request(node, *states(tmp_path, Masked), apply=False, all_or_nothing=True))
    assert " changed=0 " in held.summary()
    plan = document.plan_document(Policy(), "test", held.nodes, run="r", created="now")
    for page in (render.troubles_page(plan).plain(), html.report(plan), markdown.report(plan)):
        assert "no state of the node is applied" in page.lower()


@pytest.mark.parametrize(("first", "code"), [(Masked, 2), (Unreadable, 5), (Unable, 5)])
def test_drift_is_counted_where_an_apply_would_be_refused(
    node: InventoryNode, tmp_path: Path, first: type[First], code: int
) -> None:
    result = fleet.run(request(node, first(path=str(tmp_path / "a")), apply=False))
    result.drift = True
    assert result.exit_code == (5 if code == 5 else 0)
    assert result.pending is (code == 2)
    assert f" changed={int(code == 2)} " in result.summary()


def test_the_matrix_does_not_keep_drift_from_being_counted(
    node: InventoryNode, tmp_path: Path
) -> None:
    result = fleet.run(request(node, First(path=str(tmp_path / "a")), apply=False))
    result.nodes[0].status = NodeStatus.REFUSED
    result.drift = True
    assert result.exit_code == 0
    assert result.pending


def test_a_driver_that_is_refused_is_judged_as_it_is_and_not_as_it_was_to_become() -> None:
    driver = DriverInstalled(version="620.10.01", module_type="proprietary")
    change = Plan((Change("library", "580.65.06", "620.10.01"),))

    class Looked:
        library = "580.65.06"
        built: ClassVar[dict[str, str]] = {"6.1": "580.65.06 open"}

    def facts(outcome: Outcome) -> Any:
        results = {"driver": StateResult("driver", outcome, change)}
        return collect(NodeFacts(), [driver], {"driver": Looked()}, results)

    assert str(facts(Outcome.PENDING)["driver"]) != str(facts(Outcome.REFUSED)["driver"])
    assert facts(Outcome.REFUSED)["module_type"] == frozenset({"open"})


class Guard(First):
    """A file without which the node must not reboot."""

    def reboot_blocker(self, observed: Seen) -> str | None:
        return None


def test_no_reboot_where_the_state_that_guards_it_could_not_be_looked_at() -> None:
    observations = Observations(NodeView("n", (), {}, NodeFacts()))
    observations.errors = {"first": "a pipe is where a file belongs"}
    assert verdicts.reboot_blocker([First()], observations) is None
    assert verdicts.reboot_blocker([Guard()], observations) == (
        "first cannot determine whether the node may reboot: a pipe is where a file belongs"
    )
    assert verdicts.reboot_blocker([Guard(ensure="absent")], observations) is None


def test_a_reboot_asks_whoever_has_a_gpu_open_as_a_reload_does() -> None:
    def holder(unit: str, pod: str = "") -> GpuProcess:
        return GpuProcess(7, "python3", "alice", unit, pod, gpus=(0,))

    known = [holder("nvidia-persistenced.service"), holder("x.scope", pod="train-0")]
    refused = gate.in_use([First()], [*known, holder("job.scope")])
    assert refused is not None
    assert "in use by pid 7 (python3, user alice, unit job.scope)" in refused.message
    assert gate.in_use([First()], known) is None
    assert gate.in_use([First(), DriverInstalled(in_use="reboot")], [holder("job.scope")]) is None
    mig = MigLayoutApplied(clients=("job.service",))
    assert gate.in_use([mig], [holder("job.service")]) is None
    assert gate.in_use([DriverInstalled()], [holder("job.service")]) is not None
