"""Which Nodes a watcher sets up, when, and what it takes from the record of another watcher."""

from __future__ import annotations

from typing import Any

import pytest

from gpustate.watch.nodes import (
    APPLYING,
    COMPLETED,
    FAILED,
    RECORD,
    Reason,
    Record,
    record_of,
    see,
    why,
)
from gpustate.watch.work_queue import SETTLE_S, WorkQueue

MIG = "nvidia.com/mig.config"


def node(name: str = "n1", boot: str = "b1", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true", **labels}},
        "status": {
            "nodeInfo": {"bootID": boot},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def recorded(phase: str, reason: Reason, item: dict[str, Any]) -> dict[str, Any]:
    record = Record(reason, phase, "r1", "2026-01-01T00:00:00Z", "why")
    item["metadata"].update(record.patch()["metadata"])
    return item


def test_a_node_that_joins_is_due_once_it_is_ready_and_settled() -> None:
    work_queue, item = WorkQueue(), node()
    item["status"]["conditions"] = []
    work_queue.changed(see(item), 0)
    assert work_queue.due(100) == []
    work_queue.changed(see(node()), 100)
    assert work_queue.due(100) == []
    assert [one.name for one in work_queue.due(100 + SETTLE_S)] == ["n1"]
    assert work_queue.wait_s(100) == SETTLE_S


@pytest.mark.parametrize(
    ("phase", "reason", "due"),
    [
        (COMPLETED, Reason("b1", "all-1g", ""), False),
        (COMPLETED, Reason("b0", "all-1g", ""), True),
        (COMPLETED, Reason("b1", "", ""), True),
        (COMPLETED, Reason("b1", "all-1g", "shared"), True),
        (APPLYING, Reason("b1", "all-1g", ""), True),
        (FAILED, Reason("b1", "all-1g", ""), True),
    ],
)
def test_the_record_of_another_watcher_counts(phase: str, reason: Reason, due: bool) -> None:
    work_queue = WorkQueue()
    item = recorded(phase, reason, node(**{MIG: "all-1g"}))
    work_queue.listed([see(item)], 0)
    assert bool(work_queue.due(SETTLE_S)) is due


@pytest.mark.parametrize("text", ["", "{", "[]", '{"reason": 1}', '{"reason": {"x": 1}}', '{"phase": "done"}'])  # fmt: skip
def test_a_record_that_cannot_be_read_is_none(text: str) -> None:
    item = node()
    item["metadata"]["annotations"] = {RECORD: text}
    assert record_of(item) is None
    assert see(item).pending


def test_what_is_written_is_read_again() -> None:
    record = Record(Reason("b", "m", "p"), FAILED, "r", "t", "a\nlong " + "text " * 1000)
    item = node()
    item["metadata"].update(record.patch()["metadata"])
    found = record_of(item)
    assert found is not None
    assert found.reason == record.reason
    assert len(found.text) <= 1000


def test_an_event_from_before_the_own_record_starts_nothing() -> None:
    work_queue = WorkQueue()
    work_queue.changed(see(node()), 0)
    work_queue.finish("n1", Reason("b1", "", ""))
    work_queue.changed(see(recorded(APPLYING, Reason("b1", "", ""), node())), 50)
    assert work_queue.due(1000) == []
    work_queue.changed(see(recorded(APPLYING, Reason("b1", "", ""), node(**{MIG: "all-1g"}))), 60)
    assert work_queue.due(60 + SETTLE_S)


def test_failures_are_tried_later_each_time_and_a_new_label_at_once() -> None:
    work_queue = WorkQueue()
    work_queue.changed(see(node()), 0)
    delays = [work_queue.failed("n1", 0) for _ in range(8)]
    assert delays == [60, 120, 240, 480, 960, 1800, 1800, 1800]
    assert work_queue.due(1799) == []
    work_queue.changed(see(node(**{MIG: "all-1g"})), 1000)
    assert work_queue.due(1000 + SETTLE_S)
    assert work_queue.failed("n1", 1002) == 60


def test_a_failed_node_is_tried_again_though_its_record_comes_back_as_an_event() -> None:
    work_queue = WorkQueue()
    work_queue.changed(see(node()), 0)
    work_queue.failed("n1", 10)
    work_queue.changed(see(recorded(FAILED, Reason("b1", "", ""), node())), 11)
    assert work_queue.due(69) == []
    assert work_queue.due(70)


def test_a_node_that_the_inventory_lacks_is_looked_for_again_when_its_labels_change() -> None:
    work_queue = WorkQueue()
    work_queue.changed(see(node()), 0)
    work_queue.unknown(see(node()))
    work_queue.changed(see(node(**{"nvidia.com/gfd.timestamp": "1"})), 10)
    assert work_queue.wait_s(10) is None
    work_queue.changed(see(node(pool="h100")), 20)
    assert work_queue.due(20) == []
    assert work_queue.due(60)


def test_nodes_that_are_gone_or_going_are_left_alone() -> None:
    work_queue = WorkQueue()
    going = node("n2")
    going["metadata"]["deletionTimestamp"] = "now"
    work_queue.listed([see(node()), see(going)], 0)
    assert [one.name for one in work_queue.due(10)] == ["n1"]
    work_queue.listed([see(node("n3"))], 10)
    assert [one.name for one in work_queue.due(20)] == ["n3"]
    work_queue.remove("n3")
    assert work_queue.wait_s(20) is None
    assert work_queue.failed("n3", 20) == 0


def test_why_names_what_has_changed() -> None:
    done = recorded(COMPLETED, Reason("b0", "", ""), node(**{MIG: "all-1g"}))
    assert why(see(node())) == "new"
    assert why(see(done)) == f"rebooted, {MIG}=all-1g"
    removed = recorded(COMPLETED, Reason("b1", "all-1g", ""), node())
    assert why(see(removed)) == f"label {MIG} removed"
    assert why(see(recorded(APPLYING, Reason("b1"), node()))) == "run r1 did not end"
    assert why(see(recorded(FAILED, Reason("b1"), node()))) == "run r1 failed"


def test_gpus_are_seen_by_every_form_of_the_labels() -> None:
    for key in ("pci-10de.present", "pci-0302_10de.present", "pci-0300_10de.present", "pci-0302_10de_2330.present"):  # fmt: skip
        item = node()
        item["metadata"]["labels"] = {f"feature.node.kubernetes.io/{key}": "true"}
        assert see(item).gpus, key
    for key, value in (
        ("nvidia.com/gpu.present", "false"),
        ("feature.node.kubernetes.io/pci-0200_15b3.present", "true"),
        ("feature.node.kubernetes.io/pci-1af4.present", "true"),
    ):
        item = node()
        item["metadata"]["labels"] = {key: value}
        assert not see(item).gpus, key
