"""Alerts of nodes as Alertmanager and a real Prometheus give them out, and which of them fail a node."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import prometheus
import pytest

from gpustate.api import rolling
from gpustate.core.inventory import Connection, Inventory, InventoryNode
from gpustate.core.policy import Policy
from gpustate.engine import fleet
from gpustate.errors import UsageError
from gpustate.rollout import alerts
from gpustate.rollout.alerts import Alert, AlertsUnavailable, failing, firing, url_of
from gpustate.rollout.strategy import Strategy
from gpustate.rollout.waves import Ages

ALERTMANAGER = "/api/v2/alerts?active=true&silenced=false&inhibited=false"


class Server(ThreadingHTTPServer):
    """Answers each path with a status and a body."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, list[tuple[int, Any]]] = {}
        self.seen: list[tuple[str, str | None]] = []
        self.location = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/am"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        owner = cast(Server, self.server)
        owner.seen.append((self.path, self.headers.get("Authorization")))
        answers = owner.answers.get(self.path.removeprefix("/am"), [(404, "404 page not found")])
        status, body = answers.pop(0) if len(answers) > 1 else answers[0]
        self.send_response(status)
        if status == 302:
            self.send_header("Location", owner.location)
        self.end_headers()
        self.wfile.write((body if isinstance(body, str) else json.dumps(body)).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        threading.Thread(target=found.serve_forever, args=(0.05,), daemon=True).start()
        yield found
        found.shutdown()


def entry(minutes: float, **labels: str) -> dict[str, Any]:
    since = datetime.now(UTC) - timedelta(minutes=minutes)
    return {
        "labels": {"alertname": "GpuXidReset", "severity": "critical", **labels},
        "annotations": {"summary": "Xid 95\non GPU 0"},
        "startsAt": since.isoformat(),
        "status": {"state": "active", "silencedBy": [], "inhibitedBy": []},
    }


def node(name: str, host: str = "", **variables: Any) -> InventoryNode:
    return InventoryNode(name, connection=Connection(host=host or None), vars=variables)


def test_alertmanager_is_asked_for_what_is_neither_silenced_nor_inhibited(server: Server) -> None:
    server.answers[ALERTMANAGER] = [(200, [entry(10, instance="gpu7:9400")])]
    (found,) = firing(server.url)
    assert found.critical
    assert found.age_s == pytest.approx(600, abs=5)
    assert str(found) == "alert GpuXidReset: Xid 95 on GPU 0"


@pytest.mark.parametrize(
    ("label", "value", "wanted"),
    [
        ("instance", "gpu7:9400", True),
        ("instance", "10.0.0.7:9400", True),
        ("instance", "10.0.0.70:9400", False),
        ("instance", "[fd00::7]:9400", False),
        ("node", "GPU7", True),
        ("Hostname", "gpu7.site.example", True),
        ("hostname", "gpu70", False),
        ("hostname", "gpu70.site.example", False),
        ("node", "", False),
        ("rack", "gpu7", False),
    ],
)
def test_an_alert_is_of_the_node_that_a_label_names(label: str, value: str, wanted: bool) -> None:
    assert Alert("x", {label: value}, 0.0).is_of(node("gpu7", "10.0.0.7")) is wanted


def test_a_full_name_is_not_that_of_another_domain() -> None:
    found = Alert("x", {"node": "gpu7.a.example"}, 0.0)
    assert found.is_of(node("gpu7.a.example"))
    assert not found.is_of(node("gpu7.b.example"))
    assert Alert("x", {"instance": "[fd00::7]:9400"}, 0.0).is_of(node("gpu7", "fd00::7"))


@pytest.mark.parametrize(
    ("age_s", "last", "fails"),
    [(5, False, True), (5, True, True), (50, False, False), (50, True, True), (500, True, False)],
)
def test_what_fired_before_the_change_does_not_count_and_what_the_change_caused_may_resolve(
    age_s: float, last: bool, fails: bool
) -> None:
    found = [Alert("x", {"node": "gpu7", "severity": "critical"}, age_s)]
    words = failing(found, node("gpu7"), 100.0, 20.0, last=last)
    assert bool(words) is fails


def test_only_critical_alerts_count() -> None:
    found = [Alert("x", {"node": "gpu7", "severity": "warning"}, 1.0), Alert("y", {"node": "gpu7"}, 1.0)]  # fmt: skip
    assert failing(found, node("gpu7"), 100.0, 20.0, last=True) == ""


def test_a_server_that_is_busy_is_asked_again(server: Server) -> None:
    server.answers[ALERTMANAGER] = [(503, "no"), (502, "no"), (200, [])]
    slept: list[float] = []
    assert firing(server.url, slept.append) == []
    assert slept == [1.0, 4.0]


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({}, "HTTP status 404"),
        ({ALERTMANAGER: [(503, "no")]}, "HTTP status 503"),
        ({ALERTMANAGER: [(401, "no")]}, "HTTP status 401"),
        ({ALERTMANAGER: [(302, "")]}, "HTTP status 302"),
        ({ALERTMANAGER: [(200, "<html>login</html>")]}, "neither Alertmanager nor Prometheus"),
        ({ALERTMANAGER: [(200, {"a": 1})]}, "neither Alertmanager nor Prometheus"),
        ({ALERTMANAGER: [(200, [{"labels": {}}])]}, "neither Alertmanager nor Prometheus"),
        ({"/api/v1/alerts": [(200, {"status": "error"})]}, "neither Alertmanager nor Prometheus"),
    ],
)
def test_a_server_without_alerts_is_one_error(
    server: Server, answers: dict[str, list[tuple[int, Any]]], words: str
) -> None:
    server.answers |= answers
    server.location = f"{server.url}/elsewhere"
    with pytest.raises(AlertsUnavailable, match=words) as caught:
        firing(server.url, lambda _: None)
    assert str(caught.value).startswith(f"alerts of 127.0.0.1:{server.server_port}: ")
    assert "\n" not in str(caught.value)
    assert not any("elsewhere" in path for path, _ in server.seen)


