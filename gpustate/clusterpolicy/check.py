"""Holds a document against the table of leaves: every key known, every value of the right type."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from gpustate.clusterpolicy.blocks import Leaf, Leaves
from gpustate.clusterpolicy.documents import Item
from gpustate.errors import PolicyError
from gpustate.text.words import kind_of, shown

#: Keys that are written wrongly so often that they are taken for what is meant.
_MEANT = {"driver.upgradePolicy.gpuPodDeletion": "driver.upgradePolicy.podDeletion"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One leaf that a file sets to something."""

    path: str  # as in the table: toolkit.env[].name
    item: Item
    leaf: Leaf

    @property
    def asks_for_something(self) -> bool:
        """It is neither false, zero or empty nor what holds without it."""
        value = self.item.value
        return bool(value) and value != self.leaf.default and value != "0s"


@dataclass(slots=True)
class _Branch:
    """An inner node of the schema; ``listed``: a list of such mappings."""

    listed: bool = False
    children: dict[str, _Branch | Leaf] = field(default_factory=dict[str, "_Branch | Leaf"])


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks one document.

    Args:
        file: its path, for places.
        leaves: the table.
        strict: an unknown key is an error; otherwise it becomes a note.
        notes: filled while checking.
    """

    file: str
    leaves: Leaves
    strict: bool = True
    notes: list[str] = field(default_factory=list[str])

    def settings(self, spec: Item) -> tuple[Setting, ...]:
        """Return what a document's ``spec`` sets, in its order; ``null`` sets nothing.

        Raises:
            PolicyError: an unknown key or a value of the wrong type, with file and line.
        """
        return tuple(self._mapping(spec, _tree(tuple(self.leaves.items())), ""))

    def _mapping(self, item: Item, branch: _Branch, path: str) -> Iterator[Setting]:
        if item.value is None:
            return
        if not isinstance(item.value, dict):
            raise self._wrong_type(path or "spec", item, "a mapping")
        for key, child in item.value.items():
            below = f"{path}.{key}" if path else key
            known = branch.children.get(key)
            if known is None:
                meant = _MEANT.get(below)
                if meant is None:
                    self._unknown(below, child, branch)
                    continue
                self.notes.append(f"{self._place(child)}: {below} is read as {meant}")
                known, below = branch.children[meant.rpartition(".")[2]], meant
            if isinstance(known, Leaf):
                yield from self._leaf(child, known, below)
            elif known.listed:
                yield from self._list(child, known, below)
            else:
                yield from self._mapping(child, known, below)

    def _list(self, item: Item, branch: _Branch, path: str) -> Iterator[Setting]:
        if item.value is None:
            return
        if not isinstance(item.value, list):
            raise self._wrong_type(path, item, "a list")
        for child in item.value:
            if child.value is None:
                raise self._wrong_type(f"an element of {path}", child, "a mapping")
            if path.endswith("env") and isinstance(child.value, dict) and not child.text("name"):
                raise PolicyError(f"an element of {path} has no name", place=self._place(child))
            yield from self._mapping(child, branch, f"{path}[]")

    def _leaf(self, item: Item, leaf: Leaf, path: str) -> Iterator[Setting]:
        if item.value is None:
            return
        self._check(item, leaf.type, path)
        if leaf.choices and item.value not in leaf.choices:
            raise PolicyError(
                f"{path} is {shown(item.value)}, wanted {' or '.join(map(repr, leaf.choices))}",
                place=self._place(item),
            )
        if leaf.minimum is not None and item.value < leaf.minimum:
            raise PolicyError(
                f"{path} is {item.value}, wanted {leaf.minimum} or more", place=self._place(item)
            )
        yield Setting(path, item, leaf)

    def _check(self, item: Item, wanted: str, path: str) -> None:
        value = item.value
        outer, _, rest = wanted.partition("[")
        inner = rest.removesuffix("]")
        if outer == "list" or outer == "map":
            kind = list if outer == "list" else dict
            if not isinstance(value, kind):
                raise self._wrong_type(path, item, "a list" if outer == "list" else "a mapping")
            for child in value if isinstance(value, list) else value.values():
                self._check(child, inner, f"an element of {path}")
            return
        if wanted == "any":
            return
        number = isinstance(value, int) and not isinstance(value, bool)
        fits = {
            "string": isinstance(value, str),
            "boolean": isinstance(value, bool),
            "integer": number,
            "int-or-string": number or isinstance(value, str),
        }
        if not fits[wanted]:
            names = {"integer": "a whole number", "int-or-string": "a whole number or a string"}
            raise self._wrong_type(path, item, names.get(wanted, f"a {wanted}"))

    def _wrong_type(self, path: str, item: Item, wanted: str) -> PolicyError:
        fix = None
        if "string" in wanted and isinstance(item.value, bool | int | float):
            fix = "put it in quotes"
        elif wanted == "a boolean" and isinstance(item.value, str):
            fix = "write true or false, without quotes"
        seen = kind_of(item.value)
        if not isinstance(item.value, dict | list) and item.value is not None:
            seen = f"{seen} ({shown(item.value)})"
        return PolicyError(f"{path} is {seen}, wanted {wanted}", place=self._place(item), fix=fix)

    def _unknown(self, path: str, item: Item, branch: _Branch) -> None:
        near = self._nearest(path, branch)
        hint = (
            f"did you mean {near}" if near else f"known here: {', '.join(sorted(branch.children))}"
        )
        if not self.strict:
            self.notes.append(f"{self._place(item)}: unknown key {path} does nothing; {hint}")
            return
        raise PolicyError(
            f"unknown key {shown(path)}, which the API server would drop in silence",
            place=self._place(item),
            fix=hint,
        )

    def _nearest(self, path: str, branch: _Branch) -> str | None:
        """A sibling with a similar name, else the same name elsewhere, else any similar path."""
        above, _, key = path.rpartition(".")
        folded = {name.lower(): name for name in branch.children}
        beside = difflib.get_close_matches(key.lower(), folded, 1, 0.7)
        if beside:
            return f"{above}.{folded[beside[0]]}" if above else folded[beside[0]]
        elsewhere = [known for known in self.leaves if known.rpartition(".")[2] == key]
        found = difflib.get_close_matches(
            path, elsewhere or self.leaves, 1, 0 if elsewhere else 0.6
        )
        return found[0] if found else None

    def _place(self, item: Item) -> str:
        return f"{self.file}:{item.line}"


@cache
def _tree(leaves: tuple[tuple[str, Leaf], ...]) -> _Branch:
    root = _Branch()
    for path, leaf in leaves:
        *above, last = path.split(".")
        branch = root
        for name in above:
            key = name.removesuffix("[]")
            below = branch.children.setdefault(key, _Branch(listed=name.endswith("[]")))
            assert isinstance(below, _Branch), path
            branch = below
        branch.children[last] = leaf
    return root
