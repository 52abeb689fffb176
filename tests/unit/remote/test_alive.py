"""Connections on which nothing comes any more."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import paramiko
import pytest
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from gpustate.remote import ssh
from gpustate.remote.alive import HeardSocket, Watch, watch


class Server(paramiko.ServerInterface):
    """Lets everybody in."""

    def get_allowed_auths(self, username: str) -> str:
        return "none"

    def check_auth_none(self, username: str) -> int:
        return AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED


class Pair:
    """A client and a server that are logged in, and the means to silence one of them."""

    def __init__(self) -> None:
        near, far = socket.socketpair()
        self.heard = HeardSocket(near)
        self.server = paramiko.Transport(far)
        self.server.add_server_key(paramiko.ECDSAKey.generate(bits=256))
        self.server.start_server(threading.Event(), Server())
        self.client = paramiko.Transport(self.heard)  # type: ignore[arg-type]
        self.client.start_client(timeout=10)
        self.client.auth_none("anybody")

    def silence(self) -> None:
        """The server's answers go nowhere from here on."""
        self.server.packetizer.send_message = lambda data: None  # type: ignore[method-assign]

    def ends_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while self.client.is_active() and time.monotonic() < end:
            time.sleep(0.02)
        return not self.client.is_active()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.client.close()
    made.server.close()


class Gone:
    """A jump host's channel, after the jump host has hung up."""

    def close(self) -> None:
        raise EOFError


def test_a_jump_host_that_hung_up_first_leaves_nothing_to_close() -> None:
    HeardSocket(Gone()).close()


def test_a_connection_whose_thread_fails_at_its_end_is_over_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(self: paramiko.Transport) -> None:
        self.active = True
        raise RuntimeError("a channel is just being opened")

    monkeypatch.setattr(paramiko.Transport, "run", run)
    near, far = socket.socketpair()
    transport = ssh._Transport(near)
    transport.start()
    transport.join(10)
    assert not transport.is_active()
    assert far.recv(1) == b""
    far.close()
    assert isinstance(transport.get_exception(), RuntimeError)
    assert capsys.readouterr().err == ""


def test_a_side_that_answers_is_left_connected(pair: Pair) -> None:
    watched = watch(pair.client, pair.heard, 0.2, 2)
    assert not pair.ends_within(2.0)
    assert watched is not None
    assert watched.lost == ""


def test_a_side_that_falls_silent_is_hung_up_on_and_the_reason_kept(pair: Pair) -> None:
    watched = watch(pair.client, pair.heard, 0.2, 2)
    pair.silence()
    assert pair.ends_within(10)
    assert watched is not None
    assert watched.lost == "no sign of life for 0.6 s"


def test_whoever_waits_for_output_is_woken(pair: Pair) -> None:
    pair.server.packetizer.set_keepalive(0, lambda: None)
    accepted: list[paramiko.Channel | None] = []
    thread = threading.Thread(target=lambda: accepted.append(pair.server.accept(10)))
    thread.start()
    channel = pair.client.open_session(timeout=10)
    thread.join()
    watch(pair.client, pair.heard, 0.2, 2)
    pair.silence()
    channel.settimeout(10)
    assert channel.recv(1) == b""


def test_an_interval_of_zero_asks_for_nothing(pair: Pair) -> None:
    assert watch(pair.client, pair.heard, 0, 3) is None


def test_a_connection_that_is_over_is_no_longer_looked_at(pair: Pair) -> None:
    one = Watch(pair.client, pair.heard, 5.0)
    assert one.look(pair.heard.heard_at + 1) == pair.heard.heard_at + 5.0
    pair.client.close()
    assert one.look(time.monotonic()) is None
    assert one.lost == ""
