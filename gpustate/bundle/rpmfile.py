"""Verify the signature of an rpm package with the keys that are pinned to its repository.

The package's header is signed and contains the hash of the payload; packages built before rpm 4.14 have a signature
over header and payload instead. gpgv verifies both. The hash of the whole file was compared with the repodata
before.

Surprising: a header without a payload hash does not protect the payload. Such a package is accepted only when
header and payload are signed together.

Sources:
    rpm manual, package format (lead, signature header, header, tags 267, 268, 278, 1002, 1005, 5092, 5097).
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from gpustate.bundle import upstream
from gpustate.bundle.upstream import RepositorySource
from gpustate.errors import RefusedError

_LEAD = 96
_LEAD_MAGIC, _MAGIC = b"\xed\xab\xee\xdb", b"\x8e\xad\xe8\x01"
_DSA, _RSA, _OPENPGP = 267, 268, 278
_PGP, _GPG = 1002, 1005
_PAYLOAD, _PAYLOAD_ALGORITHM = 5092, 5093
#: OpenPGP's number of the hash algorithm.
_ALGORITHMS = {8: "sha256", 9: "sha384", 10: "sha512"}
_INT32, _STRING, _BINARY, _STRINGS, _I18N = 4, 6, 7, 8, 9
#: Far above any real package's header.
_LIMIT = 512 << 20


@dataclass(frozen=True, slots=True)
class _Header:
    """One header: its start and end in the file, and the values that are needed here."""

    start: int
    end: int
    values: dict[int, list[bytes]] = field(default_factory=dict[int, list[bytes]])


def check(path: Path, name: str, place: RepositorySource) -> tuple[str, ...]:
    """Verify a package and return the fingerprints of the pinned keys that signed it.

    Args:
        path: the file.
        name: for messages.
        place: its repository, with the pinned keys.

    Raises:
        RefusedError: it is not an rpm package, or no pinned key signed it.
    """
    data = path.read_bytes()
    try:
        signature = _header(data, _LEAD)
        main = _header(data, (signature.end + 7) // 8 * 8)
        blobs = [*signature.values.get(_RSA, []), *signature.values.get(_DSA, [])]
        blobs += [base64.b64decode(b, validate=True) for b in signature.values.get(_OPENPGP, [])]
    except (ValueError, IndexError):
        raise RefusedError(f"{place.base}: {name} is not an rpm package") from None
    header, payload = data[main.start : main.end], data[main.end :]
    signed = RepositorySource(f"{place.base}/{name}", "/", (), place.keys, place.fingerprints)
    if blobs and _has_payload(main, payload):
        return upstream.verify_signature(signed, header, blobs[0])[1]
    whole = [*signature.values.get(_PGP, []), *signature.values.get(_GPG, [])]
    if whole:
        return upstream.verify_signature(signed, header + payload, whole[0])[1]
    if blobs:
        raise RefusedError(
            f"{signed.base}: its payload does not match its signed header",
            fix="try again later; the repository may be in the middle of an update",
        )
    raise RefusedError(
        f"{signed.base}: not signed",
        fix="use a repository whose packages or metadata are signed",
    )


def _header(data: bytes, start: int) -> _Header:
    if start == _LEAD and not data.startswith(_LEAD_MAGIC):
        raise ValueError("no lead")
    if data[start : start + 4] != _MAGIC:
        raise ValueError("no header")
    count = int.from_bytes(data[start + 8 : start + 12])
    size = int.from_bytes(data[start + 12 : start + 16])
    store = start + 16 + 16 * count
    end = store + size
    if count > _LIMIT or size > _LIMIT or end > len(data):
        raise ValueError("cut short")
    found: dict[int, list[bytes]] = {}
    for at in range(start + 16, store, 16):
        tag, kind, offset, items = (
            int.from_bytes(data[at + n : at + n + 4]) for n in (0, 4, 8, 12)
        )
        if tag in (_DSA, _RSA, _OPENPGP, _PGP, _GPG, _PAYLOAD, _PAYLOAD_ALGORITHM):
            found[tag] = _values(data[store + offset : end], kind, items)
    return _Header(start, end, found)


def _values(data: bytes, kind: int, items: int) -> list[bytes]:
    if kind == _BINARY:
        return [data[:items]]
    if kind == _INT32:
        return [data[4 * n : 4 * n + 4] for n in range(min(items, 16))]
    if kind in (_STRING, _STRINGS, _I18N):
        return data.split(b"\0", min(items, 16))[: min(items, 16)]
    return []


def _has_payload(main: _Header, payload: bytes) -> bool:
    """Whether the payload matches its hash in the signed header."""
    digests = [one.decode("ascii", "replace") for one in main.values.get(_PAYLOAD, [])]
    number = int.from_bytes((main.values.get(_PAYLOAD_ALGORITHM) or [b""])[0])
    algorithm = _ALGORITHMS.get(number)
    if not digests or algorithm is None or not re.fullmatch(r"[0-9a-f]{64,128}", digests[0]):
        return False
    return hashlib.new(algorithm, payload).hexdigest() == digests[0]
