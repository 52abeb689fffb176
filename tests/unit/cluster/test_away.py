"""An API server that has answered before may be away for a while; one that never has is an error at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest
from apigate import Gate
from lightkube import Client, KubeConfig
from stubcluster import TOKEN, Answer, Request, StubCluster

from gpustate.cluster import api as cluster_api
from gpustate.cluster.api import PATIENCE_S, Api, RefusedRequest, connect
from gpustate.errors import ClusterError

BUDGET = {"details": {"causes": [{"reason": "DisruptionBudget"}]}}


@dataclass
class Server:
    """A cluster whose next answers are these; after them it answers itself."""

    cluster: StubCluster
    next: list[Answer] = field(default_factory=list)

    def answer(self, request: Request) -> Answer:
        return self.next.pop(0) if self.next else self.cluster.answer(request)


@dataclass
class Clock:
    now: float = 0.0
    meanwhile: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> Server:
    return Server(StubCluster({"n0": ("b", "m", "u")}))


@pytest.fixture
def gate(server: Server) -> Iterator[Gate]:
    gate = Gate(server.answer)
    gate.open()
    yield gate
    gate.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def api(gate: Gate, clock: Clock, tmp_path: Path) -> Iterator[Api]:
    config = KubeConfig.from_file(gate.kubeconfig(tmp_path, TOKEN)).get()
    client = Client(config=config, timeout=httpx2.Timeout(5.0))
    found = Api(client, gate.url, clock.sleep, clock)
    yield found
    found.close()


def status(code: int, **more: object) -> dict[str, object]:
    return {"kind": "Status", "message": "not now", "code": code, **more}


@pytest.mark.parametrize(
    "answer",
    [
        Answer(503, "no server is available"),
        Answer(502, "<html>Bad Gateway</html>"),
        Answer(504, status(504, message="timeout")),
        Answer(429, status(429), {"Retry-After": "3"}),
        Answer(429, status(429)),
        Answer(429, "Too many requests, please try again later."),
    ],
    ids=lambda answer: str(answer.status),
)
def test_a_server_that_answered_before_is_asked_again(
    api: Api, server: Server, clock: Clock, answer: Answer
) -> None:
    api.nodes()
    server.next = [answer] * 3
    assert len(api.nodes()) == 1
    assert clock.now == (9.0 if answer.headers else 3.0)


def test_a_server_that_is_busy_at_the_first_request_is_asked_again(
    api: Api, server: Server, clock: Clock
) -> None:
    server.next = [Answer(429, status(429), {"Retry-After": "2"}), Answer(429, "busy")]
    assert len(api.nodes()) == 1
    assert clock.now == 3.0


def test_a_busy_server_is_not_waited_for_longer_than_the_patience(
    api: Api, server: Server, clock: Clock
) -> None:
    server.next = [Answer(429, status(429), {"Retry-After": "60"})]
    with pytest.raises(RefusedRequest, match="not now"):
        api.nodes()
    assert clock.now == 0.0


def test_a_server_whose_port_is_closed_for_a_while_is_asked_again(
    api: Api, gate: Gate, clock: Clock
) -> None:
    api.nodes()
    gate.close()
    clock.meanwhile = gate.open
    assert len(api.nodes()) == 1


def test_the_wait_ends(api: Api, gate: Gate, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    api.nodes()
    gate.close()
    with pytest.raises(ClusterError, match="is unreachable"):
        api.nodes()
    assert PATIENCE_S - 2 < clock.now <= PATIENCE_S
    monkeypatch.setattr(cluster_api, "PATIENCE_S", 4.0)  # as support/hurry.py does
    began = clock.now
    with pytest.raises(ClusterError, match="is unreachable"):
        api.nodes()
    assert clock.now - began <= 4.0


def test_a_server_that_never_answered_is_an_error_at_once(
    api: Api, gate: Gate, clock: Clock
) -> None:
    gate.close()
    with pytest.raises(ClusterError, match="is unreachable"):
        api.nodes()
    assert clock.now == 0.0


def test_what_a_budget_refuses_is_an_answer(api: Api, server: Server, clock: Clock) -> None:
    (pod, *_) = [one for one in api.pods() if one["metadata"]["name"].startswith("train")]
    server.next = [Answer(429, status(429, **BUDGET), {"Retry-After": "10"})]
    with pytest.raises(RefusedRequest) as caught:
        api.evict(pod)
    assert caught.value.retry_after_s == 10.0
    assert clock.now == 0.0


def test_credentials_that_have_expired_are_named_once(api: Api, server: Server) -> None:
    server.cluster.token = "another"
    with pytest.raises(RefusedRequest, match=r"list nodes: Unauthorized; its user's token or cert"):
        api.nodes()


@pytest.mark.parametrize("list_nodes", [Api.nodes, Api.nodes_with_version])
def test_a_kubeconfig_without_credentials_is_named(
    gate: Gate, server: Server, tmp_path: Path, list_nodes: Callable[[Api], object]
) -> None:
    words = 'nodes is forbidden: User "system:anonymous" cannot list resource "nodes"'
    server.next = [Answer(403, status(403, message=words))]
    path = str(gate.kubeconfig(tmp_path, TOKEN))
    api = connect(path)
    with pytest.raises(RefusedRequest) as caught:
        list_nodes(api)
    assert str(caught.value) == (
        f"{gate.url}: list nodes: {words}; the user of {path} has no credentials that the server accepts: "
        "get a kubeconfig with a token or a client certificate"
    )
    api.close()
