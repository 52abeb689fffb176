"""An HTTP server before a cluster at which something happens at a chosen write: a kill, an outage, another client.

Writes are named by what they do (``hold n0``, ``evict train``, ``lease take``) and counted by name, so that a
write of one run is the same as that of the next.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http.client import HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

from stubcluster import Answer, Request

HOLD = "gpustate.io/hold"
BEFORE, AFTER = "before", "after"
#: How a server is away: no port, a proxy's answer, a request that never ends.
REFUSED, UNAVAILABLE, HANGING = "refused", "unavailable", "hanging"


@dataclass(slots=True)
class Trap:
    """What happens at a write.

    Args:
        write: its name and number, as :attr:`Gate.writes` has it.
        when: before or after it is carried out.
        action: what happens there, while the client waits.
        drop: the client gets no answer; before: the write is not carried out either.
        away: the server is away from then on, in one of the ways above.
        away_s: for so long.
    """

    write: str
    when: str = BEFORE
    action: Callable[[], None] = lambda: None
    drop: bool = False
    away: str = ""
    away_s: float = 0.0
    sprung: bool = False


@dataclass(slots=True)
class Gate:
    """The server.

    Args:
        answer: of the cluster behind it.
        port: 0: any.
        skew_s: its clock is so much behind.
        owner_of: name of a pod without what differs from run to run.
    """

    answer: Callable[[Request], Answer]
    port: int = 0
    skew_s: float = 0.0
    owner_of: Callable[[str], str] = lambda pod: pod.rstrip("0123456789-")
    writes: list[str] = field(default_factory=list[str])
    statuses: list[int] = field(default_factory=list[int])
    trap: Trap | None = None
    _counts: Counter[str] = field(default_factory=Counter[str])
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _server: ThreadingHTTPServer | None = None
    _thread: threading.Thread | None = None
    _away: tuple[str, float] = ("", 0.0)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def kubeconfig(self, folder: Path, token: str, name: str = "kubeconfig.json") -> Path:
        """Write a kubeconfig of it."""
        file = folder / name
        file.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "clusters": [{"name": "k", "cluster": {"server": self.url}}],
                    "users": [{"name": "u", "user": {"token": token}}],
                    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                }
            )
        )
        return file

    def open(self) -> None:
        """Listen."""
        self._away = ("", 0.0)
        server = _Server(("127.0.0.1", self.port), _Handler)
        server.gate = self
        self.port = server.server_port
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; connections that are open end."""
        self._away = (REFUSED, float("inf"))
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()

    def begin(self, trap: Trap | None = None) -> None:
        """Count writes anew."""
        with self._lock:
            self.writes, self.statuses, self._counts = [], [], Counter[str]()
            self.trap = trap

    # --- one request -------------------------------------------------------------------

    def handle(self, request: Request) -> Answer | None:
        """Answer it; ``None``: the connection ends without an answer."""
        away = self._wait_away()
        if away is not None:
            return away if away.status else None
        if not request.writes:
            return self.answer(request)
        with (
            self._lock
        ):  # one write at a time: nothing overtakes the one at which something happens
            label = name_of(request, self.owner_of)
            self._counts[label] += 1
            name = f"{label} {self._counts[label]}"
            trap = self.trap if self.trap is not None and self.trap.write == name else None
            if trap is not None and not trap.sprung and trap.when == BEFORE:
                trap.sprung = True
                trap.action()
                if trap.away:
                    self._go_away(trap)
                    away = self._wait_away()
                    return away if away is not None and away.status else None
                if trap.drop:
                    return None
            answer = self.answer(request)
            self.writes.append(name)
            self.statuses.append(answer.status)
            if trap is not None and not trap.sprung and trap.when == AFTER:
                trap.sprung = True
                trap.action()
                if trap.away:
                    self._go_away(trap)
                    return None
                if trap.drop:
                    return None
            return answer

    def _go_away(self, trap: Trap) -> None:
        self._away = (trap.away, time.monotonic() + trap.away_s)
        if trap.away == REFUSED:
            server, self._server = self._server, None
            assert server is not None
            threading.Thread(target=self._return, args=(server, trap.away_s), daemon=True).start()

    def _return(self, server: ThreadingHTTPServer, seconds: float) -> None:
        server.shutdown()
        server.server_close()
        time.sleep(seconds)
        self.open()

    def wait_back(self) -> None:
        """Wait until the server is no longer away."""
        while time.monotonic() < self._away[1] or self._server is None:
            time.sleep(0.05)

    def _wait_away(self) -> Answer | None:
        kind, until = self._away
        left = until - time.monotonic()
        if left <= 0 or not kind:
            return None
        if kind == UNAVAILABLE:
            return Answer(503, "no server is available to handle this request\n")
        if kind == HANGING:
            time.sleep(left)
        return Answer(0, "")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    gate: Gate


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _any(self) -> None:
        gate = cast(_Server, self.server).gate
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length) if length else b""
        parts = urlsplit(self.path)
        request = Request(
            self.command,
            parts.path,
            dict(parse_qsl(parts.query)),
            json.loads(raw) if raw else None,
            (self.headers.get("Authorization") or "").removeprefix("Bearer "),
            self.path,
            self.headers.get("Content-Type") or "application/json",
        )
        answer = gate.handle(request)
        if answer is None:
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        if answer.stream is not None:
            self._stream(answer)
            return
        text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
        with suppress(OSError):  # the client may be dead
            self.send_response(answer.status)
            kind = "text/plain" if isinstance(answer.body, str) else "application/json"
            headers = {"Content-Type": kind, "Content-Length": str(len(text.encode()))}
            for key, value in {**headers, **answer.headers}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(text.encode())

    def _stream(self, answer: Answer) -> None:
        """A watch: one line an event, in chunks."""
        assert answer.stream is not None
        self.close_connection = True
        with suppress(OSError):  # the client may be gone, or the server cut it off
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in answer.stream:
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _any  # noqa: N815

    def date_time_string(self, timestamp: float | None = None) -> str:
        skew_s = cast(_Server, self.server).gate.skew_s
        return super().date_time_string((timestamp or time.time()) - skew_s)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@dataclass(slots=True)
