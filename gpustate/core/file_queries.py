"""What can be asked of files: their text, the texts behind a shell pattern, their kind and mode.

All files that a look reads are read by two processes, and stat is started once: on a node with dozens of
states that is what a look would else spend its time on.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpustate import shell
from gpustate.core.queries import Answer, Query, SharedQuery
from gpustate.errors import ProbeError, RefusedError
from gpustate.formats.numbers import hexadecimal, parse_uint

#: Defines ``odd PATH...``: tells of what else is where files belong, or where a folder above them does, and fails
#: then. Nothing may wait for a pipe.
ODD = shell.load("odd", "gpustate.core")
#: Prints how many there are, a line about each, their sizes, and their bytes one after the other.
_CONTENTS = 'echo "files=$#"; [ $# = 0 ] || { printf \'%s\' "$k"; wc -c -- "$@"; cat -- "$@"; }'


def _contents(answer: Answer) -> tuple[list[str], list[bytes]]:
    """The lines about the files, and their bytes."""
    head, _, tail = answer.out.partition(b"\n")
    key, _, number = head.decode("ascii", "replace").partition("=")
    count = parse_uint(number)
    if key != "files" or count is None:
        raise ProbeError(f"a list of files is torn at {head[:80]!r}")
    rows = tail.split(b"\n", count)
    about = [row.decode("utf-8", "replace") for row in rows[:count]]
    # ``wc`` adds a total where there is more than one.
    sums = rows[-1].split(b"\n", count + (count > 1)) if count else [b""]
    sizes = [
        parse_uint(line.split()[0].decode("ascii", "replace")) for line in sums[:-1] if line.split()
    ]
    lengths = [size for size in sizes[:count] if size is not None]
    body = sums[-1]
    if len(about) != count or len(lengths) != count or sum(lengths) != len(body):
        raise ProbeError(
            f"{', '.join(about)[:200] or 'a file'}: it changed while it was read; try again"
        )
    texts: list[bytes] = []
    for length in lengths:
        texts.append(body[:length])
        body = body[length:]
    return about, texts


@dataclass(frozen=True, slots=True)
class FileText(SharedQuery[str | None]):
    """The text of a file, ``None`` where there is none.

    Args:
        path: below ``/proc`` and ``/sys``: as the node's inventory roots them.
        extra: paths that others asked for.
    """

    path: str
    extra: tuple[str, ...] = ()

    def script(self) -> str:
        paths = " ".join(shlex.quote(path) for path in (self.path, *self.extra))
        text = shell.load("file_texts", "gpustate.core")
        return ODD + shell.fill(text, PATHS=paths, CONTENTS=_CONTENTS)

    def parse(self, answer: Answer) -> str | None:
        out = answer.out
        while out.startswith(b"odd="):
            row, _, out = out.partition(b"\n")
            refuse_odd(row.decode("utf-8", "replace").removeprefix("odd="), self.path)
        about, texts = _contents(Answer(answer.status, out))
        for path, text in zip(about, texts, strict=True):
            if path == self.path:
                return text.decode("utf-8", "replace")
        return None

    def joined(self, queries: Sequence[Query[Any]]) -> FileText:
        paths = (query.path for query in queries if isinstance(query, FileText))
        return FileText(self.path, tuple(dict.fromkeys(paths)))

    def placeholder(self) -> str | None:
        return None


_NOTED = ": not as written]\n"


def noted(note: str, text: str) -> str:
    """A file's text behind what :meth:`FileStat.otherwise` tells, where it tells something."""
    return f"[{note}{_NOTED}{text}" if note else text


def apart(text: str | None) -> tuple[str, str | None]:
    """What :func:`noted` put together: what was told, and the text."""
    note, mark, content = (text or "").partition(_NOTED)
    return (note[1:], content) if mark and note.startswith("[owner ") else ("", text)


def refuse_odd(row: str, only: str = "") -> None:
    """Refuse what a row of ``odd`` tells of: a person has to say whether it is wanted.

    Args:
        row: without ``odd=``.
        only: the file that is asked for; other rows are left alone.

    Raises:
        RefusedError: something else is where a file or a folder belongs.
    """
    requested, _, remainder = row.partition("|")
    path, _, remainder = remainder.partition("|")
    belongs, _, actual = remainder.partition("|")
    if only in ("", requested):
        raise no_file(path, actual, belongs)


def no_file(path: str, actual: str, belongs: str = "file") -> RefusedError:
    """Something else is where a file or a folder belongs."""
    folder, _, name = path.rpartition("/")
    # Some programs read everything in such a folder, whatever it is called.
    away = folder.rpartition("/")[0] if folder.endswith(".d") else folder
    moved = shlex.join(("mv", path, f"{away}/{name}.moved"))
    return RefusedError(
        f"{path} is {actual}, and a {belongs} belongs there", fix=f"move it away: {moved}"
    )


def behind_link(path: str, target: str) -> RefusedError:
    """A symbolic link is where a file belongs: nothing is written through it."""
    return RefusedError(
        f"{path} is a symbolic link to {target}: managed by something else",
        fix="replace it by a plain file or leave it to its owner",
    )


