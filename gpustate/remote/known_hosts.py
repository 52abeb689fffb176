"""Look up host keys in known_hosts files, in the format of sshd(8).

paramiko's own reader parses every line and compares it with all others at load time, and scans its list
for every lookup: a second for a thousand nodes, and ten milliseconds more for each of them. Here plain
names are indexed, hashed ones are compared once a node, and only the keys of a matching line are parsed.

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
    """The lines of some known_hosts files.

    Args:
        files: missing ones are skipped; new keys are appended to the first.

    Raises:
        UsageError: a file cannot be read.
    """

    def __init__(self, files: tuple[str, ...]) -> None:
        self._file = files[0] if files else ""
        self._plain: dict[str, list[str]] = {}
        self._hashed: list[tuple[bytes, bytes, str]] = []
        self._writing = threading.Lock()
        for file in files:
            if file != os.devnull and _exists(file):
                self._read(_FILES.text(file).split("\n"))

    def _read(self, lines: Iterable[str]) -> None:
        for line in map(str.strip, lines):
            if not line or line.startswith("#"):
                continue
            for name in line.split(None, 1)[0].split(","):
                if name.startswith(_HASHED):
                    self._add_hashed(name, line)
                else:
                    self._plain.setdefault(name, []).append(line)

    def _add_hashed(self, name: str, line: str) -> None:
        try:
            salt, digest = (base64.b64decode(word) for word in name.split("|")[2:4])
        except (ValueError, binascii.Error):
            return
        self._hashed.append((salt, digest, line))

    def keys_of(self, name: str) -> HostKeys:
        """Return the keys of one host for paramiko; ``name`` is ``[host]:port`` unless the port is 22."""
        lines = list(self._plain.get(name, ()))
        encoded = name.encode()
        lines += [
            line
            for salt, digest, line in self._hashed
            if hmac.compare_digest(hmac.digest(salt, encoded, "sha1"), digest)
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
        """Append the key of a new host to the first file."""
        line = f"{name} {key.get_name()} {key.get_base64()}"
        with self._writing, open(self._file, "a", encoding="ascii") as file:
            file.write(line + "\n")
            self._plain.setdefault(name, []).append(line)


def _exists(file: str) -> bool:
    """Whether the file exists; one that cannot be accessed counts as existing."""
    try:
        os.stat(file)
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True
