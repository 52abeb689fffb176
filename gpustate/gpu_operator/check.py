"""Holds a document against a table of leaves: every key known, every value of the right type.

:meth:`Checker.walk` goes on after a problem, for the linter, which wants all of them;
:meth:`Checker.settings` stops at the first that must not be read past.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from gpustate.errors import PolicyError
from gpustate.formats.words import kind_of, shown
from gpustate.gpu_operator import former, history, nearest
from gpustate.gpu_operator.blocks import Leaf, Leaves
from gpustate.gpu_operator.documents import Item, plain
from gpustate.gpu_operator.nearest import Meant

#: Keys that are written wrongly so often that they are taken for what is meant.
_MEANT = {"driver.upgradePolicy.gpuPodDeletion": "driver.upgradePolicy.podDeletion"}
#: A file with more unknown keys is another file.
_MOST_MEANT = 200
_ARTICLES = {"integer": "a whole number", "int-or-string": "a whole number or a string"}


#: Says of a line whether a key in it that does nothing is an error.
Strict = Callable[[int], bool]


def nowhere(line: int) -> bool:
    """In no line, as the API server sees it."""
    return False


def everywhere(line: int) -> bool:
    """In every line."""
    return True


@dataclass(frozen=True, slots=True)
class Setting:
    """One leaf that a file sets to something."""

    path: str  # as in the table: toolkit.env[].name
    item: Item
    leaf: Leaf

    @property
    def asks_for_something(self) -> bool:
        """It is neither false, zero or empty nor what holds without it."""
        value = plain(self.item)
        return bool(value) and value != self.leaf.default and value != "0s"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that stands wrongly in a document.

    Args:
        rule: ``unknown``, ``newer`` (than the release), ``former`` (the release has it, the newest does
            not), ``misnamed`` (read as what is meant), ``type``, ``value`` or ``nameless``.
        path: where, ``[]`` for the elements of lists.
        item: the value.
        message: what was seen and what was wanted.
        fix: the next move.
        meant: for unknown keys, what was probably meant.
    """

    rule: str
    path: str
    item: Item
    message: str
    fix: str | None = None
    meant: Meant | None = None

    def error(self, file: str) -> PolicyError:
        """The same as an error with its place."""
        return PolicyError(self.message, place=f"{file}:{self.item.line}", fix=self.fix)


