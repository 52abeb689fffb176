"""Numbers in what a node says: a number, or nothing; never an error.

``int()`` is stricter and laxer than that: it takes blanks, underscores and digits of every script, and
gives up on more than 4300 of them; ``str.isdigit`` holds for characters that ``int()`` refuses.
"""

from __future__ import annotations

import re

_WHOLE = re.compile(r"[0-9]{1,18}")
_HEX = re.compile(r"(?:0[xX])?([0-9A-Fa-f]{1,15})")


def whole(text: str) -> int | None:
    """A number without sign of at most 18 decimal digits, else ``None``."""
    return int(text) if _WHOLE.fullmatch(text) else None


def hexadecimal(text: str) -> int | None:
    """A number of at most 15 hexadecimal digits, with or without ``0x``, else ``None``."""
    match = _HEX.fullmatch(text)
    return int(match[1], 16) if match else None
