"""Names of many nodes in few words: ``gpu[001-016,020]``, ``rack[1-4]-gpu[1-8]``. Pure.

The notation is Slurm's: a list in brackets, ranges with a dash, and the width of the first number of a
range is the width of all (``[08-11]`` has a zero, ``[8-11]`` has none). It can be pasted into
``scontrol`` and ``pdsh``; :func:`expand` reads it back.

Sources:
    scontrol(1) and slurm.conf(5): "hostlist expressions".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

#: Longer numbers are serial numbers, not places in a row; they stay as they are.
_DIGITS = 9
_NUMBERS = re.compile(r"([0-9]+)")
_LISTS = re.compile(r"(\[[^\[\]]*\])")
#: A name with one of these would read as a range when it is none.
_AMBIGUOUS = re.compile(r"[\[\],\s]")

_Row = tuple[str, ...]  # the parts of a name: text and numbers in turn


def fold(names: Iterable[str]) -> list[str]:
    """Some names, as few expressions as there are kinds of them; each name in exactly one."""
    alone: list[str] = []
    rows: dict[_Row, list[_Row]] = {}
    for name in dict.fromkeys(names):
        parts = _parts(name)
        if parts is None:
            alone.append(name)
        else:
            rows.setdefault(parts[::2], []).append(parts)
    folded = [text for same in rows.values() for text in _fold(same)]
    return sorted([*folded, *alone], key=_order)


def expand(text: str) -> list[str]:
    """The names that one expression of :func:`fold` stands for."""
    names = [""]
    for part in _LISTS.split(text):
        choices = _choices(part[1:-1]) if part.startswith("[") and part.endswith("]") else [part]
        names = [name + choice for name in names for choice in choices]
    return names


def natural(name: str) -> list[tuple[int, str]]:
    """Sorts ``gpu2`` before ``gpu10``."""
    return [
        (int(part) if n % 2 and len(part) <= _DIGITS else 0, part)
        for n, part in enumerate(_NUMBERS.split(name))
    ]


def _order(text: str) -> list[tuple[int, str]]:
    return natural(text.replace("[", ""))


def _parts(name: str) -> _Row | None:
    """Text and numbers in turn; ``None`` for a name that is not taken apart."""
    if _AMBIGUOUS.search(name):
        return None
    parts: list[str] = [""]
    for n, part in enumerate(_NUMBERS.split(name)):
        if n % 2 and len(part) <= _DIGITS:
            parts += [part, ""]
        else:
            parts[-1] += part
    return tuple(parts)


def _fold(rows: Sequence[_Row]) -> list[str]:
    """Names of one kind: from the last number to the first, those that differ in it alone."""
    remaining: Iterable[_Row] = rows
    for place in range(len(rows[0]) - 2, 0, -2):
        same: dict[_Row, list[str]] = {}
        for row in remaining:
            same.setdefault((*row[:place], "", *row[place + 1 :]), []).append(row[place])
        remaining = [
            (*key[:place], _list(numbers), *key[place + 1 :]) for key, numbers in same.items()
        ]
    return ["".join(row) for row in remaining]


def _list(numbers: Sequence[str]) -> str:
    if len(numbers) == 1:
        return numbers[0]
    ranges: list[str] = []
    first = last = ""
    for number in [*sorted(numbers, key=lambda digits: (int(digits), len(digits))), ""]:
        if number and first and number == str(int(last) + 1).zfill(len(first)):
            last = number
            continue
        if first:
            ranges.append(first if first == last else f"{first}-{last}")
        first = last = number
    return f"[{','.join(ranges)}]"


def _choices(text: str) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not dash:
            numbers.append(part)
            continue
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers
