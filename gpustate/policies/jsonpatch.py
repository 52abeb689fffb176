"""JSON Patch and JSON Merge Patch on trees with file and line of each value.

A list is a JSON patch, a mapping a merge patch. A JSON patch is applied completely or not at all.

Sources:
    RFC 6902 (JSON Patch), RFC 6901 (JSON Pointer), RFC 7386 (JSON Merge Patch).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn

from gpustate.errors import PolicyError
from gpustate.formats.words import kind_of, quote, quote_name
from gpustate.policies.trees import Path, Steps, Tree, plain

_OPERATIONS = {
    "add": ("value",),
    "remove": (),
    "replace": ("value",),
    "move": ("from",),
    "copy": ("from",),
    "test": ("value",),
}
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)


def merge(tree: Tree, patch: Tree, touched: dict[Path, str], above: Path = ()) -> Tree:
    """Apply a merge patch: ``null`` removes a key, mappings are merged, anything else is replaced.

    Args:
        tree: the document.
        patch: the patch.
        touched: changed paths and the places that change them are added here.
        above: path of ``tree``.
    """
    if not isinstance(patch.value, dict):
        touched[above] = patch.place
        return patch
    result = dict(tree.value) if isinstance(tree.value, dict) else {}
    for key, value in patch.value.items():
        path = (*above, key)
        if value.value is None:
            result.pop(key, None)
            touched[path] = value.place
        elif isinstance(value.value, dict):
            there = result.get(key)
            if not value.value and not (there is not None and isinstance(there.value, dict)):
                touched[path] = value.place
            place = there.place if there is not None else value.place
            result[key] = Tree(
                merge(there or Tree({}, value.place), value, touched, path).value, place
            )
        else:
            result[key] = value
            touched[path] = value.place
    return Tree(result, tree.place)


def apply(
    tree: Tree, patch: Tree, touched: dict[Path, str], home: Callable[[str], Path] = lambda _: ()
) -> Tree:
    """Apply a JSON patch.

    Args:
        tree, patch, touched: as for :func:`merge`.
        home: maps the first key of a path to the path of its parent.

    Raises:
        PolicyError: an operation is invalid or fails; the message has its place and number.
    """
    for number, operation in enumerate(patch.value, 1):
        tree = _Operation(operation, number, touched, home).on(tree)
    return tree


class _Operation:
    """One operation of a JSON patch."""

    def __init__(
        self,
        operation: Tree,
        number: int,
        touched: dict[Path, str],
        home: Callable[[str], Path],
    ) -> None:
        self.home = home
        self.place = operation.place
        self.number = number
        self.touched = touched
        if not isinstance(operation.value, dict):
            self.fail(f"is {kind_of(operation.value)}, expected a mapping")
        self.members: dict[str, Tree] = operation.value
        self.name = self.text("op")
        if self.name not in _OPERATIONS:
            self.fail(f"unknown op {quote(self.name)}", ", ".join(_OPERATIONS))
        for member in _OPERATIONS[self.name]:
            if member not in self.members:
                self.fail(f"{self.name} requires '{member}'")
        self.path = self.text("path")

    def fail(self, why: str, wanted: str = "") -> NoReturn:
        raise PolicyError(
            f"operation {self.number} of the patch: {why}",
            place=self.place,
            fix=f"use {wanted}" if wanted else None,
        )

    def text(self, member: str) -> str:
        tree = self.members.get(member)
        if tree is None:
            self.fail(f"missing '{member}'")
        if not isinstance(tree.value, str):
            self.fail(f"'{member}' is {kind_of(tree.value)}, expected a string")
        return tree.value

    def pointer(self, text: str) -> tuple[str, ...]:
        if not text:
            return ()
        if not text.startswith("/") or re.search(r"~(?![01])", text):
            self.fail(
                f"{quote(text)} is not a JSON pointer, expected '/a/b', with '/' in a key as '~1'"
            )
        keys = tuple(
            part.replace("~1", "/").replace("~0", "~") for part in text.removeprefix("/").split("/")
        )
        return (*self.home(keys[0]), *keys)

    def on(self, tree: Tree) -> Tree:
        pointer = self.pointer(self.path)
        if self.name == "test":
            value, expected = plain(self.at(tree, pointer)), plain(self.members["value"])
            if not _equal(value, expected):
                self.fail(
                    f"{self.path or 'the document'} is {quote(value)}, the test expects {quote(expected)}"
                )
            return tree
        self.touch(tree, pointer)
        if self.name == "remove":
            self.at(tree, pointer)
            return self.put(tree, pointer, None)
        if self.name in {"move", "copy"}:
            source = self.pointer(self.text("from"))
            value = self.at(tree, source)
            if self.name == "move":
                if pointer[: len(source)] == source and pointer != source:
                    self.fail("cannot move a value into itself")
                self.touch(tree, source)
                tree = self.put(tree, source, None)
        else:
            value = self.members["value"]
            if self.name == "replace":
                self.at(tree, pointer)
        inserting = self.name != "replace"
        return self.put(tree, pointer, Tree(value.value, self.place), inserting=inserting)

    def touch(self, tree: Tree, pointer: tuple[str, ...]) -> None:
        """Record the changed path; a change in a list counts as one of the list."""
        keys: list[str] = []
        here: Tree | None = tree
        for key in pointer:
            if here is not None and isinstance(here.value, list):
                break
            keys.append(key)
            here = here.get(key) if here is not None else None
        self.touched[tuple(keys)] = self.place

    def at(self, tree: Tree, pointer: tuple[str, ...]) -> Tree:
        for depth, key in enumerate(pointer):
            here = "/" + "/".join(pointer[: depth + 1])
            if isinstance(tree.value, dict):
                if key not in tree.value:
                    self.fail(f"no value at {quote(here)}")
                tree = tree.value[key]
            elif isinstance(tree.value, list):
                index = self.index(key, len(tree.value) - 1, here)
                tree = tree.value[index]
            else:
                self.fail(f"no value at {quote(here)}: its parent is {kind_of(tree.value)}")
        return tree

    def index(self, key: str, most: int, here: str) -> int:
        if not _INDEX.fullmatch(key) or int(key) > most:
            self.fail(f"{quote(here)}: the list has no index {quote_name(key)}")
        return int(key)

    def put(
        self, tree: Tree, pointer: Steps, value: Tree | None, *, inserting: bool = False
    ) -> Tree:
        """A tree with the value at a pointer replaced, inserted, or removed (``None``)."""
        if not pointer:
            return value if value is not None else Tree(None, self.place)
        key, rest = str(pointer[0]), pointer[1:]
        result: Any
        if isinstance(tree.value, dict):
            result = dict(tree.value)
            if rest:
                result[key] = self.put(self.at(tree, (key,)), rest, value, inserting=inserting)
            elif value is None:
                result.pop(key)
            else:
                result[key] = value
            return Tree(result, tree.place)
        if isinstance(tree.value, list):
            result = list(tree.value)
            here = self.path
            if rest:
                index = self.index(key, len(result) - 1, here)
                result[index] = self.put(result[index], rest, value, inserting=inserting)
            elif value is None:
                result.pop(self.index(key, len(result) - 1, here))
            elif inserting:
                result.insert(
                    len(result) if key == "-" else self.index(key, len(result), here), value
                )
            else:
                result[self.index(key, len(result) - 1, here)] = value
            return Tree(result, tree.place)
        self.fail(f"no value at {quote(self.path)}: its parent is {kind_of(tree.value)}")


def _equal(one: Any, other: Any) -> bool:
    """Equality of JSON: true is not 1, and 1 is 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    return type(one) is type(other) and bool(one == other)
