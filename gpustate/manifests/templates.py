"""Objects as files in ``data``: YAML, with the values of a policy.

``$name`` or ``$name.field`` is a value, or a fragment of ``shared.yaml``. In a list, a list takes the place of its item.
``None`` leaves out the field or item. A mapping with ``if: name`` is left out where the value is false; ``not`` and ``and``
are known, and ``then`` and ``else`` take the place of the mapping. ``with`` names values for the mapping that has it.

Surprising: this is no text template. Values never become YAML, so they need no quotes and keep their types; and jinja2's
import and compiler would take longer than everything else that renders a policy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

import yaml

from gpustate.documents import Json, JsonView

_VALUE = re.compile(r"\$([a-z][A-Za-z_.-]*)")


def text(name: str) -> str:
    """A file of ``data``."""
    return (resources.files("gpustate.manifests") / "data" / name).read_text("utf-8")


@cache
def _documents(name: str) -> tuple[Json, ...]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return tuple(document for document in yaml.load_all(text(name), Loader=loader) if document)


def objects(name: str, values: JsonView) -> Iterator[Json]:
    """The objects of a file, without those left out."""
    yield from (item for node in _documents(name) if (item := _rendered(node, values)) is not None)


def fragment(name: str, values: JsonView) -> Any:
    """A fragment of ``shared.yaml``."""
    (fragments,) = _documents("shared.yaml")
    return _rendered(fragments[name], values)


def _rendered(node: Any, values: JsonView) -> Any:
    if isinstance(node, dict):
        if "with" in node:
            values = {**values, **_rendered(node["with"], values)}
        chosen = "if" not in node or _holds(node["if"], values)
        if "then" in node:
            return _rendered(node["then"] if chosen else node.get("else"), values)
        if not chosen:
            return None
        fields = {key: _rendered(node[key], values) for key in node if key not in ("if", "with")}
        return {key: value for key, value in fields.items() if value is not None}
    if isinstance(node, list):
        items: list[Any] = []
        for child in node:
            item = _rendered(child, values)
            items += item if isinstance(item, list) else [] if item is None else [item]
        return items
    if isinstance(node, str) and (match := _VALUE.fullmatch(node)):
        return _value(match[1], values)
    return node


def _holds(condition: str, values: JsonView) -> bool:
    return all(
        bool(_value(term.removeprefix("not "), values)) != term.startswith("not ")
        for term in condition.split(" and ")
    )


def _value(path: str, values: JsonView) -> Any:
    name, *fields = path.split(".")
    if name not in values:
        return fragment(name, values)
    value = values[name]
    for field in fields:
        value = value[field] if isinstance(value, Mapping) else getattr(value, field)
    return _plain(value() if callable(value) else value)


def _plain(value: Any) -> Any:
    """A value as new lists and mappings, which an object may own; equal values are equal bytes."""
    if isinstance(value, Mapping):
        return {key: _plain(value[key]) for key in sorted(value)}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
