"""Parse numbers in output of nodes: a number or ``None``, never an error.

``int()`` accepts blanks, underscores and digits of all scripts, and fails for more than 4300 digits.
``str.isdigit`` accepts characters that ``int()`` refuses.
"""

from __future__ import annotations

import re

_DIGITS = re.compile(r"[0-9]{1,18}")
_HEX = re.compile(r"(?:0[xX])?([0-9A-Fa-f]{1,15})")


def parse_uint(text: str) -> int | None:
    """A number without sign of at most 18 decimal digits, else ``None``."""
    return int(text) if _DIGITS.fullmatch(text) else None


def hexadecimal(text: str) -> int | None:
    """A number of at most 15 hexadecimal digits, with or without ``0x``, else ``None``."""
    match = _HEX.fullmatch(text)
    return int(match[1], 16) if match else None
