"""Reading the text of one policy file, with limits."""

from __future__ import annotations

import errno
import os
import stat

from gpustate.errors import PolicyError

#: More than any real policy; less than what would hurt the machine gpustate runs on.
LIMIT_MIB = 5


def head(path: str, size: int = 4096) -> str:
    """Return how a regular file begins, as far as it is text; never more than ``size`` bytes."""
    _must_be_readable(path)
    if not os.path.isfile(path):  # a pipe can be read only once
        return ""
    try:
        with open(path, "rb") as file:
            return file.read(size).decode("utf-8-sig", "replace")
    except OSError as error:
        raise _unreadable(path, error) from error


def read_text(path: str) -> str:
    """Return the text of ``path``.

    Raises:
        PolicyError: not there, not readable, too large, binary, or not UTF-8.
    """
    _must_be_readable(path)
    limit = LIMIT_MIB * 1024 * 1024
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(data) > limit:
        raise PolicyError(
            f"is larger than {LIMIT_MIB} MiB, which no policy is",
            place=path,
            fix="check that this is the policy",
        )
    nul = data.find(b"\0")
    if nul >= 0:
        raise PolicyError(
            f"is a binary file (a zero byte at offset {nul}), wanted text", place=path
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PolicyError(
            f"is not UTF-8 (byte 0x{data[error.start]:02x} at offset {error.start})",
            place=f"{path}:{line}",
            fix="save the file as UTF-8",
        ) from error
    if not text.strip():
        raise PolicyError("is empty, wanted a policy", place=path)
    return text


def _must_be_readable(path: str) -> None:
    """Sort out what is not a file: opening a named pipe nobody writes to would hang."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if stat.S_ISDIR(mode):
        raise PolicyError(
            "is a directory, wanted a file", place=path, fix="name the policy file inside it"
        )
    handed_over = path.startswith(("/dev/fd/", "/proc/self/fd/")) or path == "/dev/stdin"
    if not stat.S_ISREG(mode) and not handed_over:
        raise PolicyError("is neither a file nor a link to one", place=path)


def _unreadable(path: str, error: OSError | ValueError) -> PolicyError:
    if isinstance(error, OSError) and error.errno == errno.ENOENT:
        return PolicyError("no such file", place=path)
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return PolicyError(f"cannot be read: {reason}", place=path)
