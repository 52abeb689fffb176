"""Data with the place of every value, so that changed documents keep origins.

Trees are immutable: a change creates a new one that shares unchanged parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpustate.documents import Json
from gpustate.errors import PolicyError
from gpustate.formats import strict_json, yaml_events
from gpustate.formats.words import at, kind_of, quote_name

#: Keys of mappings, and indices of lists.
Steps = tuple[str | int, ...]
Path = tuple[str, ...]

RULES = yaml_events.Rules(
    PolicyError,
    depth=60,
    values=500_000,
    tags={yaml_events.FLOAT: yaml_events.Written},
    text_keys=True,
)


@dataclass(frozen=True, slots=True)
class Tree:
    """A value and its place.

    Args:
        value: a scalar, a dict of trees by key, or a list of trees.
        place: ``file:line``, or the option on the command line.
    """

    value: Any
    place: str

    def get(self, *keys: str) -> Tree | None:
        """Follow keys down mappings; ``None`` if one is missing."""
        tree: Tree | None = self
        for key in keys:
            if tree is None or not isinstance(tree.value, dict):
                return None
            tree = tree.value.get(key)
        return tree


def plain(tree: Tree) -> Any:
    """The data without places."""
    if isinstance(tree.value, dict):
        return {key: plain(value) for key, value in tree.value.items()}
    if isinstance(tree.value, list):
        return [plain(value) for value in tree.value]
    return tree.value


def places(tree: Tree, above: Path = ()) -> Iterator[tuple[Path, str]]:
    """The place of every value by its keys; items of a list have the list's place."""
    if isinstance(tree.value, dict):
        for key, value in tree.value.items():
            path = (*above, key)
            yield path, value.place
            yield from places(value, path)


def from_data(data: Any, place: str) -> Tree:
    """Data with one place for all values."""
    if isinstance(data, dict):
        return Tree({str(key): from_data(value, place) for key, value in data.items()}, place)
    if isinstance(data, list | tuple):
        return Tree([from_data(value, place) for value in data], place)
    return Tree(data, place)


def housed(tree: Tree, home: Callable[[str], Path]) -> Tree:
    """Move values of a mapping below their parents.

    Args:
        tree: the mapping.
        home: maps a key to the path of its parent.

    Raises:
        PolicyError: a value is there already, or its parent is not a mapping.
    """
    result: Json = {}
    for key, value in sorted(tree.value.items(), key=lambda item: len(home(item[0]))):
        level = result
        for name in home(key):
            above = level.get(name) or Tree(None, tree.place)
            if not isinstance(above.value, dict | None):
                kind = kind_of(above.value)
                raise PolicyError(f"{name} is {kind}, wanted a mapping", place=above.place)
            level[name] = Tree(dict(above.value or {}), above.place)
            level = level[name].value
        if key in level:
            raise PolicyError(
                f"{quote_name(key)} is set twice, once below its own section", place=value.place
            )
        level[key] = value
    return Tree(result, tree.place)


def documents(text: str, path: str, rules: yaml_events.Rules = RULES) -> list[Tree]:
    """Return the documents of a YAML text.

    Raises:
        PolicyError: invalid YAML, with the line.
    """

    def tree(value: Any, line: int) -> Tree:
        return Tree(value, at(path, line))

    return [document.wrapped(tree) for document in yaml_events.documents(text, path, rules)]


def from_json(text: str, place: str) -> Any:
    """Read JSON; invalid numbers and duplicate keys are errors.

    Raises:
        PolicyError: it is not JSON, at ``place``.
    """

    data = strict_json.read(text, place, PolicyError, lined=False)
    _check_depth(data, place)
    return data


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
