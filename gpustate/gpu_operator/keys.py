"""Every key of the Operator's files: its type, and what gpustate does with it, as ``data/keys.txt`` says.

``[]`` in a path is any element of a list. Types, choices, minima and the API server's defaults are those of the newest
release's schemas (:mod:`gpustate.gpu_operator.history`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Any

from gpustate.core.layers import REMOVED
from gpustate.documents import Json
from gpustate.gpu_operator import history, tables


class Support(StrEnum):
    """How gpustate supports a field."""

    HONOURED = "honoured"  # by a state, the reader itself, or objects of the cluster
    KUBERNETES = "kubernetes"  # about pods and other Kubernetes objects, not about a node
    NO_MEANING = "no-meaning"  # about the Operator's containers; not applicable on a host
    LATER = "later"  # about a node, but no state of this release supports it
    DEPRECATED = "deprecated"  # the Operator still reads it, and recommends another field
    DEAD = "dead"  # the Operator, or its chart, no longer reads it


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a schema that holds a value.

    Args:
        type: ``string``, ``boolean``, ``integer``, ``int-or-string``, ``quantity``, ``list[...]``, ``map[...]``,
            ``quoted`` for strings that may be numbers, ``any`` for values that are not checked.
        detail: if honoured, the state and parameter; otherwise the reason, half a sentence.
        support: how gpustate supports it.
        choices: the allowed values.
        default: filled in by the API server or the chart.
        minimum: the lowest allowed integer.
        instead: the path to use, for a deprecated or dead field.
        until: the last release that read it, for a dead field; empty if none did.
        objects: it is a field of objects that gpustate applies with ``--cluster-objects``, and of no state.
        container: of a component that may run as containers: its section; then it is honoured.
        off: the field where that component does not.
        to: where the value goes as it is: a field of the settings, or ``kind/name:path`` of an object.
        parsed_again: the chart writes it without quotes, so that a string becomes what YAML reads in it.
    """

    type: str
    detail: str = ""
    support: Support = Support.DEAD
    choices: tuple[str, ...] = ()
    default: Any = field(default=None, hash=False)
    minimum: int | None = None
    instead: str = ""
    until: str = ""
    objects: bool = False
    container: str = ""
    off: Field | None = None
    to: str = ""
    parsed_again: bool = False


Fields = Mapping[str, Field]
#: Kinds of files, as in messages.
TITLES = {
    "clusterpolicy": "ClusterPolicy",
    "nvidiadriver": "NVIDIADriver",
    "gpucluster": "GPUCluster",
    "helm": "Helm values",
}
#: A spec of an NVIDIADriver is that of a ClusterPolicy's driver, with these sections.
_DRIVER, _BESIDE = "driver.", ("gds.", "gdrcopy.")
#: Keys of a ClusterPolicy in the chart: with another name, and not at all.
_RENAMED = ("driver.upgradePolicy.podDeletion.", "driver.upgradePolicy.gpuPodDeletion.")
_NOT_IN_CHART = "driver.useNvidiaDriverCRD"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: paths and patterns, support (empty: unchanged), detail, options."""

    keys: tuple[str, ...]
    support: str
    detail: str
    options: Mapping[str, str]


@cache
def rows() -> Mapping[str, tuple[Row, ...]]:
    """The rows of ``data/keys.txt`` by kind of file."""
    return {kind: tuple(map(_row, cells)) for kind, cells in tables.sections("keys.txt").items()}


def _row(cells: tuple[str, ...]) -> Row:
    keys, support, detail, *more = cells
    words = (word.partition("=") for cell in more for word in cell.split())
    options = {name: value for name, _, value in words}
    return Row(tuple(tables.expanded(keys)), support, detail, options)


@cache
def fields(kind: str) -> Fields:
    """The fields of a kind of file by path.

    Args:
        kind: a key of :data:`TITLES`.
    """
    if kind == "helm":
        of_policy, of_cluster = fields("clusterpolicy"), fields("gpucluster")
        table = {_renamed(path): spec for path, spec in of_policy.items() if path != _NOT_IN_CHART}
        table |= {path: spec for path, spec in of_cluster.items() if path.startswith("draDriver.")}
    else:
        table = {
            _in_policy(kind, path): Field(
                type_,
                choices=tuple(more.get("choices", ())),
                default=history.api_default(kind, path, history.newest()),
                minimum=more.get("minimum"),
            )
            for path, (type_, more) in history.schema(kind).items()
        }
        _apply(table, "clusterpolicy", adds=kind == "clusterpolicy")
        table = _in_order_of_rows(table, kind)
    if kind == "nvidiadriver":
        table = {
            path.removeprefix(_DRIVER): replace(spec, instead=spec.instead.removeprefix(_DRIVER))
            for path, spec in table.items()
        }
    if kind != "clusterpolicy":
        _apply(table, kind, adds=True)
    return table


@cache
def targets(kind: str) -> Mapping[str, Mapping[str, str]]:
    """Where values of a kind of file go as they are: by section of the settings, or object, the path of each field."""
    by_section: dict[str, dict[str, str]] = {}
    for path, spec in fields(kind).items():
        section, _, name = spec.to.partition(":") if ":" in spec.to else spec.to.rpartition(".")
        if spec.to:
            by_section.setdefault(section, {})[name] = path
    return by_section


def _in_order_of_rows(table: Mapping[str, Field], kind: str) -> dict[str, Field]:
    """The fields by section, in the order of the table's rows: what is named first is suggested first."""
    keys = [key for name in (kind, "clusterpolicy") for row in rows()[name] for key in row.keys]
    order = list(dict.fromkeys(key.partition(".")[0] for key in keys))
    return dict(sorted(table.items(), key=lambda item: order.index(item[0].partition(".")[0])))


