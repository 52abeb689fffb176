"""Certificates as reported by openssl, mokutil and the kernel.

One key has three names: the certificate's SHA1 fingerprint (mokutil), its serial number (modinfo's ``sig_key``),
and the key identifier (/proc/keys). None can be computed from another.

Sources:
    openssl-x509(1); lcp/mokutil 0.6 and 0.7: src/mokutil.c (``list_keys``), src/efi_x509.c
    (``print_x509``); modinfo(8); Linux: Documentation/security/keys/core.rst (/proc/keys),
    Documentation/admin-guide/module-signing.rst.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: A small one follows its name, a long one is on the next line.
_SERIAL = re.compile(r" +Serial Number: \d+ \(0x([0-9a-f]+)\)| {12}([0-9a-f]{2}(?::[0-9a-f]{2})*)")


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that modules can be signed with.

    Args:
        path: of its file, DER.
        fingerprint: SHA1, forty hexadecimal digits.
        serial: hexadecimal digits without leading zeros.
        key_id: subject key identifier; empty if it has none.
        private: whether its private key exists.
    """

    path: str
    fingerprint: str
    serial: str
    key_id: str = ""
    private: bool = False


@dataclass(frozen=True, slots=True)
class Listed:
    """One certificate of a list of mokutil."""

    fingerprint: str
    serial: str = ""


def digits(text: str) -> str:
    """Normalise hexadecimal digits, without leading zeros."""
    return text.replace(":", "").replace(" ", "").lower().lstrip("0")


def parse_openssl(text: str, path: str, *, private: bool) -> Certificate | None:
    """Read ``openssl x509 -noout -fingerprint -serial -ext subjectKeyIdentifier``."""
    fingerprint = re.search(r"(?i)^sha1 fingerprint=([0-9A-F:]{59})$", text, re.MULTILINE)
    serial = re.search(r"(?i)^serial=([0-9A-F]+)$", text, re.MULTILINE)
    if fingerprint is None or serial is None:
        return None
    key = re.search(r"Subject Key Identifier:[^\n]*\n\s*([0-9A-Fa-f:]+)", text)
    return Certificate(
        path,
        fingerprint[1].replace(":", "").lower(),
        digits(serial[1]),
        key[1].replace(":", "").lower() if key else "",
        private,
    )


def parse_mokutil(text: str) -> tuple[Listed, ...]:
    """Read ``mokutil --list-enrolled`` or ``--list-new``, complete or filtered to the relevant lines."""
    certificates: list[Listed] = []
    for line in text.splitlines():
        if match := re.fullmatch(r"SHA1 Fingerprint: ([0-9a-f:]{59})", line.strip()):
            certificates.append(Listed(match[1].replace(":", "")))
        elif not certificates or certificates[-1].serial:
            continue
        elif match := _SERIAL.fullmatch(line.rstrip()):
            certificates[-1] = Listed(certificates[-1].fingerprint, digits(match[1] or match[2]))
    return tuple(certificates)


def parse_keys(text: str) -> dict[str, str]:
    """Read /proc/keys: identifier of each key that can verify a signature, to its owner's name."""
    owners: dict[str, str] = {}
    for line in text.splitlines():
        match = re.search(r" asymmetri[c]? +(.*): ([0-9a-f]{8,}): X509\.", line)
        if match:
            owners[match[2]] = match[1]
    return owners