def test_a_server_that_is_not_there_is_one_error(server: Server) -> None:
    with pytest.raises(AlertsUnavailable, match="Connection refused"):
        firing("http://127.0.0.1:1", lambda _: None)


def test_credentials_come_from_the_environment(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers[ALERTMANAGER] = [(200, [])]
    monkeypatch.setenv(alerts.AUTHORIZATION, "Bearer secret-token-1234")
    firing(server.url)
    assert server.seen == [("/am" + ALERTMANAGER, "Bearer secret-token-1234")]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("prometheus:9090", "not a URL"),
        ("ftp://prometheus", "not a URL"),
        ("http://", "not a URL"),
        ("http://[::1", "not a URL"),
        ("http://host/?match=x", "not a URL"),
        ("http://ann:pw@host", "contains credentials"),
    ],
)
def test_what_is_no_url_is_refused(url: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"--soak-alerts: .*{words}"):
        url_of(node("a"), url)
    with pytest.raises(UsageError, match=f"gpustate_soak_alerts of a: .*{words}"):
        url_of(node("a", gpustate_soak_alerts=url), "")


def test_alerts_without_a_soak_time_are_refused() -> None:
    with pytest.raises(UsageError, match="--soak-alerts without --soak"):
        Strategy(soak_alerts="http://p").rollout(Inventory("t", (node("a"),)), 1, 0.0)


def test_a_server_that_is_away_matters_at_the_end_of_the_soak_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "PAUSES_S", (0.0,))
    inventory = Inventory("t", (node("a"), node("b")))
    request = fleet.Request(Policy(), inventory, run="r1")
    server.answers[ALERTMANAGER] = [(503, "no")]
    with pytest.raises(AlertsUnavailable):  # before any node is reached
        rolling.soak_check(request, lambda: False, server.url)
    server.answers[ALERTMANAGER] = [(200, [entry(0.1, node="b")])]
    read = rolling._alerts_of(inventory.nodes, server.url)
    assert read is not None
    ages = dict.fromkeys("ab", Ages(60.0, 30.0))
    found = read(inventory.nodes, ages, False)
    assert found == {"b": "alert GpuXidReset: Xid 95 on GPU 0"}
    server.answers[ALERTMANAGER] = [(503, "no")]
    assert read(inventory.nodes, ages, False) == {}
    with pytest.raises(AlertsUnavailable):
        read(inventory.nodes, ages, True)


@prometheus.needed
def test_a_real_prometheus_is_read(tmp_path: Path) -> None:
    with prometheus.running(tmp_path) as server:
        server.bad |= {"gpu7": 1, "gpu8": 2, "gpu9": 3}
        server.wait_for("GpuBad", "GpuWarm", "GpuSlow")
        found = {one.name: one for one in firing(server.url)}
        assert set(found) == {"GpuBad", "GpuWarm"}, "GpuSlow is pending"
        assert 0 <= found["GpuBad"].age_s < 60
        rows = list(found.values())
        words = failing(rows, node("gpu7"), 60.0, 60.0, last=False)
        assert words == "alert GpuBad: GPU of gpu7 is bad"
        assert failing(rows, node("gpu8"), 60.0, 60.0, last=True) == ""
        server.bad.clear()
        server.wait_for()
        assert firing(server.url) == []
