"""Which nodes share a plan, and what all of them come to."""

from __future__ import annotations

from typing import Any

from gpustate import Disruption, Plan
from gpustate.core.change import Change
from gpustate.core.outcome import Outcome, StateResult
from gpustate.plan.document import state_data
from gpustate.plan.groups import counts, group_nodes, totals
from gpustate.plan.overview import at_worst, overview, summary


def change(cost: str = "none", **more: Any) -> dict[str, Any]:
    return {"field": "f", "before": 1, "after": 2, "disruption": cost, **more}


def node(name: str, *states: dict[str, Any], status: str = "ok", **more: Any) -> dict[str, Any]:
    return {"name": name, "status": status, "disruption": "none", "states": list(states), **more}


def pending(state: str, *costs: str, **more: Any) -> dict[str, Any]:
    row = {"state": state, "outcome": "would change", "changes": [change(c) for c in costs]}
    return {**row, "disruption": costs[0], **more}


def later(state: str, worst: str) -> dict[str, Any]:
    return {"state": state, "outcome": "known after", "known_after": ["x"], "worst": worst}


FINE = {"state": "s", "outcome": "unchanged"}


def test_equal_changes_costs_and_notes_make_a_group() -> None:
    same = [node(f"gpu{n}", pending("driver", "restart")) for n in (10, 2)]
    other = node("gpu3", pending("driver", "reboot"))
    noted = node("gpu4", pending("driver", "restart", notes=["mind"]))
    found = group_nodes([same[0], other, same[1], noted])
    assert [one.names for one in found] == [("gpu2", "gpu10"), ("gpu3",), ("gpu4",)]


def test_a_node_s_own_name_in_a_reason_splits_no_group_and_is_nobody_s_in_it() -> None:
    nodes = [
        node(n, status="unreachable", reason=f"{n}: no route to {n}.example")
        for n in ("gpu1", "gpu2")
    ]
    (one,) = group_nodes(nodes)
    assert one.node["reason"] == "NODE: no route to NODE.example"
    assert [g.node["reason"] for g in group_nodes(nodes[:1])] == ["gpu1: no route to gpu1.example"]


def test_a_node_s_own_name_in_a_change_is_a_difference() -> None:
    rows = [
        node(n, {"state": "s", "outcome": "would change", "changes": [change(path=f"/etc/{n}")]})
        for n in ("gpu1", "gpu2")
    ]
    assert len(group_nodes(rows)) == 2


def test_a_name_inside_another_word_is_no_name() -> None:
    rows = [node(n, status="failed", reason="gpu12 is gone") for n in ("gpu1", "gpu2")]
    assert [one.node["reason"] for one in group_nodes(rows)] == ["gpu12 is gone"]


def test_a_node_counts_once_at_its_worst_and_possible_costs_are_told_apart() -> None:
    groups = group_nodes(
        [
            node("a1", pending("s", "restart", "none"), later("t", "reboot")),
            node("a2", pending("s", "reboot"), later("t", "drain")),
            node("a3", FINE),
            node("a4", pending("s", "reboot"), status="refused"),
            node("a5", pending("s", "reboot"), would_refuse=True),
        ]
    )
    assert counts(groups) == {"change": 2, "unchanged": 1, "not_planned": 1, "refused": 1}
    assert totals(groups) == [
        {"disruption": "reboot", "nodes": 1, "possible": 1, "changes": 1},
        {"disruption": "restart", "nodes": 0, "possible": 0, "changes": 1},
        {"disruption": "none", "nodes": 0, "possible": 0, "changes": 1},
    ]


def test_a_reader_sees_first_what_costs_most_and_last_what_is_as_it_should_be() -> None:
    nodes = [
        node("fine", {"state": "a", "outcome": "unchanged"}),
        node("far", status="unreachable"),
        node("gpu10", pending("a", "reload")),
        node("gpu9", pending("a", "reload", field="other")),
        node("gpu20", pending("a", "reboot")),
    ]
    said = [{"nodes": [one["name"]]} for one in nodes]
    view = overview({"nodes": nodes, "fleet": {"groups": said}})
    assert [one.names[0] for one in view.groups] == ["gpu20", "gpu9", "gpu10", "fine", "far"]
    assert view.troubled == ["far"]


