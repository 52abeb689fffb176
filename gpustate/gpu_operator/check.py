"""Check a document against a table of fields: every key known, every value of the right type.

:meth:`Checker.walk` continues after a problem, for the linter. :meth:`Checker.settings` stops at the
first one that makes the rest unreliable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from gpustate.errors import PolicyError
from gpustate.formats.quantities import is_quantity
from gpustate.formats.words import kind_of, quote
from gpustate.gpu_operator import history, nearest
from gpustate.gpu_operator.documents import Item, placeholder, plain
from gpustate.gpu_operator.keys import Field, Fields
from gpustate.gpu_operator.nearest import Suggestion

#: Common misspellings, read as the correct key.
_MISNAMED = {"driver.upgradePolicy.gpuPodDeletion": "driver.upgradePolicy.podDeletion"}
#: A file with more unknown keys is not one of the Operator's.
_MOST_MEANT = 200
_ARTICLES = {
    "integer": "a whole number",
    "int-or-string": "a whole number or a string",
    "quantity": "a quantity such as 500m or 2Gi",
}


#: Decides by line whether an unknown key is an error.
Strict = Callable[[int], bool]


def never_strict(line: int) -> bool:
    """Unknown keys are never errors, as in the API server."""
    return False


def always_strict(line: int) -> bool:
    """Unknown keys are errors everywhere."""
    return True


@dataclass(frozen=True, slots=True)
class Setting:
    """One field that a file sets."""

    path: str  # as in the table: toolkit.env[].name
    item: Item
    field: Field

    @property
    def has_effect(self) -> bool:
        """Whether it differs from false, zero, empty and the default."""
        value = plain(self.item)
        return bool(value) and value != self.field.default and value != "0s"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong in a document.

    Args:
        rule: ``unknown``, ``newer`` (than the release), ``misnamed`` (read under the correct name), ``rendered`` (read as the chart renders it),
            ``type``, ``value`` or ``nameless``.
        path: where, ``[]`` for the elements of lists.
        item: the value.
        message: observed and expected value.
        fix: the next step.
        suggestion: for unknown keys, the key that was probably meant.
    """

    rule: str
    path: str
    item: Item
    message: str
    fix: str | None = None
    suggestion: Suggestion | None = None

    def error(self, file: str) -> PolicyError:
        """The problem as an error with its place."""
        return PolicyError(self.message, place=f"{file}:{self.item.line}", fix=self.fix)


