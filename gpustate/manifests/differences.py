"""Differences between two versions of an object, field by field. Pure.

Elements of lists with unique names (containers, volumes, variables) are compared by name, those of other lists
together. Fields that the API server alone writes are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

#: Of ``metadata``: written by the API server alone.
_SERVER_FIELDS = (
    *("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid"),
    *("deletionTimestamp", "deletionGracePeriodSeconds", "ownerReferences"),
)
#: An annotation of DaemonSets that the API server counts up with every change.
GENERATION = "deprecated.daemonset.template.generation"


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that differs.

    Args:
        field: its path: ``spec.template.spec.containers[name].image``.
        before, after: its values; ``None`` if it is missing.
    """

    field: str
    before: Any
    after: Any


def differences(before: Json, after: Json) -> list[Difference]:
    """Fields that differ between an object as it is and as it would be."""
    return list(_compare("", _stripped(before), _stripped(after)))


def _stripped(item: Json) -> Json:
    meta = {name: value for name, value in item["metadata"].items() if name not in _SERVER_FIELDS}
    if GENERATION in (notes := meta.get("annotations") or {}):
        meta["annotations"] = {key: notes[key] for key in notes if key != GENERATION}
    skipped = ("apiVersion", "kind", "metadata", "status")
    return {"metadata": meta, **{key: item[key] for key in item if key not in skipped}}


def _compare(path: str, before: Any, after: Any) -> Iterator[Difference]:
    if before == after or (before in (None, {}, []) and after in (None, {}, [])):
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}):
            yield from _compare(_below(path, key), before.get(key), after.get(key))
        return
    named = _by_name(before), _by_name(after)
    if named[0] is not None and named[1] is not None:
        for key in dict.fromkeys((*named[0], *named[1])):
            yield from _compare(f"{path}[{key}]", named[0].get(key), named[1].get(key))
        return
    yield Difference(path, before, after)


def _below(path: str, key: str) -> str:
    if "." in key or "/" in key:
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def _by_name(value: Any) -> dict[str, Any] | None:
    """A list of objects with unique names as a mapping."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        return None
    found = {str(one.get("name", "")): one for one in value}
    return found if len(found) == len(value) and "" not in found else None
