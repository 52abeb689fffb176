"""JSON patch and JSON merge patch, on trees that know where their values stand.

A patch that is a list is a JSON patch, one that is a mapping a merge patch. A JSON patch is carried
out whole or not at all.

Sources:
    RFC 6902 (JSON Patch), RFC 6901 (JSON Pointer), RFC 7386 (JSON Merge Patch).
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

from gpustate.errors import PolicyError
from gpustate.formats.words import kind_of, named, shown
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
    """Carry out a merge patch: ``null`` takes away, mappings are merged, the rest is replaced.

    Args:
        tree: what is changed.
        patch: what to change.
        touched: takes the paths that the patch names, and its places.
        above: where ``tree`` is.
    """
    if not isinstance(patch.value, dict):
        touched[above] = patch.place
        return patch
    made = dict(tree.value) if isinstance(tree.value, dict) else {}
    for key, value in patch.value.items():
        path = (*above, key)
        if value.value is None:
            made.pop(key, None)
            touched[path] = value.place
        elif isinstance(value.value, dict):
            there = made.get(key)
            if not value.value and not (there is not None and isinstance(there.value, dict)):
                touched[path] = value.place
            place = there.place if there is not None else value.place
            made[key] = Tree(
                merge(there or Tree({}, value.place), value, touched, path).value, place
            )
        else:
            made[key] = value
            touched[path] = value.place
    return Tree(made, tree.place)


def apply(tree: Tree, patch: Tree, touched: dict[Path, str]) -> Tree:
    """Carry out a JSON patch.

    Raises:
        PolicyError: an operation is wrong or cannot be done, with its place and number.
    """
    for number, operation in enumerate(patch.value, 1):
        tree = _Operation(operation, number, touched).on(tree)
    return tree


class _Operation:
    """One operation of a JSON patch."""

    def __init__(self, operation: Tree, number: int, touched: dict[Path, str]) -> None:
        self.place = operation.place
        self.number = number
        self.touched = touched
        if not isinstance(operation.value, dict):
            self.fail(f"is {kind_of(operation.value)}, wanted a mapping")
        self.members: dict[str, Tree] = operation.value
        self.name = self.text("op")
        if self.name not in _OPERATIONS:
            self.fail(f"there is no op {shown(self.name)}", ", ".join(_OPERATIONS))
        for member in _OPERATIONS[self.name]:
            if member not in self.members:
                self.fail(f"{self.name} lacks '{member}'")
        self.path = self.text("path")

    def fail(self, why: str, wanted: str = "") -> NoReturn:
        raise PolicyError(
            f"operation {self.number} of the patch: {why}",
            place=self.place,
            fix=f"there are {wanted}" if wanted else None,
        )

    def text(self, member: str) -> str:
        tree = self.members.get(member)
        if tree is None:
            self.fail(f"lacks '{member}'")
        if not isinstance(tree.value, str):
            self.fail(f"'{member}' is {kind_of(tree.value)}, wanted a string")
        return tree.value

    def pointer(self, text: str) -> tuple[str, ...]:
        if not text:
            return ()
        if not text.startswith("/") or re.search(r"~(?![01])", text):
            self.fail(f"{shown(text)} is no JSON pointer, wanted '/a/b', with '/' in a key as '~1'")
        return tuple(
            part.replace("~1", "/").replace("~0", "~") for part in text.removeprefix("/").split("/")
        )

    def on(self, tree: Tree) -> Tree:
        pointer = self.pointer(self.path)
        if self.name == "test":
            seen, wanted = plain(self.at(tree, pointer)), plain(self.members["value"])
            if not _equal(seen, wanted):
                self.fail(
                    f"{self.path or 'it'} is {shown(seen)}, and the test wants {shown(wanted)}"
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
        """Remember what changes; in a list, the list does."""
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
                    self.fail(f"there is nothing at {shown(here)}")
                tree = tree.value[key]
            elif isinstance(tree.value, list):
                index = self.index(key, len(tree.value) - 1, here)
                tree = tree.value[index]
            else:
                self.fail(f"there is nothing at {shown(here)}: {kind_of(tree.value)} is above it")
        return tree

    def index(self, key: str, most: int, here: str) -> int:
        if not _INDEX.fullmatch(key) or int(key) > most:
            self.fail(f"{shown(here)}: the list has no index {named(key)}")
        return int(key)

    def put(
        self, tree: Tree, pointer: Steps, value: Tree | None, *, inserting: bool = False
    ) -> Tree:
        """A tree with the value at a pointer replaced, inserted, or (``None``) taken away."""
        if not pointer:
            return value if value is not None else Tree(None, self.place)
        key, rest = str(pointer[0]), pointer[1:]
        made: Any
        if isinstance(tree.value, dict):
            made = dict(tree.value)
            if rest:
                made[key] = self.put(self.at(tree, (key,)), rest, value, inserting=inserting)
            elif value is None:
                made.pop(key)
            else:
                made[key] = value
            return Tree(made, tree.place)
        if isinstance(tree.value, list):
            made = list(tree.value)
            here = self.path
            if rest:
                index = self.index(key, len(made) - 1, here)
                made[index] = self.put(made[index], rest, value, inserting=inserting)
            elif value is None:
                made.pop(self.index(key, len(made) - 1, here))
            elif inserting:
                made.insert(len(made) if key == "-" else self.index(key, len(made), here), value)
            else:
                made[self.index(key, len(made) - 1, here)] = value
            return Tree(made, tree.place)
        self.fail(f"there is nothing at {shown(self.path)}: {kind_of(tree.value)} is above it")


def _equal(one: Any, other: Any) -> bool:
    """Equal as JSON has it: true is no 1, and 1 is 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    return type(one) is type(other) and bool(one == other)