def sections() -> frozenset[str]:
    """The top-level keys of the chart's values."""
    return frozenset(path.partition(".")[0] for path in fields("helm"))


def _in_policy(kind: str, path: str) -> str:
    """The path of a ClusterPolicy that means the same."""
    return _DRIVER + path if kind == "nvidiadriver" and not path.startswith(_BESIDE) else path


def _renamed(path: str) -> str:
    old, new = _RENAMED
    return new + path.removeprefix(old) if path.startswith(old) else path


def _apply(table: dict[str, Field], kind: str, *, adds: bool) -> None:
    """Change the fields that rows name; ``adds``: keys with a type of their own are added."""
    for row in rows()[kind]:
        for key in row.keys:
            if key.startswith("*."):
                paths = [path for path in table if f".{path}".endswith(key[1:])]
            elif key.endswith(".*"):
                paths = [path for path in table if path.startswith(key[:-1])]
            else:
                paths = [key] if key in table or (adds and "type" in row.options) else []
            for path in paths:
                table[path] = _changed(table.get(path, Field("any")), row)


def _changed(spec: Field, row: Row) -> Field:
    options, (word, _, section) = row.options, row.support.partition(" ")
    spec = replace(spec, to=options.get("to", spec.to))
    if word == "containers":
        detail = f"{row.detail}, with {section} in containers"
        return replace(
            spec,
            support=Support.HONOURED,
            detail=detail,
            objects=True,
            container=section,
            off=spec.off or spec,
        )
    if "quoted" in options and spec.type == "string":
        spec = replace(spec, type="quoted")
    spec = replace(
        spec,
        type=options.get("type", spec.type),
        choices=tuple(options["choices"].split(",")) if "choices" in options else spec.choices,
        default=options.get("default", spec.default),
        parsed_again=spec.parsed_again or "parsed" in options,
    )
    if not word:
        return spec
    return replace(
        spec,
        support=Support.HONOURED if word == "objects" else Support(word),
        detail=row.detail,
        instead=options.get("instead", ""),
        until=options.get("until", ""),
        objects=word == "objects",
        container="",
        off=None,
    )


@dataclass(frozen=True, slots=True)
class Record:
    """One field of one kind.

    Args:
        kind: ``clusterpolicy``, ``nvidiadriver``, ``gpucluster`` or ``helm``.
        path: from ``spec`` (of values: from the top), ``[]`` for elements of lists.
        field: type, choices, minimum, and support.
        default: the value if the file does not set it.
        filled_by: ``chart`` or ``API server``; empty if there is no default.
        since: the release that added it.
    """

    kind: str
    path: str
    field: Field
    default: Any
    filled_by: str
    since: str

    @property
    def support(self) -> Support:
        """How gpustate supports it."""
        return self.field.support


@cache
def records(kind: str, release: str = "") -> Mapping[str, Record]:
    """All records of a kind by path, in the order of the table.

    Args:
        kind: of file.
        release: whose defaults apply; by default the newest.
    """
    release = release or history.newest()
    return {path: _record(kind, path, field, release) for path, field in fields(kind).items()}


def _record(kind: str, path: str, field: Field, release: str) -> Record:
    default = field.default
    if release != history.newest():
        default = history.api_default("clusterpolicy" if kind == "helm" else kind, path, release)
    filled_by = "API server" if default is not None else ""
    if kind == "helm":
        mapping = field.type.startswith(("map", "any"))
        has_default, of_chart = history.chart_default(path, mapping=mapping, release=release)
        if has_default:
            default, filled_by = of_chart, "chart"
    return Record(kind, path, field, default, filled_by, history.since(kind, path))


def unset(kind: str, release: str, path: tuple[str, ...]) -> Any:
    """The value at a path while a file does not set it: a default, or an empty one; ``REMOVED``: no such key."""
    table, text = records(kind, release), ".".join(path)
    record = table.get(text)
    if record is not None and record.default is not None:
        return record.default
    types: Json = {"list": [], "map": {}}
    if record is not None:
        return types.get(record.field.type.partition("[")[0])
    if any(known_path.startswith(f"{text}[]") for known_path in table):
        return history.chart_default(text, release=release)[1] if kind == "helm" else []
    return {} if any(known_path.startswith(f"{text}.") for known_path in table) else REMOVED