def _mark(pattern: str) -> str:
    return hashlib.sha256(pattern.encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class FileTexts(SharedQuery[dict[str, str]]):
    """Every regular file that a shell pattern matches, with its text, sorted by path.

    Args:
        pattern: shell patterns between blanks; not quoted.
        extra: patterns that others asked for.
    """

    pattern: str
    extra: tuple[str, ...] = ()

    def script(self) -> str:
        loops = "".join(
            f'for f in {pattern}; do [ -f "$f" ] || continue; case $f in *"$n"*) continue ;; esac; '
            f'set -- "$@" "$f"; k="${{k}}{_mark(pattern)} $f$n"; done\n'
            for pattern in (self.pattern, *self.extra)
        )
        return f"set --; k=; n='\n'\n{loops}{_CONTENTS}"

    def parse(self, answer: Answer) -> dict[str, str]:
        mark = f"{_mark(self.pattern)} "
        rows = zip(*_contents(answer), strict=True)
        return {
            row.removeprefix(mark): text.decode("utf-8", "replace")
            for row, text in rows
            if row.startswith(mark)
        }

    def joined(self, queries: Sequence[Query[Any]]) -> FileTexts:
        patterns = (query.pattern for query in queries if isinstance(query, FileTexts))
        return FileTexts(self.pattern, tuple(dict.fromkeys(patterns)))

    def placeholder(self) -> dict[str, str]:
        return {}


@dataclass(frozen=True, slots=True)
class FileStat:
    """A file without its content. ``target`` is set for a symbolic link."""

    kind: str  # file, dir, link, char, block, fifo, socket
    mode: int
    uid: int
    gid: int
    size: int
    target: str | None = None
    device: tuple[int, int] | None = None  # major, minor of a device node

    def otherwise(self, *, private: bool = False) -> str:
        """Owner and mode of a file that gpustate has written, where they are not as written; else empty.

        Args:
            private: it is for root alone; otherwise for all to read, and for root to write.
        """
        required, unwanted = (0o400, 0o077) if private else (0o444, 0o022)
        well = self.mode & required == required and not self.mode & unwanted
        if self.kind != "file" or (well and self.uid == 0 and self.gid == 0):
            return ""
        return f"owner {self.uid}:{self.gid}, mode {self.mode:04o}"


_KINDS = {
    "regular file": "file",
    "regular empty file": "file",
    "directory": "dir",
    "symbolic link": "link",
    "character special file": "char",
    "block special file": "block",
    "fifo": "fifo",
    "socket": "socket",
}


@dataclass(frozen=True, slots=True)
class FileStats(SharedQuery[dict[str, FileStat]]):
    """Stat of everything that shell patterns match, links not followed.

    Args:
        patterns: not quoted.
        extra: patterns that others asked for.
    """

    patterns: tuple[str, ...]
    extra: tuple[tuple[str, ...], ...] = ()

    def script(self) -> str:
        loops = "".join(
            f'for f in {" ".join(patterns)}; do [ -e "$f" ] || [ -L "$f" ] || continue; '
            'l=; [ -L "$f" ] && l=$(readlink "$f"); '
            f'printf \'{_mark(repr(patterns))}|%s|%s\\n\' "$f" "$l"; set -- "$@" "$f"; done\n'
            for patterns in (self.patterns, *self.extra)
        )
        return f"set --\n{loops}[ $# = 0 ] || stat -c '%F|%a|%u|%g|%s|%t|%T|%n' -- \"$@\""

    def parse(self, answer: Answer) -> dict[str, FileStat]:
        mark, stats = _mark(repr(self.patterns)), dict[str, FileStat]()
        targets: dict[str, str] = {}
        for line in answer.text.splitlines():
            parts = line.split("|")
            if len(parts) == 3 and parts[0] == mark:
                targets[parts[1]] = parts[2]
            elif len(parts) == 8 and parts[0] in _KINDS and parts[7] in targets:
                stats[parts[7]] = _stat(parts, targets[parts[7]])
        return stats

    def joined(self, queries: Sequence[Query[Any]]) -> FileStats:
        patterns = (query.patterns for query in queries if isinstance(query, FileStats))
        return FileStats(self.patterns, tuple(dict.fromkeys(patterns)))

    def placeholder(self) -> dict[str, FileStat]:
        return {}


def _stat(parts: Sequence[str], target: str) -> FileStat:
    kind, mode, uid, gid, size, major, minor, path = parts
    if not re.fullmatch("[0-7]{1,5}", mode):
        raise ProbeError(f"stat answered {mode[:80]!r} for the mode of {path}")
    device = None
    if _KINDS[kind] in ("char", "block"):
        device = (hexadecimal(major) or 0, hexadecimal(minor) or 0)
    user, group, length = (parse_uint(text) or 0 for text in (uid, gid, size))
    return FileStat(_KINDS[kind], int(mode, 8), user, group, length, target or None, device)


__all__ = [
    "ODD",
    "FileStat",
    "FileStats",
    "FileText",
    "FileTexts",
    "apart",
    "behind_link",
    "no_file",
    "noted",
    "refuse_odd",
]
