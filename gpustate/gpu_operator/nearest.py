"""Suggest the key that was probably meant by an unknown one.

By decreasing certainty: the key's name in another release or kind of file, the same letters in another
spelling, one level too deep or too high, the same key below another parent, similar letters.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from gpustate.formats.words import quote_name
from gpustate.gpu_operator import tables
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.keys import Fields

_SWITCHES = frozenset({"enabled", "enable"})
_LISTED = 12
_SEPARATORS = re.compile(r"[._/\s-]+|(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A suggestion for an unknown key.

    Args:
        path: the path to use; empty if there is none.
        why: why the key does not exist, if known.
    """

    path: str
    why: str = ""

    @property
    def hint(self) -> str:
        """Half a sentence for an error."""
        return self.why or f"did you mean {self.path}"


def suggest(path: str, item: Item, fields: Fields, kind: str) -> Suggestion | None:
    """Return the suggestion for an unknown ``path`` of a file with these fields."""
    paths = _paths(tuple(fields))
    suggestion = _from_tables(path, item, kind)
    if suggestion is not None:
        return suggestion
    candidates = (
        spelled_otherwise(path, fields),
        _similar(path, paths, 0.9),
        _level_too_many(path, item, paths),
        _level_too_few(path, item, paths),
        _reference(path, paths),
        _similar(path, paths, 0.7),
        _elsewhere(path, item, paths),
    )
    path_meant = next((candidate for candidate in candidates if candidate), None)
    if path_meant == path:
        words = path.split(".")
        nested = ": {".join(words) + ": ..." + "}" * (len(words) - 1)
        return Suggestion(path, f"a dot is part of the key's name; write {nested}")
    return Suggestion(path_meant) if path_meant else None


@cache
def expected(kind: str) -> Mapping[str, Suggestion]:
    """What to write in place of keys that people expect in a kind of file."""
    return {
        path: Suggestion("".join(instead), why)
        for kinds, rows in tables.sections("expected.txt").items()
        for keys, why, *instead in (rows if kind in kinds.split() else ())
        for path in tables.expanded(keys)
    }


@cache
def renamed(kind: str) -> Mapping[str, str]:
    """The names of keys in a kind of file, by those that they have in another one."""
    rows = tables.sections("expected.txt")["renamed"]
    return {wrong: right for wrong, kinds, right in rows if kind in kinds.split()}


def _from_tables(path: str, item: Item, kind: str) -> Suggestion | None:
    """A suggestion from the tables of expected and renamed keys."""
    if path in expected(kind):
        return expected(kind)[path]
    for wrong, right in renamed(kind).items():
        if path == wrong:
            return Suggestion(right)
        above, _, key = wrong.rpartition(".")
        if path == above and item.get(key) is not None:
            return Suggestion(right)
    return None


@cache
def _paths(fields: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """Every path of the tree with the keys below it; none for a field."""
    children: dict[str, set[str]] = {}
    for path in fields:
        words = path.split(".")
        for count in range(1, len(words) + 1):
            at = ".".join(words[:count]).removesuffix("[]")
            above = ".".join(words[: count - 1])
            children.setdefault(at, set())
            children.setdefault(above.removesuffix("[]"), set()).add(
                words[count - 1].removesuffix("[]")
            )
    return {path: frozenset(keys) for path, keys in children.items() if path}


@cache
def _by_letters(fields: tuple[str, ...]) -> dict[str, str]:
    return {_folded(path): path for path in reversed(_paths(fields))}


def _folded(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _level_too_many(path: str, item: Item, paths: dict[str, frozenset[str]]) -> str | None:
    """``dcgmExporter.metrics.serviceMonitor``: the keys below belong one level up."""
    keys = _keys(item)
    above = path.rpartition(".")[0]
    if above and keys - _SWITCHES and keys <= paths.get(above, frozenset()):
        return f"{above}.{sorted(keys)[0]}" if len(keys) == 1 else above
    return None


def _level_too_few(path: str, item: Item, paths: dict[str, frozenset[str]]) -> str | None:
    """``driver.secretName``: the key exists one level down, in one place only."""
    above, _, key = path.rpartition(".")
    prefix = f"{above}." if above else ""
    depth = prefix.count(".") + 1
    below = [
        field
        for field in paths
        if field.startswith(prefix) and field.count(".") == depth and field.endswith(f".{key}")
    ]
    return below[0] if above and len(below) == 1 else None


def _reference(path: str, paths: dict[str, frozenset[str]]) -> str | None:
    """``kernelModuleConfig.configMapName``: the section has another key for the object's name."""
    above, _, key = path.rpartition(".")
    names = [sibling for sibling in paths.get(above, ()) if sibling.lower().endswith("name")]
    return f"{above}.{names[0]}" if len(names) == 1 and key.lower().endswith("name") else None


def _similar(path: str, paths: Iterable[str], least: float) -> str | None:
    """A sibling with a similar name."""
    above, _, key = path.rpartition(".")
    siblings = {
        field.rpartition(".")[2].lower(): field
        for field in paths
        if field.rpartition(".")[0] == above
    }
    matches = difflib.get_close_matches(key.lower(), siblings, 1, least)
    return siblings[matches[0]] if matches else None


def _elsewhere(path: str, item: Item, paths: dict[str, frozenset[str]]) -> str | None:
    """The same key below another parent, the one with the most similar path or content."""
    above, _, key = path.lower().rpartition(".")
    if key in _SWITCHES:
        return None  # the switch of another component would be misleading
    same = [field for field in paths if field.rpartition(".")[2].lower() == key]
    if not same and above in {field.lower() for field in paths}:
        return None
    if not same:
        close = difflib.get_close_matches(
            path.lower(), {field.lower(): field for field in paths}, 1, 0.75
        )
        return next((field for field in paths if close and field.lower() == close[0]), None)
    keys, words = _keys(item), set(_words(path))

    def likeness(field: str) -> tuple[float, ...]:
        shared = len(keys & paths[field]) / len(keys) if keys else 0.0
        parts = set(_words(field))
        return (shared, len(words & parts) / len(words | parts), -field.count("."))

    return max(same, key=likeness)


def listed(key: str, keys: Iterable[str], *, sort: bool = True) -> str:
    """List the existing keys that fit in a line, those most similar to ``key`` first if not all do."""
    names = sorted(keys)
    if len(names) <= _LISTED + 1:
        return ", ".join(names)
    if sort:
        key = key.lower()
        names.sort(key=lambda name: -difflib.SequenceMatcher(None, key, name.lower()).ratio())
    return f"{', '.join(names[:_LISTED])} and {len(names) - _LISTED} more"


def _keys(item: Item) -> frozenset[str]:
    if isinstance(item.value, dict):
        return frozenset(item.value)
    if isinstance(item.value, list) and item.value and isinstance(item.value[0].value, dict):
        return frozenset(item.value[0].value)
    return frozenset()


def _words(path: str) -> Iterator[str]:
    return (word.lower() for word in _SEPARATORS.split(path) if word)


def spelled_otherwise(path: str, fields: Fields) -> str | None:
    """``toolkit-version``, ``driver.kernelmoduletype``, ``Driver``: a path with the same letters."""
    spelling = _by_letters(tuple(fields)).get(_folded(path))
    return spelling if spelling != path else None


def top_level(word: str, sections: Iterable[str]) -> str:
    """``(did you mean 'driver'?)`` for the first word of a file; empty if nothing is similar."""
    near = difflib.get_close_matches(word, [*sections, "apiVersion", "kind"], 1)
    return f" (did you mean {quote_name(near[0])}?)" if near else ""
