"""A key that signs repositories in tests: generated once, without GnuPG.

Ed25519 signatures are deterministic, so the same packages and the same key give the same bytes. The time in a
signature is a parameter. Certificate and signatures have version 4, which every release of gpgv reads.

Sources:
    RFC 4880 sections 4 to 7 (packets, signatures, armor, clear text);
    draft-koch-eddsa-for-openpgp (algorithm 22, its curve and its numbers).
"""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from gpustate.errors import UsageError

IDENTITY = "gpustate tests"
_EDDSA, _SHA512 = 22, 10
_CURVE = bytes.fromhex("092b06010401da470f01")
#: Creation time of every such key, so that the fingerprint depends on the key alone.
_BORN = 1_577_836_800
_BINARY, _TEXT, _SELF = 0x00, 0x01, 0x13


@dataclass(frozen=True, slots=True)
class SigningKey:
    """An Ed25519 key in OpenPGP format."""

    secret: Ed25519PrivateKey

    @classmethod
    def load(cls, path: Path) -> SigningKey:
        """Read a key, or generate it where there is no file.

        Raises:
            UsageError: the file is not such a key, or cannot be read or written.
        """
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return cls._make(path)
        except OSError as error:
            raise UsageError(f"cannot read ({error.strerror})", place=str(path)) from error
        try:
            secret = load_pem_private_key(data, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            secret = None
        if not isinstance(secret, Ed25519PrivateKey):
            raise UsageError(
                "is not an unencrypted Ed25519 key in PEM format",
                place=str(path),
                fix="pass a path that does not exist yet to generate a key",
            )
        return cls(secret)

    @classmethod
    def _make(cls, path: Path) -> SigningKey:
        secret = Ed25519PrivateKey.generate()
        data = secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            os.link(fresh, path)
        except FileExistsError:
            return cls.load(path)
        except OSError as error:
            raise UsageError(f"cannot write the key ({error.strerror})", place=str(path)) from error
        finally:
            fresh.unlink(missing_ok=True)
        return cls(secret)

    @property
    def _public(self) -> bytes:
        raw = self.secret.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return bytes((4,)) + _BORN.to_bytes(4) + bytes((_EDDSA,)) + _CURVE + _number(b"\x40" + raw)

    @property
    def fingerprint(self) -> str:
        """40 hexadecimal digits, upper case."""
        return hashlib.sha1(_for_key(self._public)).hexdigest().upper()

    def public(self) -> str:
        """The armored certificate."""
        name = IDENTITY.encode()
        over = _for_key(self._public) + b"\xb4" + len(name).to_bytes(4) + name
        packets = _packet(6, self._public) + _packet(13, name)
        return _armored("PUBLIC KEY", packets + self._signature(_SELF, over, _BORN))

    def clearsign(self, text: str, when: int) -> str:
        """Sign a text in place (clear-signed), as ``InRelease`` is."""
        lines = [line.rstrip(" \t\r") for line in text.rstrip("\n").split("\n")]
        signature = self._signature(_TEXT, "\r\n".join(lines).encode(), when)
        body = "\n".join(f"- {line}" if line.startswith("-") else line for line in lines)
        head = "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA512\n\n"
        return f"{head}{body}\n{_armored('SIGNATURE', signature)}"

    def sign(self, data: bytes, when: int) -> str:
        """Detached armored signature, as ``repomd.xml.asc`` is."""
        return _armored("SIGNATURE", self._signature(_BINARY, data, when))

    def _signature(self, kind: int, over: bytes, when: int) -> bytes:
        fingerprint = bytes.fromhex(self.fingerprint)
        hashed = _sub(2, when.to_bytes(4)) + _sub(33, b"\x04" + fingerprint)
        if kind == _SELF:
            hashed += _sub(27, b"\x03")  # certifies and signs
        head = bytes((4, kind, _EDDSA, _SHA512)) + len(hashed).to_bytes(2) + hashed
        digest = hashlib.sha512(over + head + b"\x04\xff" + len(head).to_bytes(4)).digest()
        signature = self.secret.sign(digest)
        rest = _sub(16, fingerprint[-8:])
        numbers = _number(signature[:32]) + _number(signature[32:])
        return _packet(2, head + len(rest).to_bytes(2) + rest + digest[:2] + numbers)


def _for_key(body: bytes) -> bytes:
    return b"\x99" + len(body).to_bytes(2) + body


def _number(data: bytes) -> bytes:
    plain = data.lstrip(b"\0")
    return int.from_bytes(plain).bit_length().to_bytes(2) + plain


def _sub(kind: int, data: bytes) -> bytes:
    return bytes((len(data) + 1, kind)) + data


def _packet(tag: int, body: bytes) -> bytes:
    return bytes((0x80 | tag << 2 | 1,)) + len(body).to_bytes(2) + body


def _armored(kind: str, data: bytes) -> str:
    text = base64.b64encode(data).decode("ascii")
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    lines.append("=" + base64.b64encode(_crc24(data).to_bytes(3)).decode("ascii"))
    return (
        f"-----BEGIN PGP {kind}{_BLOCK[kind]}-----\n\n"
        + "\n".join(lines)
        + (f"\n-----END PGP {kind}{_BLOCK[kind]}-----\n")
    )


_BLOCK = {"PUBLIC KEY": " BLOCK", "SIGNATURE": ""}


def _crc24(data: bytes) -> int:
    crc = 0xB704CE
    for byte in data:
        crc ^= byte << 16
        for _ in range(8):
            crc <<= 1
            if crc & 0x1000000:
                crc ^= 0x1864CFB
    return crc & 0xFFFFFF
