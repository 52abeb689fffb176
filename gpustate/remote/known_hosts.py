"""Host keys by name, as sshd(8) describes the files.

paramiko's own table is a list that is gone through for every question, and every line is parsed
and compared with all others when it is loaded: a second for a thousand nodes, and ten milliseconds
more for each of them. Here plain names are looked up, hashed ones are compared once a node, and a
line's key is parsed when it is the one.

Sources:
    sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"; OpenSSH hostfile.c (``|1|salt|hash``).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import threading
from collections.abc import Iterable

import paramiko
from paramiko.hostkeys import HostKeyEntry, HostKeys

from gpustate.errors import UsageError
from gpustate.files import TextFiles

_HASHED = "|1|"
_FILES = TextFiles("known_hosts", UsageError, limit_mib=64)


class KnownHosts:
    """The lines of some files.

    Args:
        files: those that do not exist are left out; new keys go to the first.

    Raises:
        UsageError: a file cannot be read.
    """

    def __init__(self, files: tuple[str, ...]) -> None:
        self._file = files[0] if files else ""
        self._plain: dict[str, list[str]] = {}
        self._hashed: list[tuple[bytes, bytes, str]] = []
        self._writing = threading.Lock()
        for file in files:
            if file != os.devnull and _is_there(file):
                self._take(_FILES.text(file).split("\n"))

    def _take(self, lines: Iterable[str]) -> None:
        for line in map(str.strip, lines):
            if not line or line.startswith("#"):
                continue
            for name in line.split(None, 1)[0].split(","):
                if name.startswith(_HASHED):
                    self._take_hashed(name, line)
                else:
                    self._plain.setdefault(name, []).append(line)

    def _take_hashed(self, name: str, line: str) -> None:
        try:
            salt, digest = (base64.b64decode(word) for word in name.split("|")[2:4])
        except (ValueError, binascii.Error):
            return
        self._hashed.append((salt, digest, line))

    def keys_of(self, name: str) -> HostKeys:
        """The keys of one host, as paramiko wants them; ``name`` is ``[host]:port`` off port 22."""
        lines = list(self._plain.get(name, ()))
        asked = name.encode()
        lines += [
            line
            for salt, digest, line in self._hashed
            if hmac.compare_digest(hmac.digest(salt, asked, "sha1"), digest)
        ]
        found: dict[str, paramiko.PKey] = {}
        for line in lines:
            try:
                entry = HostKeyEntry.from_line(line)
            except paramiko.SSHException:
                continue
            if entry is not None and entry.key is not None:
                found.setdefault(entry.key.get_name(), entry.key)
        keys = HostKeys()
        for kind, key in found.items():
            keys.add(name, kind, key)
        return keys

    def add(self, name: str, key: paramiko.PKey) -> None:
        """Write a new host's key down."""
        line = f"{name} {key.get_name()} {key.get_base64()}"
        with self._writing, open(self._file, "a", encoding="ascii") as file:
            file.write(line + "\n")
            self._plain.setdefault(name, []).append(line)


def _is_there(file: str) -> bool:
    """Whether something has that name; one that may not be looked at is there."""
    try:
        os.stat(file)
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True
