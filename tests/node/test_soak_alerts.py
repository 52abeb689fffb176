"""Alerts of a real Prometheus stop a rollout over machines that answer over ssh."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import prometheus
import pytest
from apigate import AFTER, Trap
from prometheus import Prometheus
from rolloutbed import NEW, OLD, Bed, finish, wait_until_sprung

pytestmark = [pytest.mark.node, prometheus.needed]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with prometheus.running(tmp_path_factory.mktemp("prometheus")) as found:
        yield found


@pytest.fixture(scope="module")
def shared_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    bed = Bed(tmp_path_factory.mktemp("rollout"), 2)
    yield bed
    bed.close()


@pytest.fixture
def bed(shared_bed: Bed, server: Prometheus) -> Bed:
    shared_bed.reset()
    shared_bed.gate.begin()
    server.bad.clear()
    server.wait_for()
    return shared_bed


def roll_out(bed: Bed, server: Prometheus) -> tuple[int, str]:
    words = ("--serial", "1", "--soak", "5s", "--soak-alerts", server.url)
    ran = bed.run(*words)
    return ran.code, ran.text


def test_an_alert_that_begins_during_the_soak_time_stops_the_rollout(
    bed: Bed, server: Prometheus
) -> None:
    def later() -> None:
        threading.Timer(1.0, lambda: server.bad.update(n0=1)).start()

    bed.gate.begin(Trap("release n0 1", AFTER, later))
    code, text = roll_out(bed, server)
    assert code == 6, text
    assert "a check during the soak time failed: n0: alert GpuBad: GPU of n0 is bad" in text
    assert [one.read("driver") for one in bed.machines] == [NEW, OLD]
    assert not bed.cluster.node("n0")["spec"].get("unschedulable")


def test_alerts_of_before_and_of_others_do_not_count(bed: Bed, server: Prometheus) -> None:
    server.bad |= {"n0": 1, "other": 1}
    server.wait_for("GpuBad", "GpuBad")
    time.sleep(1)
    code, text = roll_out(bed, server)
    assert code == 0, text
    assert [one.read("driver") for one in bed.machines] == [NEW, NEW]


@pytest.mark.parametrize("resolves", [True, False])
def test_an_alert_of_the_change_itself_has_time_to_resolve(
    bed: Bed, server: Prometheus, resolves: bool
) -> None:
    def during() -> None:
        server.bad["n0"] = 1
        server.wait_for("GpuBad")

    def after() -> None:
        threading.Timer(2.0, server.bad.clear).start()

    changed = Trap("note changing n0 1", AFTER, during)
    bed.gate.begin(changed)
    command = bed.start("--serial", "1", "--soak", "5s", "--soak-alerts", server.url)
    wait_until_sprung(changed, command)
    if resolves:
        bed.gate.trap = Trap("release n0 1", AFTER, after)
    ran = finish(command)
    assert ran.code == (0 if resolves else 6), ran.text
    assert [one.read("driver") for one in bed.machines] == [NEW, NEW if resolves else OLD]


def test_a_server_that_is_not_there_is_an_error_before_any_node_is_reached(
    bed: Bed, server: Prometheus, tmp_path: Path
) -> None:
    ran = bed.run("--serial", "1", "--soak", "5s", "--soak-alerts", "http://127.0.0.1:1")
    assert ran.code == 1, ran.text
    assert "alerts of 127.0.0.1:1: Connection refused" in ran.text
    assert bed.gate.writes == []
    assert [one.read("driver") for one in bed.machines] == [OLD, OLD]
