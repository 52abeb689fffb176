"""Sends files of a bundle to a node, over the connection that is there.

One exec: the node says what it has of each file, the controller sends the rest of each one after the
other, the node checks the hashes. So a second attempt sends only what the first did not. A file gets its
name when its hash fits; until then it is ``NAME.part``.
"""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Callable

from gpustate import shell
from gpustate.bundle.reading import load
from gpustate.errors import ConnectionFailed, StepFailed
from gpustate.formats.numbers import whole
from gpustate.ops.upload import Upload
from gpustate.remote import batch as batches
from gpustate.remote.channel import Channel
from gpustate.remote.session import Session

#: A node that takes nothing for so long is gone.
_QUIET_S = 120.0

_SCRIPT = shell.load("upload", "gpustate.remote")


def send(session: Session, step: Upload, say: Callable[[str], None] = lambda _: None) -> None:
    """Bring everything of a step that the node has not got.

    Raises:
        ConnectionFailed: the connection broke; what arrived is kept.
        StepFailed: there is no room, or what arrives is not what was sent.
        UsageError: the bundle is gone or damaged.
    """
    nonce = "gpustate-" + secrets.token_hex(16)
    rows = "".join(
        f"{i} {sha256} {size} {name}\n" for i, (name, sha256, size) in enumerate(step.files)
    )
    script = (
        batches.prologue(session.node)
        + f"N={nonce}; F={shlex.quote(step.folder)}\n"
        + _SCRIPT.replace("@ROWS@\n", rows)
    )
    bundle = load(step.source)
    channel = session.start(script, _deadline())
    try:
        heard = _Heard(channel, nonce)
        have = _what_it_has(heard, step)
        total = sum(step.files[i][2] - n for i, n in have.items())
        sent = 0
        for number, start in have.items():
            name, _, size = step.files[number]
            say(f"{name} ({sent >> 20} of {total >> 20} MiB)")
            left = size - start
            for data in bundle.blocks(f"{step.prefix}/{name}", start):
                _write(channel, heard, data[:left])
                left -= len(data[:left])
            if left:
                raise StepFailed(
                    f"{name} is shorter than its bundle says; see: gpustate bundle check {step.source}"
                )
            sent += size - start
            word = heard.word()
            if word[:1] != ["ok"]:
                raise _trouble(word, step)
    finally:
        channel.close()


class _Heard:
    """The words of the node, one line at a time."""

    def __init__(self, channel: Channel, nonce: str) -> None:
        self._channel = channel
        self._nonce = f"{nonce} "
        self._buffer = b""

    def word(self) -> list[str]:
        while True:
            line, found, rest = self._buffer.partition(b"\n")
            if not found:
                data = self._channel.read(_deadline())
                if not data:
                    raise ConnectionFailed("the connection broke while files were sent")
                self._buffer += data
                continue
            self._buffer = rest
            text = line.decode("utf-8", "replace")
            if text.startswith(self._nonce):
                return text.removeprefix(self._nonce).split()


def _what_it_has(heard: _Heard, step: Upload) -> dict[int, int]:
    have: dict[int, int] = {}
    while True:
        word = heard.word()
        if word == ["go"]:
            return have
        if word[:1] == ["have"] and len(word) == 3:
            number, size = whole(word[1]), whole(word[2])
            if number is not None and size is not None and 0 <= number < len(step.files):
                have[number] = min(size, step.files[number][2])
        elif word != ["begin"]:
            raise _trouble(word, step)


def _write(channel: Channel, heard: _Heard, data: bytes) -> None:
    try:
        channel.write(data, _deadline())
    except ConnectionFailed:
        # Where the node gave up, it has said why.
        word = heard.word()
        if word[:1] == ["full"]:
            raise StepFailed(f"the disk is full at {' '.join(word[1:])}; make room") from None
        raise


def _trouble(word: list[str], step: Upload) -> StepFailed | ConnectionFailed:
    if word[:1] == ["room"] and len(word) == 3:
        need, room = ((whole(one) or 0) >> 20 for one in word[1:])
        return StepFailed(
            f"{step.folder}: {room} MiB are free, and the bundle needs {need} MiB: No space left on device"
        )
    if word[:1] == ["bad"]:
        number = whole(word[1]) or 0
        return StepFailed(
            f"{step.files[number][0]} is not what its bundle says; see: gpustate bundle check {step.source}"
        )
    if word[:1] == ["full"]:
        return StepFailed(f"{step.folder} cannot be written (read-only or full disk?)")
    return ConnectionFailed("the connection broke while files were sent")


def _deadline() -> float:
    return time.monotonic() + _QUIET_S
