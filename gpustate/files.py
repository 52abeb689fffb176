"""Reading one text file that a person names, with limits; writing one for its owner alone.

Opening a named pipe nobody writes to would hang, and so would reading a device: only a regular file
is read, or what a shell hands over (``<(...)``, standard input).
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from gpustate.errors import UsageError

_HANDED_OVER = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Reader of the files of one kind.

    Args:
        kind: what such a file is, for messages: ``policy``.
        error: raised for everything wrong with one.
        limit_mib: more than any real one; less than what would hurt the machine gpustate runs on.
        keep_mark: a byte order mark in front stays in the text, for files that other programs read.
    """

    kind: str
    error: type[UsageError]
    limit_mib: int
    keep_mark: bool = False

    def head(self, path: str, size: int = 4096) -> str:
        """Return how a regular file begins, as far as it is text; never more than ``size`` bytes."""
        self._must_be_readable(path)
        if not os.path.isfile(path):  # a pipe can be read only once
            return ""
        return self._bytes(path, size).decode("utf-8-sig", "replace")

    def text(self, path: str) -> str:
        """Return the text of a file.

        Raises:
            UsageError: not there, not readable, too large, binary, or not UTF-8.
        """
        self._must_be_readable(path)
        limit = self.limit_mib * 1024 * 1024
        data = self._bytes(path, limit + 1)
        if len(data) > limit:
            raise self.error(
                f"is larger than {self.limit_mib} MiB, which no {self.kind} is",
                place=path,
                fix=f"check that this is the {self.kind}",
            )
        nul = data.find(b"\0")
        if nul >= 0:
            raise self.error(
                f"is a binary file (a zero byte at offset {nul}), wanted text", place=path
            )
        try:
            return data.decode("utf-8" if self.keep_mark else "utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise self.error(
                f"is not UTF-8 (byte 0x{data[error.start]:02x} at offset {error.start})",
                place=f"{path}:{line}",
                fix="save the file as UTF-8",
            ) from error

    def _bytes(self, path: str, size: int) -> bytes:
        try:
            with open(path, "rb") as file:
                return file.read(size)
        except (OSError, ValueError) as error:
            raise self._unreadable(path, error) from error

    def _must_be_readable(self, path: str) -> None:
        try:
            mode = os.stat(path).st_mode
        except (OSError, ValueError) as error:
            raise self._unreadable(path, error) from error
        if stat.S_ISDIR(mode):
            raise self.error(
                "is a directory, wanted a file",
                place=path,
                fix=f"name the {self.kind}{'' if 'file' in self.kind.split() else ' file'} inside it",
            )
        if not stat.S_ISREG(mode) and not path.startswith(_HANDED_OVER):
            raise self.error("is neither a file nor a link to one", place=path)

    def _unreadable(self, path: str, error: OSError | ValueError) -> UsageError:
        if isinstance(error, OSError) and error.errno == errno.ENOENT:
            return self.error("no such file", place=path)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return self.error(f"cannot be read: {reason}", place=path)


def write_private(path: Path, data: bytes) -> None:
    """Write a file for its owner alone, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    fresh.replace(path)
