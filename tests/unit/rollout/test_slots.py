"""No more members are out of service at a time than allowed, whoever took them out."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import cast

import pytest

from gpustate.errors import UsageError
from gpustate.rollout import slots
from gpustate.rollout.signals import Signals
from gpustate.rollout.slots import NoSlotError, Slots
from gpustate.schedulers.base import Hold, Member, NotDrainedError, Scheduler


class Cluster:
    """Members by name."""

    title = "test"
    out_word = "cordoned"

    def __init__(self, count: int) -> None:
        self.lists = 0
        self.all = {f"n{i}": Member(f"n{i}", True, True) for i in range(count)}

    def restarted(self, member: Member) -> list[str]:
        return []

    def members(self, *, fresh: bool = False) -> Sequence[Member]:
        assert fresh
        self.lists += 1
        return list(self.all.values())

    def cordon(self, name: str, *, schedulable: bool = False) -> None:
        self.all[name] = replace(self.all[name], schedulable=schedulable)


@pytest.mark.parametrize(
    ("limit", "total", "found"),
    [("2", 10, 2), ("10%", 10, 1), ("10%", 11, 2), ("100%", 7, 7), ("1%", 5, 1), ("", 9, 9)],
)
def test_a_percentage_is_rounded_up(limit: str, total: int, found: int) -> None:
    assert slots.allowed(limit, total) == found


@pytest.mark.parametrize("limit", ["0", "-1", "x", "101%", "10 %", "1.5", "0%"])
def test_what_is_no_limit_is_refused(limit: str) -> None:
    with pytest.raises(UsageError, match="--max-unavailable"):
        Slots(limit)


def test_whoever_is_out_of_service_counts_and_is_named() -> None:
    held = Hold("r1", "bob", "x", "failed", "")
    members = [
        Member("a", True, False, foreign=("cordoned by bob",)),
        Member("b", False, True),
        Member("c", True, False, hold=held),
        Member("cpu", False, True, counts=False),
        Member("d", True, True),
    ]
    found = slots.full(members, members[-1], "3", {})
    assert [*found.values()] == ["a (cordoned by bob)", "b (not ready)", "c (failed, run r1)"]
    assert slots.full(members, members[-1], "4", {}) == {}
    assert slots.full(members, members[0], "1", {}) == {}, "it is out of service already"
    assert slots.full(members, members[-1], "", {}) == {}


def test_without_anything_that_could_free_a_slot_a_node_is_refused() -> None:
    cluster = Cluster(4)
    cluster.cordon("n1")
    turns = Slots("1", sleep=lambda _: None)
    with pytest.raises(NoSlotError, match=r"out of service are n1 \(unschedulable\)"):
        turns.take(cast(Scheduler, cluster), cluster.all["n2"], "n2", print, lambda: False)


def test_a_node_waits_for_one_that_failed_and_goes_back() -> None:
    cluster, busy, said = Cluster(2), {"n0"}, list[str]()
    failed = Hold("r1", "bob", "x", "failed", "")

    def sleep(_: float) -> None:
        if said and busy:
            busy.clear()
            cluster.cordon("n0", schedulable=True)

    signals = Signals(at_work=lambda node: node in busy)
    turns = Slots("1", sleep=sleep, clock=lambda: float(len(busy)), signals=signals, run="r1")
    scheduler, first = cast(Scheduler, cluster), cluster.all["n0"]
    turns.take(scheduler, first, "n0", print, lambda: False)
    cluster.all["n0"] = replace(first, schedulable=False, hold=failed)
    turns.give(scheduler, first)
    turns.take(scheduler, cluster.all["n1"], "n1", said.append, lambda: False)
    assert said == ["waiting for a slot: out of service are n0 (failed, run r1)"]
    assert signals.exhausted == ""


def test_nodes_that_go_back_do_so_one_at_a_time_whoever_failed_in_the_same_run() -> None:
    cluster, stop = Cluster(3), threading.Event()
    cluster.cordon("n0")
    cluster.all["n0"] = replace(cluster.all["n0"], hold=Hold("r1", "bob", "x", "failed", ""))
    scheduler = cast(Scheduler, cluster)
    turns = Slots("1", sleep=lambda _: stop.set(), clock=lambda: 0.0, run="r1")
    with pytest.raises(NoSlotError, match=r"out of service are n0 \(failed, run r1\)"):
        turns.take(scheduler, cluster.all["n1"], "n1", print, lambda: False)
    turns.take(scheduler, cluster.all["n1"], "n1", print, lambda: False, back=True)
    with pytest.raises(NotDrainedError, match="interrupted"):
        turns.take(scheduler, cluster.all["n2"], "n2", print, stop.is_set, back=True)
    others = Slots("1", run="r2")
    with pytest.raises(NoSlotError):
        others.take(scheduler, cluster.all["n1"], "n1", print, lambda: False, back=True)


def test_one_that_failed_needs_no_slot_and_goes_back_though_the_rollout_has_stopped() -> None:
    cluster = Cluster(2)
    cluster.cordon("n0")
    turns = Slots("1", signals=Signals(stopped="1 node failed"))
    scheduler = cast(Scheduler, cluster)
    turns.take(scheduler, cluster.all["n0"], "n0", print, lambda: False, failed=True)
    with pytest.raises(NotDrainedError, match="not started: 1 node failed"):
        turns.take(scheduler, cluster.all["n1"], "n1", print, lambda: False)


def test_an_interruption_ends_the_wait() -> None:
    cluster = Cluster(3)
    turns = Slots("1", sleep=lambda _: None)
    scheduler = cast(Scheduler, cluster)
    turns.take(scheduler, cluster.all["n0"], "n0", print, lambda: False)
    with pytest.raises(NotDrainedError, match="interrupted"):
        turns.take(scheduler, cluster.all["n1"], "n1", print, lambda: True)


def test_nodes_that_wait_share_one_list_of_members() -> None:
    cluster, now = Cluster(30), 0.0
    turns = Slots("30", sleep=lambda _: None, clock=lambda: now)
    for name, member in cluster.all.items():
        turns.take(cast(Scheduler, cluster), member, name, print, lambda: False)
    assert cluster.lists == 1


def test_a_list_from_before_a_release_refuses_nobody() -> None:
    cluster = Cluster(2)
    scheduler, first = cast(Scheduler, cluster), cluster.all["n0"]
    turns = Slots("1", sleep=lambda _: None, clock=lambda: 0.0)
    cluster.cordon("n0")
    turns.take(scheduler, first, "n0", print, lambda: False)
    cluster.cordon("n0", schedulable=True)
    turns.give(scheduler, first)
    turns.take(scheduler, cluster.all["n1"], "n1", print, lambda: False)


def test_a_list_from_before_a_failure_lets_nobody_in() -> None:
    cluster = Cluster(3)
    scheduler, first = cast(Scheduler, cluster), cluster.all["n0"]
    turns = Slots("1", sleep=lambda _: None, clock=lambda: 0.0)
    turns.take(scheduler, first, "n0", print, lambda: False)
    cluster.cordon("n0")
    turns.give(scheduler, first)
    with pytest.raises(NoSlotError, match="out of service are n0"):
        turns.take(scheduler, cluster.all["n1"], "n1", print, lambda: False)


def test_a_node_that_waits_when_its_window_closes_waits_for_the_next() -> None:
    cluster, said = Cluster(3), list[str]()
    closed = iter(["outside of the maintenance window"] * 3 + [""] * 9)
    signals = Signals(closed=lambda node: next(closed) if node == "n1" else "")
    turns = Slots("", sleep=lambda _: None, signals=signals)
    scheduler = cast(Scheduler, cluster)
    turns.take(scheduler, cluster.all["n0"], "n0", said.append, lambda: False)
    assert said == []
    turns.take(scheduler, cluster.all["n1"], "n1", said.append, lambda: False)
    assert said == ["waiting for a slot: outside of the maintenance window"]
    assert len(list(closed)) == 8


@pytest.mark.parametrize("limit", ["1", "3", "25%"])
def test_many_nodes_side_by_side_never_exceed_the_limit(limit: str) -> None:
    cluster = Cluster(12)
    scheduler = cast(Scheduler, cluster)
    turns = Slots(limit, sleep=lambda _: time.sleep(0.001))
    lock, most, at_work = threading.Lock(), 0, 0

    def one(name: str) -> None:
        nonlocal most, at_work
        member = cluster.all[name]
        turns.take(scheduler, member, name, lambda _: None, lambda: False)
        with lock:
            at_work += 1
            most = max(most, at_work)
        cluster.cordon(name)
        threading.Event().wait(0.002)
        cluster.cordon(name, schedulable=True)
        with lock:
            at_work -= 1
        turns.give(scheduler, member)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(one, list(cluster.all)))
    assert most == slots.allowed(limit, 12)