@dataclass(slots=True)
class Branch:
    """An inner node of the schema; ``listed``: a list of such mappings."""

    listed: bool = False
    children: dict[str, Branch | Leaf] = field(default_factory=dict[str, "Branch | Leaf"])


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks one document.

    Args:
        file: its path, for places.
        leaves: the table.
        kind: of which kind the document is, for what its keys were called elsewhere and before.
        strict: an unknown key in this line is an error; otherwise it becomes a note.
        release: of the Operator that the document is for.
        notes: filled while checking.
        strangers: unknown keys so far; what each was meant to be is worked out for the first of them.
    """

    file: str
    leaves: Leaves
    kind: str = "clusterpolicy"
    strict: Strict = nowhere
    release: str = ""
    notes: list[str] = field(default_factory=list[str])
    strangers: list[str] = field(default_factory=list[str])

    def settings(self, spec: Item) -> tuple[Setting, ...]:
        """Return what a document's ``spec`` sets, in its order; ``null`` sets nothing.

        Raises:
            PolicyError: an unknown key or a value of the wrong type, with file and line.
        """
        found: list[Setting] = []
        for one in self.walk(spec):
            if isinstance(one, Setting):
                found.append(one)
            elif one.rule == "misnamed":
                self.notes.append(f"{self.file}:{one.item.line}: {one.message}")
            elif one.rule == "former":
                self.notes.append(
                    f"{self.file}:{one.item.line}: {one.path} is about Kubernetes objects, not nodes"
                )
            elif one.rule in ("unknown", "newer") and not self.strict(one.item.line):
                fix = f"; {one.fix}" if one.fix else ""
                self.notes.append(f"{self.file}:{one.item.line}: warning: {one.message}{fix}")
            else:
                raise one.error(self.file)
        return tuple(found)

    def known(self, spec: Item) -> Item:
        """The same document without keys that only later releases have, as that release sees it."""
        if not self.release or self.release == history.newest():
            return spec
        newer = {id(one.item) for one in self.walk(spec) if getattr(one, "rule", "") == "newer"}
        return _without(spec, newer) if newer else spec

    def walk(self, spec: Item) -> Iterator[Setting | Problem]:
        """Yield everything that a document sets, and everything that is wrong with it."""
        yield from self._mapping(spec, tree(tuple(self.leaves.items())), "")

    def _mapping(self, item: Item, branch: Branch, path: str) -> Iterator[Setting | Problem]:
        if item.value is None:
            return
        if not isinstance(item.value, dict):
            yield _wrong_type(path or "spec", item, "a mapping")
            return
        for key, child in item.value.items():
            below = f"{path}.{key}" if path else key
            known = branch.children.get(key)
            if known is None:
                meant = _MEANT.get(below) if self.kind == "clusterpolicy" else None
                if meant is None:
                    yield self._unknown(below, child, branch)
                    continue
                yield Problem(
                    "misnamed", below, child, f"{below} is read as {meant}", meant=Meant(meant)
                )
                known, below = branch.children[meant.rpartition(".")[2]], meant
            if isinstance(known, Leaf):
                yield from self._leaf(child, known, below)
            elif known.listed:
                yield from self._list(child, known, below)
            else:
                yield from self._mapping(child, known, below)

    def _list(self, item: Item, branch: Branch, path: str) -> Iterator[Setting | Problem]:
        if item.value is None:
            return
        if not isinstance(item.value, list):
            yield _wrong_type(path, item, "a list")
            return
        for child in item.value:
            if child.value is None:
                yield _wrong_type(f"an element of {path}", child, "a mapping")
                continue
            if path.endswith("env") and isinstance(child.value, dict) and not child.text("name"):
                yield Problem("nameless", path, child, f"an element of {path} has no name")
            yield from self._mapping(child, branch, f"{path}[]")

    def _leaf(self, item: Item, leaf: Leaf, path: str) -> Iterator[Setting | Problem]:
        if item.value is None:
            return
        wrong = _misfit(item, leaf.type, path)
        if wrong is not None:
            yield wrong
        elif leaf.choices and item.value not in leaf.choices:
            wanted = " or ".join(map(repr, leaf.choices))
            yield Problem("value", path, item, f"{path} is {shown(item.value)}, wanted {wanted}")
        elif self._newer(path):
            yield Problem(
                "newer",
                path,
                item,
                f"{path} is there since {history.since(self.kind, path)}, and this file is for "
                f"{self.release}, which drops it",
            )
        elif leaf.minimum is not None and item.value < leaf.minimum:
            yield Problem(
                "value", path, item, f"{path} is {item.value}, wanted {leaf.minimum} or more"
            )
        else:
            yield Setting(path, item, leaf)

    def _newer(self, path: str) -> bool:
        since = history.since(self.kind, path) if self.release else ""
        return bool(since) and history.before(self.release, since)

    def _unknown(self, path: str, item: Item, branch: Branch) -> Problem:
        release = self.release or history.newest()
        for old in former.FORMER:
            inside = not history.before(release, old.first) and not history.before(
                old.last, release
            )
            if inside and old.covers(path, self.kind):
                return Problem("former", path, item, f"{path} is read up to {old.last}")
        self.strangers.append(path)
        few = len(self.strangers) <= _MOST_MEANT
        meant = nearest.meant(path, item, self.leaves, self.kind) if few else None
        listed = nearest.listed(path.rpartition(".")[2], branch.children, sort=few)
        return Problem(
            "unknown",
            path,
            item,
            f"unknown key {shown(path)}, which the "
            f"{'chart' if self.kind == 'helm' else 'API server'} would drop in silence",
            meant.hint if meant is not None else f"known here: {listed}",
            meant,
        )


def _without(item: Item, left_out: set[int]) -> Item:
    """A copy of a document without some of its values."""
    if isinstance(item.value, dict):
        kept = {
            key: _without(child, left_out)
            for key, child in item.value.items()
            if id(child) not in left_out
        }
        return Item(kept, item.line)
    if isinstance(item.value, list):
        return Item([_without(child, left_out) for child in item.value], item.line)
    return item


def _misfit(item: Item, wanted: str, path: str) -> Problem | None:
    """What is wrong with a value of a leaf; ``None`` when nothing is."""
    value = item.value
    outer, _, rest = wanted.partition("[")
    if outer in ("list", "map"):
        kind = list if outer == "list" else dict
        if not isinstance(value, kind):
            return _wrong_type(path, item, "a list" if outer == "list" else "a mapping")
        children: list[Item] = value if isinstance(value, list) else list(value.values())
        inner = rest.removesuffix("]")
        found = (_misfit(child, inner, f"an element of {path}") for child in children)
        wrong = next((one for one in found if one is not None), None)
        return None if wrong is None else replace(wrong, path=path)
    if wanted == "any":
        return None
    number = isinstance(value, int) and not isinstance(value, bool)
    fits = {
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "integer": number,
        "int-or-string": number or isinstance(value, str),
        "quoted": number or isinstance(value, str),
    }
    if fits[wanted]:
        return None
    return _wrong_type(path, item, _ARTICLES.get(wanted, f"a {wanted}").replace("quoted", "string"))


def _wrong_type(path: str, item: Item, wanted: str) -> Problem:
    fix = None
    if "string" in wanted and isinstance(item.value, bool | int | float):
        fix = "put it in quotes"
    elif wanted == "a boolean" and isinstance(item.value, str):
        fix = "write true or false, without quotes"
    seen = kind_of(item.value)
    if not isinstance(item.value, dict | list) and item.value is not None:
        seen = f"{seen} ({shown(item.value)})"
    return Problem("type", path, item, f"{path} is {seen}, wanted {wanted}", fix)


@cache
def tree(leaves: tuple[tuple[str, Leaf], ...]) -> Branch:
    """The table as a tree."""
    root = Branch()
    for path, leaf in leaves:
        *above, last = path.split(".")
        branch = root
        for name in above:
            key = name.removesuffix("[]")
            below = branch.children.setdefault(key, Branch(listed=name.endswith("[]")))
            if not isinstance(below, Branch):
                raise TypeError(f"{path} goes on below a leaf")
            branch = below
        branch.children[last] = leaf
    return root
