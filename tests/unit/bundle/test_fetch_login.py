"""Bundles are made from private mirrors too: the login goes to its own repository and to nobody else."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpustate.bundle import fetch
from gpustate.errors import ConnectionFailed


class _Private(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        login = self.headers.get("Authorization", "")
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
        else:
            wanted = {"/a/x": b"ann:one", "/b/x": b"bob:two"}.get(self.path)
            word = base64.b64encode(wanted).decode() if wanted else ""
            self.send_response(200 if login == (f"Basic {word}" if wanted else "") else 401)
        self.end_headers()
        self.wfile.write(b"content")

    def log_message(self, format: str, *args: object) -> None:
        """A test is quiet."""


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Private) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_each_repository_of_a_host_gets_its_own_login_and_a_redirect_none(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_LOGINS", [])
    with pytest.raises(ConnectionFailed, match="username and password of the repository's state"):
        fetch._open(f"{server}/a/x", 0)
    fetch.log_in(f"{server}/a", "ann", "one")
    fetch.log_in(f"{server}/b/", "bob", "two")
    for path in ("/a/x", "/b/x", "/moved"):
        with fetch._open(server + path, 0) as answer:
            assert answer.read() == b"content"