def test_numbers_of_processes_and_ids_of_containers_break_no_group() -> None:
    def busy(name: str, *pids: int) -> dict[str, Any]:
        notes = [
            *(
                f"has a GPU open: pid {pid} (python3, user root, unit train.service)"
                for pid in pids
            ),
            f"has a GPU open: pid {pids[0] + 1} (sh, user root, unit docker-{pids[0]:064x}.scope)",
        ]
        return node(name, {**pending("a", "drain"), "notes": notes})

    one, two = busy("gpu1", 17, 4242), busy("gpu2", 9, 11, 13)
    two["states"][0]["notes"].reverse()
    (found,) = group_nodes([one, two])
    assert found.names == ("gpu1", "gpu2")
    assert found.node["states"][0]["notes"] == [
        "has a GPU open: pid ... (python3, user root, unit train.service)",
        "has a GPU open: pid ... (sh, user root, unit docker-....scope)",
    ]
    other = busy("gpu3", 5)
    other["states"][0]["notes"][0] += " and more"
    assert len(group_nodes([one, two, other])) == 2
    assert "pid 17 " in group_nodes([one])[0].node["states"][0]["notes"][0]


def test_the_first_page_names_a_downgrade_and_nothing_of_refused_states() -> None:
    def of(outcome: str, name: str, before: str, after: str) -> dict[str, Any]:
        versions = [{"name": name, "before": before, "after": after}]
        return {**pending("s", "none"), "outcome": outcome, "versions": versions}

    states = [
        of("would change", "driver", "580.178.04", "570.211.01"),
        of("would change", "container toolkit", "1.9.0-1", "1.18.2-1"),
        of("refused", "fabric-manager", "570.211.01-1", ""),
    ]
    (mixed,) = group_nodes([node("gpu1", *states, status="refused", proceeds=True)])
    assert summary(mixed) == [
        (
            "versions",
            "driver 580.178.04 -> 570.211.01 (downgrade), container toolkit 1.9.0-1 -> 1.18.2-1",
        )
    ]


def test_a_reset_and_a_reboot_say_that_workloads_leave_before() -> None:
    def words(*states: dict[str, Any]) -> tuple[str, dict[str, str]]:
        (one,) = group_nodes([node("gpu1", *states)])
        return at_worst(one), dict(summary(one))

    worst, rows = words({**later("mig", "reset"), "condition": "the MIG mode changes"})
    assert worst == "reset (after a drain), on a condition"
    assert "GPU workloads must leave" in rows["possibly"]
    assert rows["reboots"] == "none"
    worst, rows = words(pending("kernel", "reboot"))
    assert (worst, rows["reboots"]) == (
        "reboot (after a drain)",
        "yes, once its workloads have left",
    )
    worst, rows = words(pending("driver", "drain"))
    assert (worst, rows["reboots"]) == ("drain", "none")


def test_a_driver_that_is_known_to_change_its_version_surely_costs_a_drain() -> None:
    """Its plan waits for the repository, and the forecast has the version."""
    drain = {"known_after": ("r",), "worst": Disruption.DRAIN, "condition": "its version changes"}

    def words(before: str) -> tuple[str, dict[str, str]]:
        plan = Plan((Change("library", before, "580.2", label="driver version"),))
        state = state_data(StateResult("driver", Outcome.KNOWN_AFTER, plan, **drain))
        (one,) = group_nodes([node("gpu1", state)])
        return at_worst(one), dict(summary(one))

    worst, rows = words("570.1")
    assert (worst, rows["surely"]) == ("drain", "drain (GPU workloads must leave): driver")
    worst, rows = words("580.2")
    assert (worst, rows["possibly"].endswith("only if its version changes")) == (
        "drain, on a condition",
        True,
    )
