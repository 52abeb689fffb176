"""JSON Patch and JSON Merge Patch on trees with file and line of each value.

A list is a JSON patch, a mapping a merge patch. A JSON patch is applied completely or not at all.

Sources:
    RFC 6902 (JSON Patch), RFC 6901 (JSON Pointer), RFC 7386 (JSON Merge Patch); the library jsonpatch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jsonpatch
from jsonpointer import JsonPointer, JsonPointerException

from gpustate.core.layers import REMOVED
from gpustate.documents import Json
from gpustate.errors import PolicyError
from gpustate.formats.words import kind_of, quote
from gpustate.policies.trees import Path, Tree, from_data, plain

#: The value that a path has while the document does not set it, or ``REMOVED``.
Default = Callable[[Path], Any]


def no_defaults(_: Path) -> Any:
    """Nothing has a default."""
    return REMOVED


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
            target = result.get(key)
            if not value.value and not (target is not None and isinstance(target.value, dict)):
                touched[path] = value.place
            place = target.place if target is not None else value.place
            result[key] = Tree(
                merge(target or Tree({}, value.place), value, touched, path).value, place
            )
        else:
            result[key] = value
            touched[path] = value.place
    return Tree(result, tree.place)


def apply(
    tree: Tree,
    patch: Tree,
    touched: dict[Path, str],
    default: Default = no_defaults,
    home: Callable[[str], Path] = lambda _: (),
) -> Tree:
    """Apply a JSON patch.

    Args:
        tree: the document.
        patch: a list of operations.
        touched: changed paths and the places that change them are added here.
        default: of values that the document does not set; an operation on one of them finds it there.
        home: maps the first key of a path to the path of its parent.

    Raises:
        PolicyError: an operation is invalid or fails; the message has its place and number.
    """
    for number, operation in enumerate(patch.value, 1):
        try:
            tree = _applied(tree, operation, touched, default, home)
        except (jsonpatch.JsonPatchException, JsonPointerException) as error:
            words = " ".join(str(error).split()) or type(error).__name__
            path = operation.get("path")
            at = f" ({path.value})" if path is not None and isinstance(path.value, str) else ""
            raise PolicyError(
                f"operation {number} of the patch{at}: {words}", place=operation.place
            ) from None
    return tree


class _Pointer(JsonPointer):
    """A pointer into a tree."""

    def walk(self, doc: Any, part: str | int) -> Any:
        return super().walk(doc.value if isinstance(doc, Tree) else doc, part)

    def to_last(self, doc: Tree) -> tuple[Any, Any]:
        if not self.parts:
            return doc, None
        tree = doc
        for part in self.parts[:-1]:
            tree = self.walk(tree, part)
        if not isinstance(tree, Tree):
            raise JsonPointerException(f"{self.path!r} goes through the end of a list")
        return tree.value, self.get_part(tree.value, self.parts[-1])


def _applied(
    tree: Tree,
    operation: Tree,
    touched: dict[Path, str],
    default: Default,
    home: Callable[[str], Path],
) -> Tree:
    if not isinstance(operation.value, dict):
        raise jsonpatch.InvalidJsonPatch(f"is {kind_of(operation.value)}, expected a mapping")
    members: Json = {
        key: member if key == "value" else plain(member) for key, member in operation.value.items()
    }
    changes = {"path", "from"} if members.get("op") == "move" else {"path"}
    for member in ("path", "from"):
        text = members.get(member)
        if text is None and member not in members:
            continue
        if not isinstance(text, str):
            raise jsonpatch.InvalidJsonPatch(f"'{member}' is {kind_of(text)}, expected a string")
        keys = tuple(_Pointer(text).parts)
        keys = (*home(keys[0]), *keys) if keys else keys
        members[member] = JsonPointer.from_parts(keys).path
        tree = _filled(tree, keys, default, operation.place)
        if member in changes and members.get("op") != "test":
            touched[_mappings(tree, keys)] = operation.place
    if members.get("op") == "test" and "path" in members:
        expected = plain(operation.value["value"]) if "value" in operation.value else None
        try:
            jsonpatch.JsonPatch([{**plain(operation), "path": members["path"]}]).apply(plain(tree))
        except jsonpatch.JsonPatchTestFailed:
            raise jsonpatch.JsonPatchTestFailed(f"the test expects {quote(expected)}") from None
        return tree
    changed: Tree = jsonpatch.JsonPatch([members], pointer_cls=_Pointer).apply(tree)
    return changed


def _mappings(tree: Tree, keys: Path) -> Path:
    """The part of a path above the first list: a change in a list counts as one of the list."""
    current: Tree | None = tree
    for depth, key in enumerate(keys):
        if current is not None and isinstance(current.value, list):
            return keys[:depth]
        current = current.get(key) if current is not None else None
    return keys


def _filled(tree: Tree, keys: Path, default: Default, place: str, above: Path = ()) -> Tree:
    """The tree with the defaults along a path."""
    if not keys or not isinstance(tree.value, dict):
        return tree
    path = (*above, keys[0])
    child = tree.value.get(keys[0])
    if child is None:
        value = default(path)
        if value is REMOVED:
            return tree
        child = from_data(value, place)
    elif child.value is None and keys[1:] and default((*path, keys[1])) is not REMOVED:
        child = Tree({}, child.place)
    below = _filled(child, keys[1:], default, place, path)
    return Tree({**tree.value, keys[0]: below}, tree.place)
