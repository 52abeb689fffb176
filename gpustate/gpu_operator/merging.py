"""Merge Helm values like Helm. Pure.

Sources:
    helm/helm v3: pkg/chartutil/coalesce.go (mappings are merged, everything else is replaced),
    pkg/strvals (paths of ``--set``).
"""

from __future__ import annotations

import re
from typing import Any

from gpustate.documents import Json
from gpustate.gpu_operator.documents import Item

EMPTY = Item({}, 1)
_STEP = re.compile(r"((?:[^.\[\]\\]|\\.)+)((?:\[[0-9]{1,4}\])*)(?:\.|\Z)")
_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")


def merge(lower: Item, upper: Item) -> Item:
    """Merge values, the upper ones taking precedence; ``null`` stays, and removes the chart's default."""
    if not isinstance(lower.value, dict) or not isinstance(upper.value, dict):
        return upper
    children: Json = dict(lower.value)
    for key, value in upper.value.items():
        children[key] = merge(children[key], value) if key in children else value
    return Item(children, upper.line if upper.value else lower.line)


def assign(values: Item, path: str, text: str, line: int, *, typed: bool) -> Item:
    """Set a value at a path in the syntax of ``--set``: ``toolkit.env[0].name``.

    Args:
        values: the existing values.
        path: dots inside a key are escaped.
        text: the value.
        line: of the value.
        typed: parse numbers, ``true``, ``false`` and ``null``; otherwise the value is a string.
    """
    steps: list[str | int] = []
    for key, indices in _STEP.findall(path):
        steps.append(re.sub(r"\\(.)", r"\1", key))
        steps.extend(int(index) for index in re.findall(r"\d+", indices))
    return _put(values, steps, Item(_typed(text) if typed else text, line)) if steps else values


def _put(values: Item | None, steps: list[str | int], value: Item) -> Item:
    if not steps:
        return value
    step, deeper = steps[0], steps[1:]
    if isinstance(step, int):
        items = list(values.value) if values is not None and isinstance(values.value, list) else []
        items += [Item(None, value.line)] * (step + 1 - len(items))
        items[step] = _put(items[step], deeper, value)
        return Item(items, value.line)
    children = dict(values.value) if values is not None and isinstance(values.value, dict) else {}
    children[step] = _put(children.get(step), deeper, value)
    return Item(children, value.line)


def _typed(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if text == "null":
        return None
    return int(text) if _NUMBER.fullmatch(text) else text
