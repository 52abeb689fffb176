"""Reading one text file of an inventory, with limits, and the small words errors are made of."""

from __future__ import annotations

import errno
import os

from gpustate.errors import InventoryError

#: More than any real inventory; less than what would hurt the machine gpustate runs on.
LIMIT_MIB = 64


def shown(value: object, limit: int = 60) -> str:
    """Quote ``value`` for a message: on one line, printable, and never longer than ``limit``."""
    text = value if isinstance(value, str) else str(value)
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")


def named(name: object) -> str:
    """Return a name for a message: as it is, or quoted when it is long or not printable."""
    text = str(name)
    return text if text.isprintable() and 0 < len(text) <= 60 else shown(text)


def kind_of(value: object) -> str:
    """Name the type of ``value`` the way someone who writes YAML would."""
    names = {dict: "a mapping", list: "a list", str: "a string", bool: "a boolean"}
    numbers = {int: "a number", float: "a number", type(None): "nothing"}
    for known, name in {**names, **numbers}.items():
        if type(value) is known:
            return name
    return "a string" if isinstance(value, str) else f"a {type(value).__name__}"


def at(path: str, line: int | None) -> str:
    """Return ``path:line``, or the path alone when the line is not known."""
    return path if line is None else f"{path}:{line}"


def read_text(path: str) -> str:
    """Return the text of ``path``.

    Raises:
        InventoryError: not there, not readable, too large, binary, or not UTF-8.
    """
    # Sorting out what is not a file comes first: opening a pipe without a writer would hang.
    if os.path.isdir(path):
        raise InventoryError("is a directory, wanted a file", place=path)
    limit = LIMIT_MIB * 1024 * 1024
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if len(data) > limit:
        raise InventoryError(
            f"is larger than {LIMIT_MIB} MiB, which no inventory is",
            place=path,
            fix="check that this is the inventory",
        )
    nul = data.find(b"\0")
    if nul >= 0:
        raise InventoryError(
            f"is a binary file (a zero byte at offset {nul}), wanted text", place=path
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InventoryError(
            f"is not UTF-8 (byte 0x{data[error.start]:02x} at offset {error.start})",
            place=at(path, line),
            fix="save the file as UTF-8",
        ) from error


def _unreadable(path: str, error: OSError | ValueError) -> InventoryError:
    code = getattr(error, "errno", None)
    if code == errno.ENOENT:
        return InventoryError("no such file", place=path)
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InventoryError(f"cannot be read: {reason}", place=path)
