"""Judge host keys by known_hosts files, as OpenSSH does.

Names without a pattern are indexed, so that a thousand nodes are found fast; patterns and hashed names are
compared once a node.

Sources:
    sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"; OpenSSH 9.2 hostfile.c, match.c and sshconnect.c, ``check_host_key``.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
import threading
from collections.abc import Callable
from typing import NamedTuple

import paramiko

from gpustate.errors import UsageError
from gpustate.files import TextFiles

_FILES = TextFiles("known_hosts", UsageError, limit_mib=64)
_MARKERS = ("@revoked", "@cert-authority")


class Entry(NamedTuple):
    """A line with a valid key.

    Args:
        marker: ``@revoked``, ``@cert-authority``, or empty.
        kind: the key's type, as ``ssh-ed25519``.
        key: the key as it is sent.
        place: file and line.
    """

    marker: str
    kind: str
    key: bytes
    place: str


class KnownHosts:
    """The lines of some known_hosts files.

    Args:
        files: missing ones are skipped; new keys are appended to the first.
        revoked: a file of keys that no host may have (``RevokedHostKeys``); empty: none.

    Raises:
        UsageError: a file cannot be read.
    """

    def __init__(self, files: tuple[str, ...], revoked: str = "") -> None:
        self._file = files[0] if files else ""
        self._plain: dict[str, list[Entry]] = {}
        self._others: list[tuple[Callable[[str], bool], Entry]] = []
        self._writing = threading.Lock()
        for file in files:
            if file != os.devnull and _exists(file):
                for number, line in enumerate(_FILES.text(file).split("\n"), 1):
                    self._read(line, f"{file}:{number}")
        for number, line in enumerate(_FILES.text(revoked).split("\n") if revoked else (), 1):
            self._read(f"@revoked * {line}", f"{revoked}:{number}")

    def _read(self, line: str, place: str) -> None:
        words = line.split(None, 4)
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#") or (marker and marker not in _MARKERS):
            return
        names, kind, text = words[:3]
        try:
            key = base64.b64decode(text)
        except (ValueError, binascii.Error):
            return
        if not key.startswith(len(kind).to_bytes(4, "big") + kind.encode()):
            return
        entry = Entry(marker, kind, key, place)
        if names.startswith("|"):
            self._others.append((_hashed(names), entry))
        elif set(names) & set("*?!"):
            self._others.append((_pattern(names.lower()), entry))
        else:
            for name in names.lower().split(","):
                self._plain.setdefault(name, []).append(entry)

    def entries(self, name: str) -> list[Entry]:
        """Return the lines for a host; ``name`` is ``[host]:port`` unless the port is 22."""
        name = name.lower()
        return [*self._plain.get(name, ()), *(entry for at, entry in self._others if at(name))]

    def add(self, name: str, key: paramiko.PKey) -> None:
        """Append the key of a new host to the first file."""
        line = f"{name} {key.get_name()} {key.get_base64()}"
        with self._writing, open(self._file, "a", encoding="ascii") as file:
            file.write(line + "\n")
            self._read(line, self._file)


def _pattern(names: str) -> Callable[[str], bool]:
    """Compare with a list of patterns: one has to match, and none that begins with ``!``."""
    positive, negative = (
        re.compile(
            "|".join(
                re.escape(word.removeprefix("!")).replace(r"\*", ".*").replace(r"\?", ".")
                for word in names.split(",")
                if word.startswith("!") is negated
            )
            or "(?!)"
        )
        for negated in (False, True)
    )
    return lambda name: bool(positive.fullmatch(name)) and not negative.fullmatch(name)


def _hashed(names: str) -> Callable[[str], bool]:
    try:
        salt, digest = map(base64.b64decode, names.removeprefix("|1|").split("|"))
    except ValueError:  # another scheme, or damaged
        return lambda name: False
    return lambda name: hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)


def _exists(file: str) -> bool:
    """Whether the file exists; one that cannot be accessed counts as existing."""
    try:
        os.stat(file)
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True
