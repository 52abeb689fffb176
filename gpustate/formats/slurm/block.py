"""Manage a marked block of lines in a ``gres.conf`` with foreign lines, which are not changed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpustate.formats.slurm.conf import hosts

BEGIN = "# gpustate begin: written by gpustate, changes in here are overwritten"
#: A newline was added to the line before; it is removed with the block.
_ADDED = " (the line before had no end)"
END = "# gpustate end"
_BLOCK = re.compile(r"^# gpustate begin[^\n]*\n(?:.*\n)*?# gpustate end[^\n]*(?:\n|\Z)", re.M)
_GPU = re.compile(r"(?:^|\s)name\s*=\s*(?:gpu|shard)(?:\s|$)", re.IGNORECASE)
_FILES = re.compile(r"(?:^|\s)(?:multiple)?files?\s*=\s*(\S+)", re.IGNORECASE)
_DETECTED = re.compile(r"(?:^|\s)autodetect\s*=\s*(?!off\b)\S", re.IGNORECASE)


def find_block(text: str) -> str | None:
    """The block with its marks; ``None`` if there is none."""
    match = _BLOCK.search(text)
    return match[0] if match else None


def text_outside(text: str) -> str:
    """The original file, without the block."""
    while match := _BLOCK.search(text):
        before = text[: match.start()]
        if match[0].partition("\n")[0].endswith(_ADDED):
            before = before.removesuffix("\n")
        text = before + text[match.end() :]
    return text


def place(text: str, lines: list[str]) -> str:
    """The file with the block at its previous place or at the end; without it if there are no lines."""
    match = _BLOCK.search(text)
    if not lines:
        return text_outside(text)
    if match:
        before, after = text[: match.start()], text_outside(text[match.end() :])
        begin = match[0].partition("\n")[0]
        begin = BEGIN + (_ADDED if begin.endswith(_ADDED) else "")
    else:
        added = text != "" and not text.endswith("\n")
        before, after = text + ("\n" if added else ""), ""
        begin = BEGIN + (_ADDED if added else "")
    return before + "\n".join([begin, *lines, END]) + "\n" + after


def foreign(text: str, node: str) -> str | None:
    """A foreign line that already describes this node's GPUs, with its number."""
    # The number of lines stays the same, so that line numbers are right.
    outside = _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    for number, words in _of_gpus(outside, node):
        return f"line {number} ({words})"
    return None


def device_files(text: str, node: str) -> set[str] | None:
    """Those of this node's GPUs; ``None`` where a line leaves them to Slurm."""
    files: set[str] = set()
    for _, words in _of_gpus(text, node):
        named = _FILES.search(words)
        if named is None:
            return None
        files.update(hosts(named[1]))
    return files


def _of_gpus(text: str, node: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0]
        names = re.search(r"(?:^|\s)nodename\s*=\s*(\S+)", words, re.IGNORECASE)
        if names and node not in hosts(names[1]):
            continue
        if _GPU.search(words) or _DETECTED.search(words):
            yield number, words.strip()
