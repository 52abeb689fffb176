"""Differences between the objects of the GPU Operator and those of gpustate, field by field, and which are wanted.

Every wanted difference names its reason, which docs/cluster-reference.md gives to users.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from gpustate.documents import Json

#: Keys by which elements of lists are told apart.
_MERGE_KEYS = ("mountPath", "name", "key")
_SERVER_FIELDS = (
    *("creationTimestamp", "generation", "managedFields", "resourceVersion", "uid"),
    *("namespace", "name"),
)


class _Missing:
    def __repr__(self) -> str:
        return "(missing)"


MISSING: Any = _Missing()
ANY: Any = object()


@dataclass(frozen=True, slots=True)
class Found:
    """One difference.

    Args:
        object: ``daemonset/name``.
        field: path with slashes; empty for the whole object.
        operator, ours: the values; ``MISSING`` without.
    """

    object: str
    field: str
    operator: Any
    ours: Any

    def __str__(self) -> str:
        return f"{self.object}: {self.field or 'object'}: {self.operator!r} -> {self.ours!r}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A difference that is wanted.

    Args:
        object, field: patterns.
        operator, ours: the values, by default any.
        reason: why.
    """

    object: str
    field: str
    reason: str
    operator: Any = ANY
    ours: Any = ANY

    def covers(self, one: Found) -> bool:
        return (
            fnmatchcase(one.object, self.object)
            and fnmatchcase(one.field, self.field)
            and (self.operator is ANY or self.operator == one.operator)
            and (self.ours is ANY or self.ours == one.ours)
        )


def compare(operator: Iterable[Json], ours: Iterable[Json]) -> list[Found]:
    """All differences; fields that only the API server writes are left out."""
    theirs_by, ours_by = _by_title(operator), _by_title(ours)
    found: list[Found] = []
    for title in sorted({*theirs_by, *ours_by}):
        one, other = theirs_by.get(title), ours_by.get(title)
        if one is None or other is None:
            kept = [MISSING if item is None else _kind_of(item) for item in (one, other)]
            found.append(Found(title, "", *kept))
            continue
        for field, left, right in _walk("", _plain(one), _plain(other)):
            found.append(Found(title, field, left, right))
    return found


def _kind_of(item: Json) -> str:
    return str(item["kind"])


def _by_title(items: Iterable[Json]) -> dict[str, Json]:
    return {f"{one['kind'].lower()}/{one['metadata']['name']}": one for one in items}


def _plain(item: Json) -> Json:
    meta = {key: value for key, value in item["metadata"].items() if key not in _SERVER_FIELDS}
    skipped = ("apiVersion", "kind", "metadata", "status")
    found = {"metadata": meta, **{key: item[key] for key in item if key not in skipped}}
    if item["kind"] == "Service":
        addresses = ("clusterIP", "clusterIPs")
        found["spec"] = {key: found["spec"][key] for key in found["spec"] if key not in addresses}
    return found


def _walk(path: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    if one == other or (one in (MISSING, None, {}, []) and other in (MISSING, None, {}, [])):
        return
    left, right = _mapping(one), _mapping(other)
    if left is not None and right is not None:
        for key in dict.fromkeys((*left, *right)):
            below = f"{path}/{key}" if path else key
            yield from _walk(below, left.get(key, MISSING), right.get(key, MISSING))
        return
    yield path, one, other


def _mapping(value: Any) -> Mapping[str, Any] | None:
    """A mapping, or a list whose elements have a name each."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        return None
    for key in _MERGE_KEYS:
        found = {str(one.get(key, "")): one for one in value}
        if len(found) == len(value) and "" not in found:
            return found
    return None


def unexpected(found: Iterable[Found], wanted: Iterable[Wanted]) -> list[Found]:
    """Differences that nothing explains."""
    table = list(wanted)
    return [one for one in found if not any(entry.covers(one) for entry in table)]


def unused(found: Iterable[Found], wanted: Iterable[Wanted]) -> list[Wanted]:
    """Entries of a table that explain nothing."""
    everything = list(found)
    return [entry for entry in wanted if not any(entry.covers(one) for one in everything)]


def reasons_in(page: str) -> set[str]:
    """The reasons in the table ``What differs`` of docs/cluster-reference.md."""
    section = page.partition("## What differs from the Operator")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+) \|$", section, re.MULTILINE)[1:]
    return {row.split(" | ")[-1] for row in rows if not row.startswith("---")}
