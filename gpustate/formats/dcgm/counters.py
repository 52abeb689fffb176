"""Reader and writer of dcgm-exporter's counters file: ``FIELD,type,help`` a record.

The exporter reads it with Go's ``encoding/csv``, takes spaces (and nothing else) off both ends of each
column, and does not start when a record has not three of them, or names a field or type that it does not
know. These are errors here, with the line. What it takes and what yet goes wrong is a warning: a field
that is defined twice, of which it answers with the first alone, and a help text over several lines, which makes
its answer unreadable for Prometheus.

Sources:
    NVIDIA/dcgm-exporter (d5e5f51): internal/pkg/counters/counter_config.go (columns, types),
    internal/pkg/collector/gpu_collector.go (``findCounterField``: the first of a field id counts),
    internal/pkg/rendermetrics/render_metrics.go (help is written as it is).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpustate.errors import UsageError
from gpustate.formats import go_csv
from gpustate.formats.dcgm import fields
from gpustate.formats.words import named, shown

_MARK = "\ufeff"
#: For more unknown fields than this no similar name is looked for: that takes time.
_MOST_SUGGESTIONS = 50
TYPES = ("gauge", "counter", "histogram", "summary", "label")


@dataclass(frozen=True, slots=True)
class Counter:
    """A record of the file.

    Args:
        field: the field asked for.
        type: ``gauge``, ``counter`` or ``label`` (the value becomes a label of the other metrics).
        help: what Prometheus shows about it, in one line.
        line: where it stands.
    """

    field: fields.Field
    type: str
    help: str
    line: int


@dataclass(frozen=True, slots=True)
class Checked:
    """A counters file with everything that is to be said about it.

    Args:
        counters: what it asks for, each field once.
        errors: what keeps the exporter from starting.
        warnings: what it takes although it does not do what was meant.
        too_new: names that no release of dcgm-exporter up to the newest known one takes.
    """

    counters: tuple[Counter, ...]
    errors: tuple[UsageError, ...] = ()
    warnings: tuple[UsageError, ...] = ()
    too_new: tuple[UsageError, ...] = ()


def read(text: str, place: str) -> tuple[Counter, ...]:
    """Read a counters file.

    Raises:
        UsageError: a record that would keep the exporter from starting, with its line; the first of them.
    """
    checked = check(text, place)
    if checked.errors:
        raise checked.errors[0]
    return checked.counters


def check(text: str, place: str) -> Checked:
    """Read a counters file as far as it can be, with everything that is wrong in it, line by line."""
    counters: dict[int | str, Counter] = {}
    errors: list[UsageError] = []
    warnings: list[UsageError] = []
    too_new: list[UsageError] = []
    if text.startswith(_MARK):
        errors.append(
            UsageError(
                "begins with a byte order mark, which is not part of a field, and the exporter would not start",
                place=f"{place}:1",
                fix="save the file as UTF-8 without one",
            )
        )
    for record in go_csv.records(text.removeprefix(_MARK)):
        where = f"{place}:{record.line}"
        try:
            counter = _counter(record, where, suggest=len(errors) < _MOST_SUGGESTIONS)
        except UsageError as error:
            errors.append(error)
            continue
        too_new += _too_new(counter, where)
        if "\n" in record.columns[2]:
            warnings.append(
                UsageError(
                    f"the help text of {counter.field.name} spans lines; Prometheus cannot read the exporter's answer then",
                    place=where,
                    fix="write it in one line",
                )
            )
        key = counter.field.name if counter.field.id is None else counter.field.id
        first = counters.setdefault(key, counter)
        if first is not counter:
            warnings.append(_second(counter, first, where))
    if not counters and not errors:
        errors.append(
            UsageError(
                "asks for no field",
                place=place,
                fix="write lines such as: DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature",
            )
        )
    return Checked(tuple(counters.values()), tuple(errors), tuple(warnings), tuple(too_new))


def as_text(counters: Iterable[Counter], head: str = "") -> str:
    """Write a counters file; a quoted column stands directly behind its comma, as Go wants it."""
    lines = [f"# {line}" for line in head.splitlines()]
    for one in counters:
        quoted = go_csv.column(one.help)
        lines.append(
            f"{one.field.name}, {one.type},{'' if quoted.startswith(chr(34)) else ' '}{quoted}"
        )
    return "\n".join(lines) + "\n"


def _second(counter: Counter, first: Counter, where: str) -> UsageError:
    name = counter.field.name
    same = "" if name == first.field.name else f", as {first.field.name}"
    return UsageError(
        f"{name} is there a second time, first in line {first.line}{same}; the exporter answers with that one alone",
        place=where,
        fix="leave one of the two out",
    )


def _too_new(counter: Counter, where: str) -> list[UsageError]:
    if fields.is_known(counter.field, fields.NEWEST_RELEASE):
        return []
    older = fields.known_as(counter.field, fields.NEWEST_RELEASE)
    also = f"; {older} is the same field there" if older else ""
    why = f"{counter.field.name} needs dcgm-exporter newer than {fields.NEWEST_RELEASE}{also}"
    return [UsageError(why, place=where)]


def _counter(record: go_csv.Record, place: str, *, suggest: bool) -> Counter:
    if record.problem == go_csv.BARE_QUOTE:
        raise UsageError(
            "has a double quote in a column that does not begin with one",
            place=place,
            fix='put the whole column in double quotes, directly behind the comma, and write "" for one inside',
        )
    if record.problem:
        raise UsageError(
            "has a quoted column that does not end at a comma or at the end of a line",
            place=place,
            fix='close it with a double quote, nothing behind it, and write "" for one inside',
        )
    if len(record.columns) != 3:
        blank = not "".join(record.columns).strip()
        raise UsageError(
            f"has {len(record.columns)} columns, wanted three: FIELD, type, help",
            place=place,
            fix="take the blanks out of the empty line"
            if blank
            else "put a help text with commas in double quotes, directly behind the comma",
        )
    name, kind, told = (column.strip(" ") for column in record.columns)
    field = fields.find(name)
    if field is None:
        near = fields.like(name) if suggest else ""
        raise UsageError(
            f"{named(name)} is not a field of DCGM, and the exporter would not start",
            place=place,
            fix=f"did you mean {near}?" if near else "take a name from dcgm_fields.h",
        )
    if kind not in TYPES:
        raise UsageError(
            f"{shown(kind)} is not a type of a metric", place=place, fix=f"write {', '.join(TYPES)}"
        )
    return Counter(field, kind, " ".join(part.strip(" ") for part in told.split("\n")), record.line)