@dataclass(slots=True)
class Branch:
    """An inner node of the schema; ``listed`` for a list of such mappings."""

    listed: bool = False
    children: dict[str, Branch | Field] = field(default_factory=dict[str, "Branch | Field"])


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks one document.

    Args:
        file: its path, for places.
        fields: the table.
        kind: of the document, to suggest names of keys in other kinds and releases.
        strict: whether an unknown key in a line is an error; otherwise it becomes a note.
        release: of the Operator that the document is for.
        notes: filled while checking.
        unknown: unknown keys so far; suggestions are computed for the first of them only.
    """

    file: str
    fields: Fields
    kind: str = "clusterpolicy"
    strict: Strict = never_strict
    release: str = ""
    notes: list[str] = field(default_factory=list[str])
    unknown: list[str] = field(default_factory=list[str])

    def settings(self, spec: Item) -> tuple[Setting, ...]:
        """Return the settings of a document's ``spec`` in its order; ``null`` sets nothing.

        Raises:
            PolicyError: an unknown key or a value of the wrong type, with file and line.
        """
        settings: list[Setting] = []
        for entry in self.walk(spec):
            if isinstance(entry, Setting):
                settings.append(entry)
            elif entry.rule == "misnamed":
                self.notes.append(f"{self.file}:{entry.item.line}: {entry.message}")
            elif entry.rule == "rendered":
                self.notes.append(
                    f"{self.file}:{entry.item.line}: warning: {entry.message}; {entry.fix}"
                )
            elif entry.rule in ("unknown", "newer") and not self.strict(entry.item.line):
                fix = f"; {entry.fix}" if entry.fix else ""
                self.notes.append(
                    f"{self.file}:{entry.item.line}: warning: {entry.message}{fix}; it is ignored"
                )
            else:
                raise entry.error(self.file)
        return tuple(settings)

    def as_of_release(self, spec: Item) -> Item:
        """The document as its release sees it: as the chart renders it, without keys of later releases."""
        spec = self.as_rendered(spec)
        if not self.release or self.release == history.newest():
            return spec
        newer = {
            id(entry.item) for entry in self.walk(spec) if getattr(entry, "rule", "") == "newer"
        }
        return _without(spec, newer) if newer else spec

    def as_rendered(self, spec: Item) -> Item:
        """The document as the chart's template renders it."""
        return rendered(spec, tree(tuple(self.fields.items())))

    def walk(self, spec: Item) -> Iterator[Setting | Problem]:
        """Yield all settings of a document and all problems in it."""
        yield from self._mapping(spec, tree(tuple(self.fields.items())), "")

    def _mapping(self, item: Item, branch: Branch, path: str) -> Iterator[Setting | Problem]:
        if item.value is None:
            return
        if not isinstance(item.value, dict):
            yield _wrong_type(path or "spec", item, "a mapping")
            return
        for key, child in item.value.items():
            below = f"{path}.{key}" if path else key
            schema = branch.children.get(key)
            if schema is None:
                real_path = _MISNAMED.get(below) if self.kind == "clusterpolicy" else None
                if real_path is None:
                    yield self._unknown(below, child, branch)
                    continue
                yield Problem(
                    "misnamed",
                    below,
                    child,
                    f"{below} is read as {real_path}",
                    suggestion=Suggestion(real_path),
                )
                schema, below = branch.children[real_path.rpartition(".")[2]], real_path
            if isinstance(schema, Field):
                yield from self._field(child, schema, below)
            elif schema.listed:
                yield from self._list(child, schema, below)
            else:
                yield from self._mapping(child, schema, below)

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

    def _field(self, item: Item, spec: Field, path: str) -> Iterator[Setting | Problem]:
        if item.value is None:
            return
        parsed = _parsed_again(item, spec)
        if parsed is not item:
            yield _rendered(path, item, parsed)
            item = parsed
            if item.value is None:
                return
        wrong = _misfit(item, spec.type, path)
        chosen = not spec.choices or item.value in spec.choices
        unfilled = placeholder(item.value, self.file) if wrong is not None or not chosen else None
        if unfilled is not None:
            message = f"{path} is {quote(item.value)}, a placeholder of another program"
            yield Problem("type", path, item, message, unfilled)
        elif wrong is not None:
            yield wrong
        elif not chosen:
            choices = " or ".join(map(repr, spec.choices))
            yield Problem("value", path, item, f"{path} is {quote(item.value)}, wanted {choices}")
        elif self._newer(path):
            yield Problem(
                "newer",
                path,
                item,
                f"{path} was added in {history.since(self.kind, path)}, and {self.release}, the release "
                "this file is for, drops it",
            )
        elif spec.minimum is not None and item.value < spec.minimum:
            yield Problem(
                "value", path, item, f"{path} is {item.value}, wanted {spec.minimum} or more"
            )
        else:
            yield Setting(path, item, spec)

    def _newer(self, path: str) -> bool:
        since = history.since(self.kind, path) if self.release else ""
        return bool(since) and history.before(self.release, since)

    def _unknown(self, path: str, item: Item, branch: Branch) -> Problem:
        self.unknown.append(path)
        few = len(self.unknown) <= _MOST_MEANT
        suggestion = nearest.suggest(path, item, self.fields, self.kind) if few else None
        listed = nearest.listed(path.rpartition(".")[2], branch.children, sort=few)
        return Problem(
            "unknown",
            path,
            item,
            f"unknown key {quote(path)}, which the "
            f"{'chart' if self.kind == 'helm' else 'API server'} would silently drop",
            suggestion.hint if suggestion is not None else f"supported keys: {listed}",
            suggestion,
        )


#: Texts that YAML parses as booleans where the template writes them without quotes.
_BOOLEANS = {
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
}
_INTEGER = re.compile(r"0|[1-9][0-9]{0,17}")


