"""Differences between two versions of an object, field by field. Pure.

Elements of lists with unique names (containers, volumes, variables) are compared by name, those of other lists
together. Fields that the API server alone writes are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from gpustate.documents import Json
from gpustate.manifests.ownership import FIELD_MANAGER

#: Where an added field changes what runs; defaults of the server are no elements with a key.
_RUNNING = (("spec", "template", "spec"), ("data",))
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


@dataclass(frozen=True, slots=True)
class Addition:
    """A container, variable, volume or file that another writer added to an object of gpustate.

    Args:
        manager: who.
        pointer: its place as a JSON patch names it.
        difference: what its removal changes.
    """

    manager: str
    pointer: str
    difference: Difference


def additions(item: Json) -> list[Addition]:
    """What others added to what an object of ours runs, by its ``managedFields``; the last of a list first."""
    entries = [row for row in item["metadata"].get("managedFields") or () if "fieldsV1" in row]
    own_fields = [row["fieldsV1"] for row in entries if row["manager"] == FIELD_MANAGER]
    foreign = (
        row for row in entries if row["manager"] != FIELD_MANAGER and not row.get("subresource")
    )
    result: list[Addition] = []
    for entry, path in product(foreign if own_fields else (), _RUNNING):
        fields, value = [entry["fieldsV1"], *own_fields], item
        for name in path:
            fields = [level.get(f"f:{name}") or {} for level in fields]
            value = value.get(name) or {}
        for pointer, difference in _added(fields[0], fields[1:], value, path):
            result.append(Addition(entry["manager"], pointer, difference))
    return sorted(result, key=lambda entry: (len(entry.pointer), entry.pointer), reverse=True)


def _added(
    fields: Json, own_fields: Sequence[Json], value: Any, path: tuple[str, ...], title: str = ""
) -> Iterator[tuple[str, Difference]]:
    """Elements with a key, and files, that are among fields and not among one's own."""
    title = title or ".".join(path)
    for key, below in fields.items():
        kind, _, name = key.partition(":")
        if kind == "k" and isinstance(value, list):
            keys = json.loads(name)
            matches = [n for n, element in enumerate(value) if keys.items() <= element.items()]
            step, label = (
                str(matches[0]) if matches else "",
                f"{title}[{next(iter(keys.values()))}]",
            )
        elif kind == "f" and isinstance(value, Mapping):
            step, label = name if name in value else "", _below(title, name)
        else:
            continue
        owned = [tree[key] for tree in own_fields if key in tree]
        child: Any = None
        if step:
            child = value[int(step)] if isinstance(value, list) else value.get(step)
        if child is not None and owned:
            yield from _added(below, owned, child, (*path, step), label)
        elif child is not None and (kind == "k" or path == ("data",)):
            steps = (part.replace("~", "~0").replace("/", "~1") for part in (*path, step))
            yield f"/{'/'.join(steps)}", Difference(label, child, None)


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


def _by_name(value: Any) -> Json | None:
    """A list of objects with unique names as a mapping."""
    if not isinstance(value, list) or not all(isinstance(element, dict) for element in value):
        return None
    by_name = {str(element.get("name", "")): element for element in value}
    return by_name if len(by_name) == len(value) and "" not in by_name else None
