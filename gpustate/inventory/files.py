"""The text files of inventories."""

from __future__ import annotations

import os

from gpustate.errors import InventoryError
from gpustate.files import TextFiles

LIMIT_MIB = 64


def names_in(directory: str, above: tuple[str, ...] = ()) -> list[str]:
    """Return the names in a directory, in lexical order.

    Args:
        directory: its path.
        above: resolved parent directories; see :func:`below`.

    Raises:
        InventoryError: it cannot be listed, or is reached through itself.
    """
    # A cycle of links would be followed up to the kernel's limit, and two of them practically forever.
    if os.path.realpath(directory) in above:
        raise InventoryError("is a link to a directory above it", place=directory)
    try:
        return sorted(os.listdir(directory))
    except OSError as error:
        raise InventoryError(f"cannot be listed: {error.strerror}", place=directory) from error


def below(directory: str, above: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return ``above`` for the directories in ``directory``."""
    return (*above, os.path.realpath(directory))


def read_text(path: str) -> str:
    """Return the text of ``path``.

    Raises:
        InventoryError: not there, not readable, too large, binary, or not UTF-8.
    """
    return TextFiles("inventory", InventoryError, LIMIT_MIB).text(path)
