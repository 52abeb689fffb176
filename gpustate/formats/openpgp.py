"""Fingerprints of the keys in an armored OpenPGP public key block.

Read without GnuPG, which a controller need not have and a minimal node does not. Only the framing
and the public key packets are read; no signature is checked: the fingerprint is what pins a key.

Sources: RFC 4880 (packets, armor, section 12.2 for fingerprints of version 4 keys), RFC 9580 (version 6).
"""

from __future__ import annotations

import base64
import binascii
import hashlib

BEGIN = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
END = "-----END PGP PUBLIC KEY BLOCK-----"
_SIGNATURE, _PUBLIC_KEY = 2, 6
#: Types of signatures that a primary key makes about itself: certifications of its user IDs, and one of the key alone.
_ABOUT_ITSELF = (0x10, 0x11, 0x12, 0x13, 0x1F)
_CREATED, _LIFETIME = 2, 9  # types of subpackets


def fingerprints(text: str) -> tuple[str, ...]:
    """Fingerprints of the primary keys, upper-case hexadecimal, in the order of the text.

    Raises:
        ValueError: no armored public key block, or an invalid one.
    """
    key_fingerprints = [fingerprint for data in _blocks(text) for fingerprint in primaries(data)]
    if not key_fingerprints:
        raise ValueError(f"contains no public key (expected {BEGIN!r})")
    return tuple(dict.fromkeys(key_fingerprints))


def primaries(data: bytes) -> tuple[str, ...]:
    """Fingerprints of the primary keys of a key ring that is not armored.

    Raises:
        ValueError: it is invalid.
    """
    return tuple(_fingerprint(body) for tag, body in _packets(data) if tag == _PUBLIC_KEY)


def expiries(text: str) -> dict[str, int]:
    """Times at which primary keys expire, in seconds since 1970, by fingerprint; none of keys that do not, or that are invalid."""
    expiry_times: dict[str, int] = {}
    try:
        for data in _blocks(text):
            fingerprint, created, newest = "", 0, -1
            for tag, body in _packets(data):
                if tag == _PUBLIC_KEY:
                    fingerprint, newest = _fingerprint(body), -1
                    created = int.from_bytes(body[1:5], "big")
                elif tag == _SIGNATURE and body[:1] == b"\x04" and body[1] in _ABOUT_ITSELF:
                    times = _times(body[6 : 6 + int.from_bytes(body[4:6], "big")])
                    if times.get(_CREATED, 0) > newest:
                        newest = times.get(_CREATED, 0)
                        expiry_times.pop(fingerprint, None)
                        if times.get(_LIFETIME):
                            expiry_times[fingerprint] = created + times[_LIFETIME]
    except (ValueError, IndexError):
        return {}
    return expiry_times


def _times(data: bytes) -> dict[int, int]:
    """Subpackets of a signature that are times or durations, in seconds, by type."""
    seconds_by_type: dict[int, int] = {}
    while data:
        length, start = _new_length(data, 0)
        kind = data[start] & 0x7F
        if kind in (_CREATED, _LIFETIME):
            seconds_by_type[kind] = int.from_bytes(data[start + 1 : start + length], "big")
        data = data[start + length :]
    return seconds_by_type


def binary(data: bytes) -> bytes:
    """A key ring without its armor, if it has one.

    Raises:
        ValueError: the armor is incomplete.
    """
    if BEGIN.encode() not in data:
        return data
    return b"".join(_blocks(data.decode("utf-8", "replace")))


def _blocks(text: str) -> list[bytes]:
    blocks: list[bytes] = []
    remainder = text
    while BEGIN in remainder:
        block, end, remainder = remainder.partition(BEGIN)[2].partition(END)
        if not end:
            raise ValueError(f"a key block has no {END!r}")
        lines = [line.strip() for line in block.splitlines()]
        # Armor headers ("Version: GnuPG v1") end at the first empty line; the first line is the
        # rest of the BEGIN line.
        if "" in lines[1:]:
            lines = lines[lines.index("", 1) :]
        body = "".join(line for line in lines if line and not line.startswith("="))
        try:
            blocks.append(base64.b64decode(body, validate=True))
        except binascii.Error as error:
            raise ValueError(f"the key block is not base64 ({error})") from None
    return blocks


def _packets(data: bytes) -> list[tuple[int, bytes]]:
    packets: list[tuple[int, bytes]] = []
    at = 0
    while at < len(data):
        head = data[at]
        if not head & 0x80:
            raise ValueError("the key block contains no OpenPGP packets")
        if head & 0x40:
            tag = head & 0x3F
            length, start = _new_length(data, at + 1)
        else:
            tag = head >> 2 & 0x0F
            size = (1, 2, 4, 0)[head & 3]
            start = at + 1 + size
            length = int.from_bytes(data[at + 1 : start], "big") if size else len(data) - start
        body = data[start : start + length]
        if len(body) < length:
            raise ValueError("the key block is truncated")
        packets.append((tag, body))
        at = start + length
    return packets


def _new_length(data: bytes, at: int) -> tuple[int, int]:
    first = data[at] if at < len(data) else 0
    if first < 192:
        return first, at + 1
    if first < 224:
        second = data[at + 1] if at + 1 < len(data) else 0
        return (first - 192 << 8) + second + 192, at + 2
    if first == 255:
        return int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
    raise ValueError("a key packet of unknown length")


def _fingerprint(body: bytes) -> str:
    version = body[0] if body else 0
    if version == 4:
        return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()
    if version == 6:
        return hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    raise ValueError(f"unsupported key version {version}")
