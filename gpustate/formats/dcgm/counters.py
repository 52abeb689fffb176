"""Reader and writer of dcgm-exporter's counters file with records ``FIELD,type,help``.

The exporter reads it with Go's ``encoding/csv`` and strips spaces (and nothing else) from each column. It does
not start if a record does not have three columns, or has an unknown field or type. These are errors here, with
the line. Accepted but wrong records are warnings: a duplicate field, of which only the first is exported, and a
help text over several lines, which makes the metrics invalid for Prometheus.

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
from gpustate.formats.words import quote, quote_name

_MARK = "\ufeff"
#: With more unknown fields than this, no similar names are suggested, because that is slow.
_MOST_SUGGESTIONS = 50
TYPES = ("gauge", "counter", "histogram", "summary", "label")


@dataclass(frozen=True, slots=True)
class Counter:
    """A record of the file.

    Args:
        field: the requested field.
        type: ``gauge``, ``counter`` or ``label`` (the value becomes a label of the other metrics).
        help: its description in Prometheus, in one line.
        line: of the record.
    """

    field: fields.Field
    type: str
    help: str
    line: int


@dataclass(frozen=True, slots=True)
class Checked:
    """A counters file with its problems.

    Args:
        counters: the requested fields, each once.
        errors: problems that keep the exporter from starting.
        warnings: accepted records without the expected effect.
        too_new: names that no supported release of dcgm-exporter has.
    """

    counters: tuple[Counter, ...]
    errors: tuple[UsageError, ...] = ()
    warnings: tuple[UsageError, ...] = ()
    too_new: tuple[UsageError, ...] = ()


def read(text: str, place: str) -> tuple[Counter, ...]:
    """Read a counters file.

    Raises:
        UsageError: the first record that would keep the exporter from starting, with its line.
    """
    checked = check(text, place)
    if checked.errors:
        raise checked.errors[0]
    return checked.counters


def check(text: str, place: str) -> Checked:
    """Read a counters file and collect all its problems by line."""
    counters: dict[int | str, Counter] = {}
    errors: list[UsageError] = []
    warnings: list[UsageError] = []
    too_new: list[UsageError] = []
    if text.startswith(_MARK):
        errors.append(
            UsageError(
                "begins with a byte order mark, with which the exporter does not start",
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
                    f"the help text of {counter.field.name} spans lines, which makes the exporter's metrics invalid for Prometheus",
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
                "contains no field",
                place=place,
                fix="add lines such as: DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature",
            )
        )
    return Checked(tuple(counters.values()), tuple(errors), tuple(warnings), tuple(too_new))


def as_text(counters: Iterable[Counter], head: str = "") -> str:
    """Write a counters file; a quoted column follows its comma directly, as Go requires."""
    lines = [f"# {line}" for line in head.splitlines()]
    for counter in counters:
        quoted = go_csv.column(counter.help)
        lines.append(
            f"{counter.field.name}, {counter.type},{'' if quoted.startswith(chr(34)) else ' '}{quoted}"
        )
    return "\n".join(lines) + "\n"


def _second(counter: Counter, first: Counter, where: str) -> UsageError:
    name = counter.field.name
    same = "" if name == first.field.name else f", as {first.field.name}"
    return UsageError(
        f"{name} is a duplicate of line {first.line}{same}; the exporter exports only the first",
        place=where,
        fix="remove one of them",
    )


def _too_new(counter: Counter, where: str) -> list[UsageError]:
    if fields.is_known(counter.field, fields.NEWEST_RELEASE):
        return []
    older = fields.known_as(counter.field, fields.NEWEST_RELEASE)
    also = f"; its name in older releases is {older}" if older else ""
    why = f"{counter.field.name} needs dcgm-exporter newer than {fields.NEWEST_RELEASE}{also}"
    return [UsageError(why, place=where)]


def _counter(record: go_csv.Record, place: str, *, suggest: bool) -> Counter:
    if record.problem == go_csv.BARE_QUOTE:
        raise UsageError(
            "has a double quote in a column that does not begin with one",
            place=place,
            fix='quote the whole column, directly after the comma, and write "" for a quote inside',
        )
    if record.problem:
        raise UsageError(
            "has a quoted column that does not end at a comma or at the end of a line",
            place=place,
            fix='end it with a double quote and nothing after it, and write "" for a quote inside',
        )
    if len(record.columns) != 3:
        blank = not "".join(record.columns).strip()
        raise UsageError(
            f"has {len(record.columns)} columns, wanted three: FIELD, type, help",
            place=place,
            fix="remove the blanks from the empty line"
            if blank
            else "quote a help text with commas, directly after the comma",
        )
    name, kind, help_text = (column.strip(" ") for column in record.columns)
    field = fields.find(name)
    if field is None:
        near = fields.like(name) if suggest else ""
        raise UsageError(
            f"{quote_name(name)} is not a DCGM field, and the exporter would not start",
            place=place,
            fix=f"did you mean {near}?" if near else "use a name from dcgm_fields.h",
        )
    if kind not in TYPES:
        raise UsageError(
            f"{quote(kind)} is not a metric type", place=place, fix=f"write {', '.join(TYPES)}"
        )
    return Counter(
        field, kind, " ".join(part.strip(" ") for part in help_text.split("\n")), record.line
    )
