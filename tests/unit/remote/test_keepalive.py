"""Dead connections: keepalive requests without a reply close them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import paramiko
import pytest
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from gpustate.core.inventory import Connection
from gpustate.remote import ssh
from gpustate.remote.keepalive import Keepalive, TimedSocket, monitor


class Server(paramiko.ServerInterface):
    """Accepts every login."""

    def get_allowed_auths(self, username: str) -> str:
        return "none"

    def check_auth_none(self, username: str) -> int:
        return AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED


class Pair:
    """A client that is logged in to a server, whose replies can be stopped."""

    def __init__(self) -> None:
        near, far = socket.socketpair()
        self.sock = TimedSocket(near)
        self.server = paramiko.Transport(far)
        self.server.add_server_key(paramiko.ECDSAKey.generate(bits=256))
        self.server.start_server(threading.Event(), Server())
        self.client = paramiko.Transport(self.sock)  # type: ignore[arg-type]
        self.client.start_client(timeout=10)
        self.client.auth_none("anybody")

    def silence(self) -> None:
        """Drop all further replies of the server."""
        self.server.packetizer.send_message = lambda data: None  # type: ignore[method-assign]

    def ends_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while self.client.is_active() and time.monotonic() < end:
            time.sleep(0.02)
        return not self.client.is_active()


@pytest.fixture
def pair() -> Iterator[Pair]:
    connected = Pair()
    yield connected
    connected.client.close()
    connected.server.close()


class ClosedChannel:
    """A channel through a jump host that has disconnected."""

    def close(self) -> None:
        raise EOFError


def test_close_ignores_a_jump_host_that_disconnected_first() -> None:
    TimedSocket(ClosedChannel()).close()


def test_a_failed_transport_thread_closes_the_connection_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(self: paramiko.Transport) -> None:
        self.active = True
        raise RuntimeError("a channel is just being opened")

    monkeypatch.setattr(paramiko.Transport, "run", run)
    near, far = socket.socketpair()
    transport = ssh._Transport(near, ssh._HostKeyPolicy(ssh._target("n", Connection())))
    transport.start()
    transport.join(10)
    assert not transport.is_active()
    assert far.recv(1) == b""
    far.close()
    assert isinstance(transport.get_exception(), RuntimeError)
    assert capsys.readouterr().err == ""


def test_a_server_that_replies_stays_connected(pair: Pair) -> None:
    monitored = monitor(pair.client, pair.sock, 0.2, 2)
    assert not pair.ends_within(2.0)
    assert monitored is not None
    assert monitored.lost == ""


def test_a_server_without_replies_is_disconnected_with_the_reason(pair: Pair) -> None:
    monitored = monitor(pair.client, pair.sock, 0.2, 2)
    pair.silence()
    assert pair.ends_within(10)
    assert monitored is not None
    assert monitored.lost == "no reply to keepalive requests for 0.6 s"


def test_a_dead_connection_wakes_a_reader(pair: Pair) -> None:
    pair.server.packetizer.set_keepalive(0, lambda: None)
    accepted: list[paramiko.Channel | None] = []
    thread = threading.Thread(target=lambda: accepted.append(pair.server.accept(10)))
    thread.start()
    channel = pair.client.open_session(timeout=10)
    thread.join()
    monitor(pair.client, pair.sock, 0.2, 2)
    pair.silence()
    channel.settimeout(10)
    assert channel.recv(1) == b""


def test_an_interval_of_zero_sends_no_requests(pair: Pair) -> None:
    assert monitor(pair.client, pair.sock, 0, 3) is None


def test_a_closed_connection_is_no_longer_checked(pair: Pair) -> None:
    one = Keepalive(pair.client, pair.sock, 5.0)
    assert one.check(pair.sock.received_at + 1) == pair.sock.received_at + 5.0
    pair.client.close()
    assert one.check(time.monotonic()) is None
    assert one.lost == ""
