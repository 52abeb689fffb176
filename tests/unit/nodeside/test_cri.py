"""The CRI client: HPACK by the examples of RFC 7541, protobuf, and calls against a server on a socket."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpustate.nodeside import cri

SETTINGS = b"\0\0\0\4\0\0\0\0\0"


def frame(kind: int, flags: int, payload: bytes, stream: int = 1) -> bytes:
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + payload
    )


def header(name: str, value: str) -> bytes:
    return b"\x40" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def message(body: bytes, status: str = "0", words: str = "") -> bytes:
    """Headers, data and trailers of one answer."""
    data = frame(0, 0, b"\0" + struct.pack(">I", len(body)) + body) if status == "0" else b""
    trailers = header("grpc-status", status) + (header("grpc-message", words) if words else b"")
    return SETTINGS + frame(1, 4, b"\x88") + data + frame(1, 5, trailers)


def text(number: int, value: str) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value.encode()


@contextmanager
def served(path: Path, answer: Callable[[str], bytes]) -> Iterator[str]:
    """A server that answers each connection by the method that its request names."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                observed = connection.recv(65536)
                method = observed.partition(b"RuntimeService/")[2].split(b"\0")[0].decode()
                connection.sendall(answer(method))
                connection.recv(1024)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield str(path)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


@pytest.mark.parametrize(
    ("packed", "plain"),
    [
        ("f1e3c2e5f23a6ba0ab90f4ff", b"www.example.com"),  # RFC 7541, C.4.1
        ("a8eb10649cbf", b"no-cache"),  # C.4.2
        ("25a849e95ba97d7f", b"custom-key"),  # C.4.3
        ("d07abe941054d444a8200595040b8166e082a62d1bff", b"Mon, 21 Oct 2013 20:13:21 GMT"),  # C.6.1
    ],
)
def test_huffman_codes_are_those_of_the_rfc(packed: str, plain: bytes) -> None:
    assert cri.unhuffman(bytes.fromhex(packed)) == plain


def test_headers_with_names_of_their_own_are_read() -> None:
    # RFC 7541, C.2.1: literal with indexing; C.2.4: an indexed one is left out.
    raw = bytes.fromhex("82400a637573746f6d2d6b65790d637573746f6d2d686561646572")
    assert cri.headers(raw) == {"custom-key": "custom-header"}


@pytest.mark.parametrize("raw", [b"\x08", b"\x0a\x05ab", b"\x0b", b"\x80" * 12])
def test_what_is_no_message_is_an_error(raw: bytes) -> None:
    with pytest.raises(cri.CriError, match="not a CRI message"):
        cri.fields(raw)


def test_a_runtimes_status_is_read(tmp_path: Path) -> None:
    ready = text(1, "RuntimeReady") + b"\x10\x01"
    network = text(1, "NetworkReady") + text(3, "NotReady") + text(4, "no cni")
    conditions = b"".join(bytes([10, len(one)]) + one for one in (ready, network))
    info = text(1, "config") + text(2, '{"cdi": 1}')
    handler = text(1, "nvidia")
    status = b"".join(
        bytes([number << 3 | 2, len(one)]) + one
        for number, one in ((1, conditions), (2, info), (3, handler))
    )
    answers = {
        "Version": text(2, "containerd") + text(3, "v2.1.4"),
        "Status": status,
        "RuntimeConfig": b"\x0a\x02\x08\x01",
    }
    with served(tmp_path / "s", lambda method: message(answers[method])) as path:
        found = cri.status(path)
    assert (found.name, found.version, found.cgroup_driver) == ("containerd", "v2.1.4", "cgroupfs")
    assert found.conditions == (
        ("RuntimeReady", True, ""),
        ("NetworkReady", False, "NotReady: no cni"),
    )
    assert found.handlers == ("nvidia",)
    assert found.info == {"config": {"cdi": 1}}


def test_a_runtime_without_the_service_is_told_apart_from_a_silent_one(tmp_path: Path) -> None:
    words = "unknown service runtime.v1.RuntimeService"
    with (
        served(tmp_path / "s", lambda method: message(b"", "12", words)) as path,
        pytest.raises(cri.CriError, match=words) as caught,
    ):
        cri.status(path)
    assert caught.value.unserved
    with pytest.raises(cri.CriError, match="No such file") as caught:
        cri.status(str(tmp_path / "none"))
    assert not caught.value.unserved


def test_a_runtime_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    began = time.monotonic()
    with listener, pytest.raises(cri.CriError, match=r"in time|timed out"):
        cri.status(str(tmp_path / "s"), 0.3)
    assert time.monotonic() - began < 10
