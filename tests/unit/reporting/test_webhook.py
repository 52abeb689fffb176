"""The webhook: what is posted, when it is tried again, and that its URL stays secret."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gpustate.core.inventory import InventoryNode
from gpustate.errors import UsageError
from gpustate.formats import masking
from gpustate.reporting import post, webhook


class Receiver(ThreadingHTTPServer):
    """Answers with some statuses; the last one repeats."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.bodies: list[bytes] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hooks/T0ken-in-the-path"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        status = self.server.statuses
        code = status.pop(0) if len(status) > 1 else status[0]
        self.send_response(code)
        if code == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy between."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def receivers() -> Iterator[list[Receiver]]:
    made: list[Receiver] = []
    yield made
    for one in made:
        one.shutdown()
        one.server_close()


@pytest.mark.parametrize(
    ("statuses", "attempts", "reason"),
    [
        ((200,), 1, ""),
        ((204,), 1, ""),
        ((503, 429, 200), 3, ""),
        ((500,), 3, "HTTP status 500"),
        ((404,), 1, "HTTP status 404"),
        ((302,), 1, "HTTP status 302"),
    ],
)
def test_only_what_may_pass_is_tried_again(
    receivers: list[Receiver], statuses: tuple[int, ...], attempts: int, reason: str
) -> None:
    receiver = Receiver(*statuses)
    receivers.append(receiver)
    waits: list[float] = []
    failed = post.send(receiver.url, b'{"a": 1}\n', waits.append)
    assert failed == (f"webhook of 127.0.0.1: {reason}" if reason else "")
    assert receiver.bodies == [b'{"a": 1}\n'] * attempts
    assert waits == list(post.PAUSES_S)[: attempts - 1]


def test_a_receiver_that_is_not_there_is_named_without_its_url() -> None:
    receiver = Receiver(200)
    receiver.shutdown()
    receiver.server_close()
    failed = post.send(receiver.url, b"{}", lambda _: None)
    assert failed == "webhook of 127.0.0.1: Connection refused"


def test_a_url_is_a_secret_from_wherever_it_comes() -> None:
    masking.forget_all()
    first = "https://hooks.example.org/services/T0/abcdefghijkl?key=qwertyuiopas"
    node = InventoryNode(
        "gpu1", vars={webhook.VARIABLE: "https://other.example.org/x/Zyxwvutsrqpo"}
    )
    assert webhook.urls(first, [node]) == (first,)
    assert webhook.urls(None, [node, node]) == ("https://other.example.org/x/Zyxwvutsrqpo",)
    said = masking.mask(f"{first} /abcdefghijkl/ key=qwertyuiopas Zyxwvutsrqpo")
    assert said == "(secret) /(secret)/ (secret) (secret)"
    assert masking.is_secret_name(webhook.VARIABLE)


@pytest.mark.parametrize(
    "url", ["hooks.example.org/x", "ftp://h/x", "http://", "http://h:x/", "a b"]
)
def test_what_is_no_url_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(UsageError, match=r"^GPUSTATE_WEBHOOK: not a URL") as caught:
        webhook.urls(url, [])
    assert url not in str(caught.value)