def rendered(item: Item, branch: Branch) -> Item:
    """Values as the chart's template renders them; the same item where nothing changes."""
    if not isinstance(item.value, dict):
        return item
    children: dict[str, Item] = {}
    for key, child in item.value.items():
        schema = branch.children.get(key)
        if isinstance(schema, Field):
            children[key] = _parsed_again(child, schema)
        elif isinstance(schema, Branch) and not schema.listed:
            children[key] = rendered(child, schema)
        else:
            children[key] = child
    same = all(children[key] is child for key, child in item.value.items())
    return item if same else Item(children, item.line)


def _parsed_again(item: Item, spec: Field) -> Item:
    """A string in the type that it has once the template wrote it without quotes."""
    value = item.value
    if not spec.parsed_again or not isinstance(value, str):
        return item
    stripped = value.strip()
    if not stripped and (spec.type != "string" or (spec.choices and value not in spec.choices)):
        return Item(None, item.line)
    if spec.type == "boolean" and stripped in _BOOLEANS:
        return Item(_BOOLEANS[stripped], item.line)
    if spec.type == "integer" and _INTEGER.fullmatch(stripped):
        return Item(int(stripped), item.line)
    return item


def _rendered(path: str, item: Item, parsed: Item) -> Problem:
    if parsed.value is None:
        message, fix = "which the chart renders as null: the default applies", "remove the key"
    else:
        text = str(parsed.value).lower()
        message, fix = f"which the chart renders as {text}", f"write {text}, without quotes"
    return Problem(
        "rendered", path, item, f"{path} is the string {quote(item.value)}, {message}", fix
    )


def _without(item: Item, left_out: set[int]) -> Item:
    """A copy of a document without some of its values."""
    if isinstance(item.value, dict):
        children = {
            key: _without(child, left_out)
            for key, child in item.value.items()
            if id(child) not in left_out
        }
        return Item(children, item.line)
    if isinstance(item.value, list):
        return Item([_without(child, left_out) for child in item.value], item.line)
    return item


def _misfit(item: Item, type_: str, path: str) -> Problem | None:
    """The problem with a value; ``None`` if it is valid."""
    value = item.value
    outer, _, parameter = type_.partition("[")
    if outer in ("list", "map"):
        kind = list if outer == "list" else dict
        if not isinstance(value, kind):
            return _wrong_type(path, item, "a list" if outer == "list" else "a mapping")
        children: list[tuple[str, Item]] = (
            [(f"an element of {path}", element) for element in value]
            if isinstance(value, list)
            else [(f"{path}.{key}", element) for key, element in value.items()]
        )
        inner = parameter.removesuffix("]")
        problems = (_misfit(child, inner, place) for place, child in children)
        wrong = next((problem for problem in problems if problem is not None), None)
        return None if wrong is None else replace(wrong, path=path)
    if type_ == "any":
        return None
    number = isinstance(value, int) and not isinstance(value, bool)
    fits = {
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "integer": number,
        "int-or-string": number or isinstance(value, str),
        "quoted": number or isinstance(value, str),
        "quantity": is_quantity(value) and not isinstance(value, float),
    }
    if fits[type_]:
        return None
    return _wrong_type(path, item, _ARTICLES.get(type_, f"a {type_}").replace("quoted", "string"))


def _wrong_type(path: str, item: Item, expected: str) -> Problem:
    fix = None
    numbers = bool | int | float if "string" in expected else float
    if ("string" in expected or "quantity" in expected) and isinstance(item.value, numbers):
        fix = "put it in quotes"
    elif expected == "a boolean" and isinstance(item.value, str):
        fix = "write true or false, without quotes"
    actual = kind_of(item.value)
    if not isinstance(item.value, dict | list) and item.value is not None:
        actual = f"{actual} ({quote(item.value)})"
    return Problem("type", path, item, f"{path} is {actual}, wanted {expected}", fix)


@cache
def tree(fields: tuple[tuple[str, Field], ...]) -> Branch:
    """The table as a tree."""
    root = Branch()
    for path, spec in fields:
        *above, last = path.split(".")
        branch = root
        for name in above:
            key = name.removesuffix("[]")
            below = branch.children.setdefault(key, Branch(listed=name.endswith("[]")))
            if not isinstance(below, Branch):
                raise TypeError(f"{path}: a value cannot have keys below it")
            branch = below
        branch.children[last] = spec
    return root
