"""Names of nodes as Slurm lists them: ``gpu[1-3,07],rack-01``. Pure.

Sources:
    SchedMD/slurm, src/common/hostlist.c; scontrol(1), ``show hostnames``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

_ITEM = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_PART = re.compile(r"\[([0-9,-]*)\]|([^\[\]]+)")
#: More names are not expanded.
_MOST = 100_000


def names(text: str) -> list[str]:
    """The names in a list; of an item that cannot be read, the item itself."""
    found: list[str] = []
    for item in _ITEM.findall(text):
        parts = [
            [match[2]] if match[2] else list(_numbers(match[1])) for match in _PART.finditer(item)
        ]
        count = 1
        for part in parts:
            count *= len(part)
        if not 0 < count <= _MOST:
            found.append(item)
            continue
        found += ("".join(words) for words in itertools.product(*parts))
    return found


def _numbers(text: str) -> Iterator[str]:
    """``1-3,07`` with leading zeros kept."""
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if first.isdigit() and last.isdigit() and len(last) <= 9:
            for number in range(int(first), min(int(last), int(first) + _MOST) + 1):
                yield f"{number:0{len(first)}d}"
        elif first.isdigit() and not dash:
            yield first
