"""Data of which every value knows where it stands, so that what is changed keeps its origin.

Trees are never changed: a change makes a new one that shares what stayed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from gpustate.errors import PolicyError
from gpustate.text import yaml_events
from gpustate.text.words import at, shown

#: Keys of mappings, and indices of lists.
Steps = tuple[str | int, ...]
Path = tuple[str, ...]

RULES = yaml_events.Rules(PolicyError, depth=60, values=500_000, text_keys=True)


@dataclass(frozen=True, slots=True)
class Tree:
    """A value and its place.

    Args:
        value: a scalar, a dict of trees by key, or a list of trees.
        place: where it stands: ``file:line``, or what was written on the command line.
    """

    value: Any
    place: str

    def get(self, *keys: str) -> Tree | None:
        """Follow keys down mappings; ``None`` where one is missing."""
        tree: Tree | None = self
        for key in keys:
            if tree is None or not isinstance(tree.value, dict):
                return None
            tree = tree.value.get(key)
        return tree


def plain(tree: Tree) -> Any:
    """The data alone."""
    if isinstance(tree.value, dict):
        return {key: plain(value) for key, value in tree.value.items()}
    if isinstance(tree.value, list):
        return [plain(value) for value in tree.value]
    return tree.value


def places(tree: Tree, above: Path = ()) -> Iterator[tuple[Path, str]]:
    """Where every value stands, by its keys; what is in a list stands where the list does."""
    if isinstance(tree.value, dict):
        for key, value in tree.value.items():
            path = (*above, key)
            yield path, value.place
            yield from places(value, path)


def from_data(data: Any, place: str) -> Tree:
    """The same data, all of it at one place."""
    if isinstance(data, dict):
        return Tree({str(key): from_data(value, place) for key, value in data.items()}, place)
    if isinstance(data, list | tuple):
        return Tree([from_data(value, place) for value in data], place)
    return Tree(data, place)


def documents(text: str, path: str, rules: yaml_events.Rules = RULES) -> list[Tree]:
    """Return the documents of a YAML text.

    Raises:
        PolicyError: with the line at which the text stops making sense.
    """
    found: list[Tree] = []
    for document in yaml_events.documents(text, path, rules):
        found.append(_Planter(path, document.lines).tree(document.data, document.line))
    return found


class _Planter:
    """Makes trees of one document; what an alias stands for is one tree, however often it is used."""

    def __init__(self, path: str, lines: yaml_events.Lines) -> None:
        self.path = path
        self.lines = lines
        self.made: dict[int, Any] = {}

    def tree(self, data: Any, line: int) -> Tree:
        return Tree(self.value(data), at(self.path, line))

    def value(self, data: Any) -> Any:
        if not isinstance(data, dict | list):
            return data
        known = self.made.get(id(data))
        if known is not None:
            return known
        made: Any
        if isinstance(data, dict):
            lines = self.lines.of_keys[id(data)]
            made = {key: self.tree(value, lines[key]) for key, value in data.items()}
        else:
            numbers = self.lines.of_items[id(data)]
            made = [self.tree(value, n) for value, n in zip(data, numbers, strict=True)]
        self.made[id(data)] = made
        return made


def from_json(text: str, place: str) -> Any:
    """Read JSON; numbers that JSON does not have and keys that stand twice are errors.

    Raises:
        PolicyError: it is not JSON, at ``place``.
    """

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(found)
        if len(made) != len(found):
            keys = [key for key, _ in found]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise PolicyError(f"the key {shown(twice)} stands twice", place=place)
        return made

    def constant(name: str) -> NoReturn:
        raise PolicyError(f"{name} is no number of JSON", place=place)

    try:
        found = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise PolicyError(
            f"is not JSON: {error.msg} (column {error.colno})", place=place
        ) from error
    except (ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise PolicyError(f"is not JSON that can be read: {why}", place=place) from error
    _check_depth(found, place)
    return found


def _check_depth(data: Any, place: str) -> None:
    level = [data]
    for _ in range(RULES.depth + 1):
        level = [
            below
            for item in level
            if isinstance(item, dict | list)
            for below in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise PolicyError(f"nested deeper than {RULES.depth} levels", place=place)
