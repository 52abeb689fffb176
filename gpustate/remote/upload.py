"""Send files of a bundle to a node over its SSH connection.

One exec: the node reports how much of each file it has, the controller sends the rest, the node verifies
the hashes. A second attempt resumes. A file is called ``NAME.part`` until its hash matches.
"""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Callable

from gpustate import shell
from gpustate.bundle.reading import load
from gpustate.errors import ConnectionFailed, StepFailed
from gpustate.formats.numbers import parse_uint
from gpustate.ops.upload import Upload
from gpustate.remote import batch as batches
from gpustate.remote.channel import Channel
from gpustate.remote.session import Session

#: Seconds without progress after which the connection counts as broken.
_QUIET_S = 120.0

_SCRIPT = shell.load("upload", "gpustate.remote")


def send(session: Session, step: Upload, report: Callable[[str], None] = lambda _: None) -> None:
    """Send the files of a step that the node lacks.

    Raises:
        ConnectionFailed: the connection broke; partial files are kept.
        StepFailed: the disk is full, or a file arrives damaged.
        UsageError: the bundle is missing or damaged.
    """
    nonce = "gpustate-" + secrets.token_hex(16)
    rows = "".join(
        f"{i} {sha256} {size} {name}\n" for i, (name, sha256, size) in enumerate(step.files)
    )
    script = (
        batches.prologue(session.node)
        + f"N={nonce}; F={shlex.quote(step.folder)}\n"
        + shell.fill(_SCRIPT, ROWS=rows)
    )
    bundle = load(step.source)
    channel = session.start(script, _deadline())
    try:
        replies = _Replies(channel, nonce)
        have = _sizes(replies, step)
        total = sum(step.files[i][2] - n for i, n in have.items())
        sent = 0
        for number, start in have.items():
            name, _, size = step.files[number]
            report(f"{name} ({sent >> 20} of {total >> 20} MiB)")
            remaining = size - start
            for data in bundle.blocks(f"{step.prefix}/{name}", start):
                _write(channel, replies, data[:remaining])
                remaining -= len(data[:remaining])
            if remaining:
                raise StepFailed(
                    f"{name} is shorter than the bundle's manifest says; verify it: gpustate image bundle check {step.source}"
                )
            sent += size - start
            words = replies.next()
            if words[:1] != ["ok"]:
                raise _failure(words, step)
    finally:
        channel.close()


class _Replies:
    """The node's replies, one line at a time."""

    def __init__(self, channel: Channel, nonce: str) -> None:
        self._channel = channel
        self._nonce = f"{nonce} "
        self._buffer = b""

    def next(self) -> list[str]:
        while True:
            line, newline, remainder = self._buffer.partition(b"\n")
            if not newline:
                data = self._channel.read(_deadline())
                if not data:
                    raise ConnectionFailed("the connection broke during the upload")
                self._buffer += data
                continue
            self._buffer = remainder
            text = line.decode("utf-8", "replace")
            if text.startswith(self._nonce):
                return text.removeprefix(self._nonce).split()


def _sizes(replies: _Replies, step: Upload) -> dict[int, int]:
    """Bytes of each incomplete file that the node has."""
    have: dict[int, int] = {}
    while True:
        words = replies.next()
        if words == ["go"]:
            return have
        if words[:1] == ["have"] and len(words) == 3:
            number, size = parse_uint(words[1]), parse_uint(words[2])
            if number is not None and size is not None and 0 <= number < len(step.files):
                have[number] = min(size, step.files[number][2])
        elif words != ["begin"]:
            raise _failure(words, step)


def _write(channel: Channel, replies: _Replies, data: bytes) -> None:
    try:
        channel.write(data, _deadline())
    except ConnectionFailed:
        # If the node gave up, it has replied why.
        words = replies.next()
        if words[:1] == ["full"]:
            raise StepFailed(
                f"no space left on device at {' '.join(words[1:])}; free some space and run again"
            ) from None
        raise


def _failure(words: list[str], step: Upload) -> StepFailed | ConnectionFailed:
    if words[:1] == ["room"] and len(words) == 3:
        needed, room = ((parse_uint(word) or 0) >> 20 for word in words[1:])
        return StepFailed(
            f"{step.folder}: No space left on device: {room} MiB free, the bundle needs {needed} MiB"
        )
    if words[:1] == ["bad"]:
        number = parse_uint(words[1]) or 0
        return StepFailed(
            f"{step.files[number][0]} does not match its hash in the bundle; verify it: gpustate image bundle check {step.source}"
        )
    if words[:1] == ["full"]:
        return StepFailed(f"cannot write to {step.folder} (read-only or full disk?)")
    return ConnectionFailed("the connection broke during the upload")


def _deadline() -> float:
    return time.monotonic() + _QUIET_S
