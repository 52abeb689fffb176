"""Let a node fetch packages with its own package manager, and receive them over its connection."""

from __future__ import annotations

import hashlib
import re
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gpustate import shell
from gpustate.bundle.indexes import RPM_FORMAT, FetchedPackage
from gpustate.bundle.manifest import File
from gpustate.errors import ConnectionFailed, ProbeError, RefusedError
from gpustate.formats import package_errors, rpm
from gpustate.formats.numbers import parse_uint
from gpustate.formats.words import quote
from gpustate.remote import batch as batches
from gpustate.remote.channel import Channel
from gpustate.remote.session import Session

#: Seconds that the node may take to fetch the packages, or a file to arrive.
_LIMIT_S = 3600.0
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+~^_%-]*\.(deb|rpm)")


def fetch(
    session: Session,
    packages: Mapping[str, str],
    pins: str,
    folder: Path,
    report: Callable[[str], None],
) -> list[FetchedPackage]:
    """Fetch packages and everything that they need.

    Args:
        session: of the node.
        packages: in the words of its package manager, with their names.
        pins: text of preferences with which apt chooses them.
        folder: where their files go.
        report: takes the progress.

    Raises:
        ConnectionFailed: the connection broke.
        RefusedError: the package manager does not fetch them; with its own words.
        ProbeError: the answer is invalid.
    """
    nonce = "gpustate-" + secrets.token_hex(16)
    script = (
        batches.prologue(session.node)
        + f"{rpm.FAMILY}N={nonce}; NAMES={shlex.quote(' '.join(packages.values()))}; set -- {shlex.join(packages)}\n"
        + shell.load("download", "gpustate.remote", FORMAT=RPM_FORMAT, PINS=pins)
    )
    deadline = time.monotonic() + _LIMIT_S
    channel = session.start(script, deadline, _LIMIT_S)
    try:
        return list(_packages(_Stream(channel, deadline), nonce, folder, report))
    finally:
        channel.close()


def _packages(
    stream: _Stream, nonce: str, folder: Path, report: Callable[[str], None]
) -> Iterator[FetchedPackage]:
    while True:
        prefix, _, message = stream.line().partition(" ")
        words = message.split(" ")
        if prefix != nonce or words == ["begin"]:
            continue
        if words == ["end"]:
            return
        if words == ["failed"]:
            output = package_errors.without_progress(stream.read_all())
            line, move = package_errors.find_error(output) or (output.strip()[-400:], "")
            raise RefusedError(
                f"the packages cannot be fetched: {line}", fix=move or "see docs/bundle.md"
            )
        size, length = (parse_uint(words[n]) if len(words) == 6 else None for n in (1, 3))
        if size is None or length is None or not _NAME.fullmatch(words[4]):
            raise ProbeError(f"unexpected answer of the node: {quote(message)}")
        name, path = words[4], folder / words[4]
        report(f"{name} ({size / (1 << 20):.1f} MiB)")
        text = b"".join(stream.take(length)).decode("utf-8", "replace")
        digest = hashlib.sha256()
        with open(path, "wb") as file:
            for data in stream.take(size):
                digest.update(data)
                file.write(data)
        if digest.hexdigest() != words[2]:
            raise ConnectionFailed(f"{name} was damaged on its way")
        yield FetchedPackage(File(name, words[2], size), words[5], text, path)


class _Stream:
    """Lines and blocks of a command's output."""

    def __init__(self, channel: Channel, deadline: float) -> None:
        self._channel = channel
        self._deadline = deadline
        self._buffer = b""

    def _read(self) -> None:
        data = self._channel.read(self._deadline)
        if not data:
            stderr = self._channel.read_stderr().decode("utf-8", "replace").strip()
            raise ConnectionFailed(stderr or "the connection broke before all packages arrived")
        self._buffer += data

    def line(self) -> str:
        """The next line."""
        while b"\n" not in self._buffer:
            self._read()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8", "replace")

    def take(self, count: int) -> Iterator[bytes]:
        """So many bytes, in blocks."""
        while count:
            if not self._buffer:
                self._read()
            block, self._buffer = self._buffer[:count], self._buffer[count:]
            count -= len(block)
            yield block

    def read_all(self) -> str:
        """Everything up to the end."""
        while data := self._channel.read(self._deadline):
            self._buffer += data
        return self._buffer.decode("utf-8", "replace")


__all__ = ["fetch"]
