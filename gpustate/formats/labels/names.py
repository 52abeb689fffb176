"""How GFD writes names: products, families, machines."""

from __future__ import annotations

import re

_DROPPED = re.compile(r"[^A-Za-z0-9\-_. ]")
_FAMILIES = {
    1: "tesla",
    2: "fermi",
    3: "kepler",
    5: "maxwell",
    6: "pascal",
    9: "hopper",
    10: "blackwell",
    12: "blackwell",
    13: "rubin",
}


def sanitise(text: str) -> str:
    """Drop characters not allowed in labels, and join words with dashes."""
    # Tabs and other blanks count as dropped characters, not as blanks: GFD keeps the space only.
    return "-".join(_DROPPED.sub("", text).split())


def family(major: int, minor: int) -> str:
    """GFD's name for a compute capability; ``undefined`` for an unsupported one (11.0)."""
    if major == 7:
        return "volta" if minor < 5 else "turing"
    if major == 8:
        return "ampere" if minor < 9 else "ada-lovelace"
    return _FAMILIES.get(major, "undefined")


def product(*parts: str, shared: bool = False) -> str:
    """``NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED`` of its parts; empty parts are left out."""
    words = [sanitise(part) for part in parts if part]
    return "-".join([*words, "SHARED"] if shared and words else words)
