"""How long a plan takes: from the journals of its nodes, and no guess where they have nothing."""

from __future__ import annotations

from typing import Any

import pytest

from gpustate import Disruption, Plan
from gpustate.core.change import Change
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome, StateResult
from gpustate.core.timing import PlannedStep, Timing
from gpustate.plan.estimate import PROBE, Schedule, estimate
from gpustate.plan.measured import OTHERS, OWN
from gpustate.plan.overview import duration

INSTALL = PlannedStep("driver", "install x=2.0-1", "AptInstall", 3600)
REBOOT = PlannedStep("driver", "reboot: nouveau", "Reboot", 900)
PENDING = StateResult("driver", Outcome.PENDING, Plan((Change("f", 1, 2),)))


def node(name: str, *steps: PlannedStep, seconds: int | None = None, **more: Any) -> NodeResult:
    """A node whose driver is to be installed; where ``seconds`` are given, it took so long before."""
    timings = () if seconds is None else (Timing("driver", "install x=1.0-1", seconds, "r-1"),)
    kept = {"states": [PENDING], "duration_s": 1.0, "timings": timings}
    return NodeResult(name, steps=steps or (INSTALL,), **{**kept, **more})


def later(worst: Disruption) -> StateResult:
    return StateResult("driver", Outcome.KNOWN_AFTER, known_after=("x",), worst=worst)


def part(nodes: list[NodeResult], name: str, number: int = 1) -> Any:
    return estimate(nodes, Schedule(10)).parts[name][number]


def test_a_node_s_own_journal_comes_first_then_the_others() -> None:
    nodes = [node("a", seconds=100), node("b", seconds=200), node("c")]
    assert (part(nodes, "a").basis, part(nodes, "a").seconds.likely) == (OWN, 100)
    assert (part(nodes, "c").basis, part(nodes, "c").seconds.likely) == (OTHERS, 150)
    assert part(nodes[2:], "c").seconds is None
    assert not estimate(nodes[2:], Schedule(10)).is_measured


def test_another_version_of_the_same_package_is_the_same_step() -> None:
    assert part([node("a", seconds=77)], "a").seconds.likely == 77


def test_what_is_not_known_yet_takes_what_the_state_took_in_all() -> None:
    timings = (Timing("driver", "one", 30, "r-1"), Timing("driver", "two", 40, "r-1"))
    one = node("a", states=[later(Disruption.NONE)], timings=timings)
    one.steps = ()
    assert part([one], "a").seconds.likely == 70


def test_a_reboot_that_is_only_possible_counts_in_the_upper_bound_alone() -> None:
    before = (Timing("", "reboot", 95, "r-2"),)
    sure = estimate([node("a", INSTALL, REBOOT, timings=before)], Schedule(1)).data()
    possible = node("a", states=[later(Disruption.REBOOT)], timings=before)
    possible.steps = ()
    maybe = estimate([possible], Schedule(1)).data()
    assert (sure["reboots"], sure["reboots_at_most"]) == (1, 1)
    assert (maybe["reboots"], maybe["reboots_at_most"]) == (0, 1)
    assert sure["likely_s"] >= 95
    assert maybe["likely_s"] < 95 < maybe["high_s"]


def test_a_reboot_takes_what_it_took_on_the_node() -> None:
    one = node("a", INSTALL, REBOOT, timings=(Timing("", "reboot", 95, "r-2"),))
    assert part([one], "a", 2).seconds.likely == 95


@pytest.mark.parametrize(
    ("schedule", "likely_s"),
    [
        (Schedule(10), 102),
        (Schedule(2), 204),
        (Schedule(1), 408),
        (Schedule(10, ("1",), (("a",), ("b",), ("c",), ("d",))), 408),
        (Schedule(10, ("1", "3"), (("a",), ("b", "c", "d"))), 204),
        (Schedule(2, ("1", "3"), (("a",), ("b", "c", "d"))), 306),
    ],
)
def test_forks_and_batches_stretch_it(schedule: Schedule, likely_s: int) -> None:
    nodes = [node(name, seconds=100) for name in "abcd"]
    assert estimate(nodes, schedule).data()["likely_s"] == likely_s


def test_it_lists_what_it_is_based_on_and_what_takes_longest() -> None:
    data = estimate([node("a", seconds=98), node("b", INSTALL, REBOOT)], Schedule(5)).data()
    assert [row["basis"] for row in data["rests_on"]] == [OWN, OTHERS, PROBE]
    assert sum(row["share"] for row in data["rests_on"]) == pytest.approx(1, abs=0.01)
    first = data["longest"][0]
    assert (first["what"], first["nodes"]) == (INSTALL.label, 2)
    assert first["basis"] == f"{OWN} and {OTHERS}"


def test_steps_that_no_node_has_run_are_listed_and_add_no_time() -> None:
    nodes = [node("a", seconds=98), node("b", INSTALL, REBOOT)]
    made = estimate(nodes, Schedule(5))
    assert made.data()["unmeasured"] == [{"state": "", "what": "reboot", "nodes": 1}]
    assert made.of(["a"]) is not None
    assert made.of(["b"]) is None
    assert made.is_measured


def test_nodes_that_could_not_be_planned_are_not_counted() -> None:
    data = estimate([node("a"), node("b", status=NodeStatus.REFUSED)], Schedule(5)).data()
    assert data["nodes"] == 1
    assert "nodes that could not be planned" in data["not_counted"]


def test_nothing_takes_no_time() -> None:
    assert estimate([], Schedule(5)).data()["high_s"] == 0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (89, "89 s"),
        (90, "2 min"),
        (5300, "88 min"),
        (7500, "2 h 5 min"),
        (7200, "2 h"),
        (97300, "27 h 2 min"),
        (180000, "2 d 2 h"),
        (172800, "2 d"),
    ],
)
def test_durations_are_said_as_people_say_them(seconds: int, words: str) -> None:
    assert duration(seconds) == words
