"""The signature of an rpm package, checked with the keys that are pinned to its repository.

The package's header is signed, and has the hash of the payload; packages made before rpm 4.14 have a signature
over header and payload instead. gpgv checks both, as it does what apt's repositories sign. The file as a whole
is what its repodata says before this is asked.

Surprising: a header without the payload's hash says nothing about the payload. Such a package counts only when
the whole of it is signed.

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
    """One header: where it begins and ends in the file, and its values that are read here."""

    start: int
    end: int
    values: dict[int, list[bytes]] = field(default_factory=dict[int, list[bytes]])


def check(path: Path, name: str, place: RepositorySource) -> tuple[str, ...]:
    """Fingerprints of the pinned keys that signed a package.

    Args:
        path: the file.
        name: what it is called, for messages.
        place: its repository, with the keys that count.

    Raises:
        RefusedError: it is no package, or none of them signed it.
    """
    data = path.read_bytes()
    try:
        signature = _header(data, _LEAD)
        main = _header(data, (signature.end + 7) // 8 * 8)
        blobs = [*signature.values.get(_RSA, []), *signature.values.get(_DSA, [])]
        blobs += [base64.b64decode(b, validate=True) for b in signature.values.get(_OPENPGP, [])]
    except (ValueError, IndexError):
        raise RefusedError(f"{place.base}: {name} is no rpm package") from None
    header, payload = data[main.start : main.end], data[main.end :]
    told = RepositorySource(f"{place.base}/{name}", "/", (), place.keys, place.fingerprints)
    if blobs and _has_payload(main, payload):
        return upstream.verify_signature(told, header, blobs[0])[1]
    whole = [*signature.values.get(_PGP, []), *signature.values.get(_GPG, [])]
    if whole:
        return upstream.verify_signature(told, header + payload, whole[0])[1]
    if blobs:
        raise RefusedError(
            f"{told.base}: its payload is not what its signed header says",
            fix="try again later; the repository may be in the middle of an update",
        )
    raise RefusedError(
        f"{told.base}: is not signed",
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
    """The signed header has the hash of the payload that is there."""
    digests = [one.decode("ascii", "replace") for one in main.values.get(_PAYLOAD, [])]
    number = int.from_bytes((main.values.get(_PAYLOAD_ALGORITHM) or [b""])[0])
    algorithm = _ALGORITHMS.get(number)
    if not digests or algorithm is None or not re.fullmatch(r"[0-9a-f]{64,128}", digests[0]):
        return False
    return hashlib.new(algorithm, payload).hexdigest() == digests[0]