class Upstream:
    """A real API server behind a gate, which is asked as one of its users.

    Args:
        server: URL.
        authority: file with its CA's certificate.
        certificate, key: files of the user.
    """

    server: str
    authority: Path
    certificate: Path
    key: Path

    def answer(self, request: Request) -> Answer:
        """What it says."""
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self.certificate, self.key)
        parts = urlsplit(self.server)
        connection = HTTPSConnection(
            parts.hostname or "", parts.port or 443, timeout=30, context=context
        )
        headers = {"Content-Type": request.content_type, "Accept": "application/json"}
        headers["User-Agent"] = "gpustate/0 through a gate"
        body = None if request.body is None else json.dumps(request.body)
        try:
            connection.request(request.method, request.url or request.path, body, headers)
            response = connection.getresponse()
            text = response.read().decode()
            after = response.getheader("Retry-After")
            kept = {"Content-Type": response.getheader("Content-Type") or "application/json"}
            return Answer(response.status, text, kept | ({"Retry-After": after} if after else {}))
        finally:
            connection.close()


def name_of(request: Request, owner_of: Callable[[str], str]) -> str:
    """What a write does, without what differs from run to run."""
    place = request.place
    name = str(place["name"] or "")
    if place["resource"] == "nodes":
        return f"{_of_node(request.body or {})} {name}"
    if place["resource"] == "pods":
        verb = "evict" if place["sub"] == "eviction" else "delete"
        return f"{verb} {owner_of(name)}"
    if place["resource"] == "leases":
        spec = (request.body or {}).get("spec") or {}
        if not spec.get("holderIdentity"):
            return "lease release"
        notes = ((request.body or {}).get("metadata") or {}).get("annotations") or {}
        if "gpustate.io/rollout" in notes:
            return "lease publish"
        taken = [datetime.fromisoformat(spec[key]) for key in ("acquireTime", "renewTime")]
        # Who takes it writes both times in one go.
        return "lease take" if taken[1] - taken[0] < timedelta(seconds=0.1) else "lease renew"
    return f"{request.method.lower()} {place['resource']}"


def _of_node(patch: dict[str, Any]) -> str:
    unschedulable = "unschedulable" in (patch.get("spec") or {})
    if (patch.get("spec") or {}).get("unschedulable"):
        return "hold"
    record = (patch.get("metadata", {}).get("annotations") or {}).get(HOLD)
    if record is None:
        return "release" if unschedulable else "patch"
    return f"note {json.loads(record)['phase']}"
