"""Reader and writer of dcgm-exporter's counters file: ``FIELD, type, help`` a line.

The file is CSV as Go reads it: ``#`` makes a comment only in the first column, a text with a comma
must be in double quotes, and a byte order mark is part of the first column. The exporter does not start
when a line has not three columns, or names a field or type that it does not know; so these are errors here,
with the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpustate.errors import UsageError
from gpustate.text.dcgm import fields
from gpustate.text.words import named, shown

_MARK = "\ufeff"
TYPES = ("gauge", "counter", "histogram", "summary", "label")
#: A quoted column with doubled quotes inside, or a bare one without any.
_COLUMN = re.compile(r'[ \t]*+(?:"((?:[^"]|"")*+)"[ \t]*+|([^",]*+))(,|$)')


@dataclass(frozen=True, slots=True)
class Counter:
    """A line of the file.

    Args:
        field: the field asked for.
        type: ``gauge``, ``counter`` or ``label`` (the value becomes a label of the other metrics).
        help: what Prometheus shows about it.
        line: where it stands.
    """

    field: fields.Field
    type: str
    help: str
    line: int


def read(text: str, place: str) -> tuple[Counter, ...]:
    """Read a counters file.

    Raises:
        UsageError: a line that would keep the exporter from starting, or a field that is there
            twice, with its line; the first of them.
    """
    found, wrong = look(text, place)
    if wrong:
        raise wrong[0]
    return found


def look(text: str, place: str) -> tuple[tuple[Counter, ...], tuple[UsageError, ...]]:
    """Read a counters file as far as it can be, with everything that is wrong in it, line by line."""
    found: dict[str, Counter] = {}
    wrong: list[UsageError] = []
    if text.startswith(_MARK):
        wrong.append(
            UsageError(
                "begins with a byte order mark, which is no part of a field, and the exporter would not start",
                place=f"{place}:1",
                fix="save the file as UTF-8 without one",
            )
        )
    for number, whole in enumerate(text.removeprefix(_MARK).split("\n"), 1):
        line = whole.removesuffix("\r")
        if not line.strip() or line.startswith("#"):
            continue
        try:
            counter = _counter(line, f"{place}:{number}", number)
        except UsageError as error:
            wrong.append(error)
            continue
        first = found.setdefault(counter.field.name, counter)
        if first is not counter:
            wrong.append(
                UsageError(
                    f"{counter.field.name} is there a second time, first in line {first.line}",
                    place=f"{place}:{number}",
                    fix="leave one of the two out: Prometheus refuses a metric that comes twice",
                )
            )
    if not found and not wrong:
        wrong.append(
            UsageError(
                "asks for no field",
                place=place,
                fix="write lines such as: DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature",
            )
        )
    return tuple(found.values()), tuple(wrong)


def as_text(counters: Iterable[Counter], head: str = "") -> str:
    """Write a counters file that :func:`read` reads back."""
    lines = [f"# {line}" for line in head.splitlines()]
    for one in counters:
        quoted = one.help.replace('"', '""')
        told = f'"{quoted}"' if re.search(r'[",]', one.help) else one.help
        lines.append(f"{one.field.name}, {one.type}, {told}")
    return "\n".join(lines) + "\n"


def _counter(line: str, place: str, number: int) -> Counter:
    columns = _columns(line, place)
    if len(columns) != 3:
        raise UsageError(
            f"has {len(columns)} columns, wanted three: FIELD, type, help",
            place=place,
            fix="put a help text with commas in double quotes",
        )
    name, kind, told = columns
    field = fields.find(name)
    if field is None:
        near = fields.like(name)
        raise UsageError(
            f"{named(name)} is no field of DCGM, and the exporter would not start",
            place=place,
            fix=f"did you mean {near}?" if near else "take a name from dcgm_fields.h",
        )
    if kind not in TYPES:
        raise UsageError(
            f"{shown(kind)} is no type of a metric", place=place, fix=f"write {', '.join(TYPES)}"
        )
    return Counter(field, kind, told, number)


def _columns(line: str, place: str) -> list[str]:
    columns: list[str] = []
    at = 0
    while True:
        match = _COLUMN.match(line, at)
        if match is None:
            raise UsageError(
                "has a double quote in the middle of a column",
                place=place,
                fix='put the whole column in double quotes and write "" for one inside',
            )
        quoted, bare, end = match.groups()
        columns.append((bare if quoted is None else quoted.replace('""', '"')).strip(" "))
        if not end:
            return columns
        at = match.end()
