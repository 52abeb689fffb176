"""Call a container runtime over its CRI socket; query version, conditions, handlers, cgroup driver.

The running process may differ from its configuration files. Like a kubelet, this module talks to the process by
gRPC on a unix socket. It implements only the parts of HTTP/2, HPACK and protobuf that unary calls need: one
connection per call, one stream, no compression of requests.

Standard library only, Python 3.9.

Sources:
    RFC 9113 (frames), RFC 7541 (HPACK; appendix B for the lengths of the Huffman codes, which are canonical);
    gRPC over HTTP/2; kubernetes/cri-api, pkg/apis/runtime/v1/api.proto: numbers of fields.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_ACK = _END_STREAM = 0x1
_END_HEADERS, _PADDED, _PRIORITY = 0x4, 0x8, 0x20
#: Limit for an answer; containerd's whole configuration has about 20 KiB.
_ROOM = 4 * 1024 * 1024

#: Lengths of the Huffman codes of the 256 byte values, each a digit of base 32.
_LENGTHS = (
    "dnsssssssoussussssssssusssssssss6aacd68baa8b8666555666666678f6ca"
    "d67777777777777777777777878djde6f56565666577666567655677777fbeds"
    "kmkkmmmnmnnnnnonoomnonnnnlmnmnnomlkmmnnlnmmolmnnllmlnmnnkmmmnmmn"
    "qqkjmnmpqqqrrqopjlqrrqrollqqsrrrkoklmllnmmppooqnqrqqrrrrrsrrrrrq"
)


class CriError(Exception):
    """The runtime does not answer, or answers with an error.

    Args:
        text: the runtime's message, if it has one.
        unserved: it answers, but does not implement the service.
    """

    def __init__(self, text: str, unserved: bool = False) -> None:
        super().__init__(text)
        self.unserved = unserved


@dataclass(frozen=True)
class Status:
    """Status of a runtime.

    Args:
        name, version: as in ``containerd`` and ``v1.7.24``.
        conditions: ``RuntimeReady`` and its like: whether each holds, with reason and message where it does not.
        handlers: those that it lists; containerd before 2.0 and CRI-O before 1.31 list none.
        info: its verbose status, parsed; containerd's has its running configuration under ``config``.
        cgroup_driver: ``systemd`` or ``cgroupfs``; empty if unknown (containerd before 2.0).
    """

    name: str = ""
    version: str = ""
    conditions: tuple[tuple[str, bool, str], ...] = ()
    handlers: tuple[str, ...] = ()
    info: dict[str, Any] = field(default_factory=dict)
    cgroup_driver: str = ""


def status(path: str, timeout_s: float = 10.0) -> Status:
    """Query version, status and cgroup driver.

    Raises:
        CriError: there is no answer in time, or no CRI service.
    """
    deadline = time.monotonic() + timeout_s
    version = fields(call(path, "Version", b"", deadline))
    answer = fields(call(path, "Status", b"\x08\x01", deadline))
    try:
        linux = fields(_last(fields(call(path, "RuntimeConfig", b"", deadline)), 1))
        driver = "cgroupfs" if linux.get(1, [0])[-1] == 1 else "systemd"
    except CriError as error:
        if not error.unserved:
            raise
        driver = ""
    conditions: list[tuple[str, bool, str]] = []
    for raw in fields(_last(answer, 1)).get(1, []):
        message = fields(raw)
        words = f"{text(message, 3)}: {text(message, 4)}" if message.get(3) else text(message, 4)
        conditions.append((text(message, 1), message.get(2, [0])[-1] == 1, words))
    info: dict[str, Any] = {}
    for raw in answer.get(2, []):
        entry = fields(raw)
        try:
            info[text(entry, 1)] = json.loads(text(entry, 2))
        except ValueError:
            info[text(entry, 1)] = text(entry, 2)
    return Status(
        name=text(version, 2),
        version=text(version, 3),
        conditions=tuple(conditions),
        handlers=tuple(sorted({text(fields(raw), 1) for raw in answer.get(3, [])} - {""})),
        info=info,
        cgroup_driver=driver,
    )


# --- protobuf -------------------------------------------------------------------------------------


def fields(raw: bytes | int) -> dict[int, list[Any]]:
    """A message by field number: integers, and bytes for length-delimited fields.

    Raises:
        CriError: it is not a message.
    """
    values: dict[int, list[Any]] = {}
    if isinstance(raw, int):
        raise CriError("the runtime's answer is not a CRI message")
    at = 0
    try:
        while at < len(raw):
            tag, at = _varint(raw, at)
            kind = tag & 7
            value: bytes | int
            if kind == 0:
                value, at = _varint(raw, at)
            elif kind == 2:
                size, at = _varint(raw, at)
                if at + size > len(raw):
                    raise IndexError
                value, at = raw[at : at + size], at + size
            elif kind in (1, 5):
                size = 8 if kind == 1 else 4
                value, at = raw[at : at + size], at + size
            else:
                raise IndexError
            values.setdefault(tag >> 3, []).append(value)
    except IndexError:
        raise CriError("the runtime's answer is not a CRI message") from None
    return values


def encode(message: Mapping[int, Any]) -> bytes:
    """A message from its fields by number: integers, texts, bytes, messages, and lists of these."""
    out = b""
    for number, values in message.items():
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, int):
                out += _as_varint(number << 3) + _as_varint(value)
                continue
            data = encode(value) if isinstance(value, Mapping) else value
            data = data.encode() if isinstance(data, str) else data
            out += _as_varint(number << 3 | 2) + _as_varint(len(data)) + data
    return out


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError


def _last(message: dict[int, list[Any]], number: int) -> Any:
    return message.get(number, [b""])[-1]


def text(message: dict[int, list[Any]], number: int) -> str:
    """The text of a field; empty if it is not set."""
    value = _last(message, number)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


# --- HPACK ----------------------------------------------------------------------------------------


def _huffman_codes() -> dict[tuple[int, int], int]:
    """Length and code to byte. The code is canonical: by length, and by value within one length."""
    lengths = [int(digit, 32) for digit in _LENGTHS]
    codes: dict[tuple[int, int], int] = {}
    code = before = 0
    for value in sorted(range(256), key=lambda byte: (lengths[byte], byte)):
        code <<= lengths[value] - before
        before = lengths[value]
        codes[before, code] = value
        code += 1
    return codes


def unhuffman(raw: bytes) -> bytes:
    """Decode; bits after the last whole code are padding."""
    codes, out = _huffman_codes(), bytearray()
    code = length = 0
    for byte in raw:
        for bit in range(7, -1, -1):
            code, length = code << 1 | byte >> bit & 1, length + 1
            if (length, code) in codes:
                out.append(codes[length, code])
                code = length = 0
    return bytes(out)


def _integer(raw: bytes, at: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    value = raw[at] & most
    at += 1
    if value < most:
        return value, at
    more, at = _varint(raw, at)
    return value + more, at


def _string(raw: bytes, at: int) -> tuple[bytes, int]:
    packed = raw[at] & 0x80
    size, at = _integer(raw, at, 7)
    text = raw[at : at + size]
    return unhuffman(text) if packed else text, at + size


def headers(raw: bytes) -> dict[str, str]:
    """Headers with literal names; indexed ones are omitted, because no call needs them."""
    by_name: dict[str, str] = {}
    at = 0
    try:
        while at < len(raw):
            first = raw[at]
            if first & 0x80:
                _, at = _integer(raw, at, 7)
                continue
            if first & 0xE0 == 0x20:
                _, at = _integer(raw, at, 5)
                continue
            index, at = _integer(raw, at, 6 if first & 0x40 else 4)
            name = b""
            if index == 0:
                name, at = _string(raw, at)
            value, at = _string(raw, at)
            if name:
                by_name[name.decode("ascii", "replace")] = value.decode("utf-8", "replace")
    except IndexError:
        raise CriError("the runtime's headers cannot be read") from None
    return by_name


def _literal(name: str, value: str) -> bytes:
    """A header without index and without compression; every name and value here is short."""
    out = b"\x00"
    for part in (name, value):
        data = part.encode("ascii")
        out += (
            bytes([len(data)]) + data
            if len(data) < 127
            else b"\x7f" + _as_varint(len(data) - 127) + data
        )
    return out


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


# --- HTTP/2 and gRPC ------------------------------------------------------------------------------


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + payload
    )


class _Stream:
    """One connection with one call on it."""

    def __init__(self, path: str, deadline: float) -> None:
        self.deadline = deadline
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.patience()
            self.socket.connect(path)
        except OSError:
            self.socket.close()
            raise

    def patience(self) -> None:
        remaining_s = self.deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError("timed out")
        self.socket.settimeout(remaining_s)

    def exactly(self, size: int) -> bytes:
        out = b""
        while len(out) < size:
            self.patience()
            part = self.socket.recv(size - len(out))
            if not part:
                raise CriError("the runtime closed the connection")
            out += part
        return out

    def frame(self) -> tuple[int, int, int, bytes]:
        head = self.exactly(9)
        size = int.from_bytes(head[:3], "big")
        if size > _ROOM:
            raise CriError("the runtime's answer is too long")
        return head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF, self.exactly(size)


def call(path: str, method: str, message: bytes, deadline: float) -> bytes:
    """Call a method of ``runtime.v1.RuntimeService``, or of ``ImageService`` if it is of images; return its answer.

    Raises:
        CriError: no answer by the deadline (monotonic seconds), or an error.
    """
    try:
        stream = _Stream(path, deadline)
    except TimeoutError:
        raise CriError(f"{path} does not answer in time") from None
    except OSError as error:
        raise CriError(f"{path}: {error.strerror or error}") from None
    with stream.socket:
        try:
            return _call(stream, method, message)
        except TimeoutError:
            raise CriError(f"{path} does not answer {method} in time") from None
        except OSError as error:
            raise CriError(f"{path}: {error.strerror or error}") from None


def _call(stream: _Stream, method: str, message: bytes) -> bytes:
    service = "ImageService" if "Image" in method else "RuntimeService"
    request = b"".join(
        _literal(*pair)
        for pair in (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/runtime.v1.{service}/{method}"),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        )
    )
    window = struct.pack(">HI", 4, _ROOM)  # SETTINGS_INITIAL_WINDOW_SIZE
    stream.socket.sendall(
        _PREFACE
        + _frame(_SETTINGS, 0, 0, window)
        + _frame(_WINDOW, 0, 0, struct.pack(">I", _ROOM))
        + _frame(_HEADERS, _END_HEADERS, 1, request)
        + _frame(_DATA, _END_STREAM, 1, b"\x00" + struct.pack(">I", len(message)) + message)
    )
    body, block, trailers = b"", b"", dict[str, str]()
    while True:
        kind, flags, number, payload = stream.frame()
        if kind == _SETTINGS and not flags & _ACK:
            stream.socket.sendall(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            stream.socket.sendall(_frame(_PING, _ACK, 0, payload))
        elif kind == _GOAWAY:
            raise CriError("the runtime closed the connection")
        elif number != 1:
            continue
        elif kind == _RST:
            raise CriError(f"the runtime reset {method}")
        elif kind in (_HEADERS, _CONTINUATION):
            if flags & _PADDED and kind == _HEADERS:
                payload = payload[1 : len(payload) - payload[0]]
            block += payload[5:] if flags & _PRIORITY and kind == _HEADERS else payload
            if flags & _END_HEADERS:
                trailers.update(headers(block))
                block = b""
        elif kind == _DATA:
            body += payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload
        if kind in (_HEADERS, _DATA) and flags & _END_STREAM and number == 1:
            return _answer(method, body, trailers)


def _answer(method: str, body: bytes, trailers: dict[str, str]) -> bytes:
    code = trailers.get("grpc-status", "0")
    if code != "0":
        words = re.sub(
            "%([0-9A-Fa-f]{2})",
            lambda match: chr(int(match[1], 16)),
            trailers.get("grpc-message", ""),
        )
        raise CriError(f"{method}: {words or 'gRPC status ' + code}", unserved=code == "12")
    if len(body) < 5 or len(body) < 5 + int.from_bytes(body[1:5], "big"):
        raise CriError(f"{method}: the runtime's answer is cut off")
    return body[5 : 5 + int.from_bytes(body[1:5], "big")]
