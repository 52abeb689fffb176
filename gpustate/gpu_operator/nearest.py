"""What somebody probably meant by a key that there is not.

In the order of how sure one can be: what the key was called in another release or kind of file, the
same letters in another spelling, a level too many or too few, the same key below another parent,
similar letters.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from gpustate.formats.words import named
from gpustate.gpu_operator import former
from gpustate.gpu_operator.blocks import Leaves
from gpustate.gpu_operator.documents import Item

_SWITCHES = frozenset({"enabled", "enable"})
_LISTED = 12
_SEPARATORS = re.compile(r"[._/\s-]+|(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Meant:
    """What was probably meant.

    Args:
        path: the path to use; empty when there is none.
        why: why the key is not there, where that is known.
        removed: the last release that had it.
    """

    path: str
    why: str = ""
    removed: str = ""

    @property
    def hint(self) -> str:
        """Half a sentence for an error."""
        if self.removed:
            return f"it went with the release after {self.removed}; {self.why}"
        return self.why or f"did you mean {self.path}"


def meant(path: str, item: Item, leaves: Leaves, kind: str) -> Meant | None:
    """Return what an unknown ``path`` of a file with these ``leaves`` was meant to be."""
    known = _paths(tuple(leaves))
    told = _told(path, item, kind)
    if told is not None:
        return told
    candidates = (
        spelled_otherwise(path, leaves),
        _similar(path, known, 0.9),
        _level_too_many(path, item, known),
        _level_too_few(path, item, known),
        _reference(path, known),
        _similar(path, known, 0.7),
        _elsewhere(path, item, known),
    )
    found = next((one for one in candidates if one), None)
    if found == path:
        words = path.split(".")
        nested = ": {".join(words) + ": ..." + "}" * (len(words) - 1)
        return Meant(path, f"a dot is part of the key's name; write {nested}")
    return Meant(found) if found else None


def _told(path: str, item: Item, kind: str) -> Meant | None:
    """What the tables of former, expected and renamed keys say."""
    for old in former.FORMER:
        if old.covers(path, kind) and old.path != old.instead:
            return Meant(old.instead, old.why, old.last)
    for missed in former.EXPECTED:
        if kind in missed.kinds and path == missed.path:
            return Meant(missed.instead, missed.why)
    for wrong, kinds, right in former.RENAMED:
        if kind not in kinds:
            continue
        if path == wrong:
            return Meant(right)
        above, _, key = wrong.rpartition(".")
        if path == above and item.get(key) is not None:
            return Meant(right)
    return None


@cache
def _paths(leaves: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """Every path of the tree, with the keys below it; none for a leaf."""
    found: dict[str, set[str]] = {}
    for path in leaves:
        words = path.split(".")
        for count in range(1, len(words) + 1):
            at = ".".join(words[:count]).removesuffix("[]")
            above = ".".join(words[: count - 1])
            found.setdefault(at, set())
            found.setdefault(above.removesuffix("[]"), set()).add(
                words[count - 1].removesuffix("[]")
            )
    return {path: frozenset(keys) for path, keys in found.items() if path}


@cache
def _by_letters(leaves: tuple[str, ...]) -> dict[str, str]:
    return {_folded(path): path for path in reversed(_paths(leaves))}


def _folded(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _level_too_many(path: str, item: Item, known: dict[str, frozenset[str]]) -> str | None:
    """``dcgmExporter.metrics.serviceMonitor``: what stands below belongs one level up."""
    keys = _keys(item)
    above = path.rpartition(".")[0]
    if above and keys - _SWITCHES and keys <= known.get(above, frozenset()):
        return f"{above}.{sorted(keys)[0]}" if len(keys) == 1 else above
    return None


def _level_too_few(path: str, item: Item, known: dict[str, frozenset[str]]) -> str | None:
    """``driver.secretName``: it stands one level down, and nowhere else there."""
    above, _, key = path.rpartition(".")
    prefix = f"{above}." if above else ""
    depth = prefix.count(".") + 1
    below = [
        one
        for one in known
        if one.startswith(prefix) and one.count(".") == depth and one.endswith(f".{key}")
    ]
    return below[0] if above and len(below) == 1 else None


def _reference(path: str, known: dict[str, frozenset[str]]) -> str | None:
    """``kernelModuleConfig.configMapName``: the same section names its object otherwise."""
    above, _, key = path.rpartition(".")
    names = [one for one in known.get(above, ()) if one.lower().endswith("name")]
    return f"{above}.{names[0]}" if len(names) == 1 and key.lower().endswith("name") else None


def _similar(path: str, known: Iterable[str], least: float) -> str | None:
    """A sibling with a similar name."""
    above, _, key = path.rpartition(".")
    beside = {
        one.rpartition(".")[2].lower(): one for one in known if one.rpartition(".")[0] == above
    }
    found = difflib.get_close_matches(key.lower(), beside, 1, least)
    return beside[found[0]] if found else None


def _elsewhere(path: str, item: Item, known: dict[str, frozenset[str]]) -> str | None:
    """The same key below another parent: the one whose path, or content, is most like it."""
    above, _, key = path.lower().rpartition(".")
    if key in _SWITCHES:
        return None  # that of another component turns something else on
    same = [one for one in known if one.rpartition(".")[2].lower() == key]
    if not same and above in {one.lower() for one in known}:
        return None
    if not same:
        close = difflib.get_close_matches(
            path.lower(), {one.lower(): one for one in known}, 1, 0.75
        )
        return next((one for one in known if close and one.lower() == close[0]), None)
    keys, words = _keys(item), set(_words(path))

    def likeness(one: str) -> tuple[float, ...]:
        shared = len(keys & known[one]) / len(keys) if keys else 0.0
        mine = set(_words(one))
        return (shared, len(words & mine) / len(words | mine), -one.count("."))

    return max(same, key=likeness)


def listed(key: str, there: Iterable[str], *, sort: bool = True) -> str:
    """Keys there are, as many as fit in a line: where that is not all, those most like ``key``."""
    names = sorted(there)
    if len(names) <= _LISTED:
        return ", ".join(names)
    if sort:
        key = key.lower()
        names.sort(key=lambda one: -difflib.SequenceMatcher(None, key, one.lower()).ratio())
    return f"{', '.join(names[:_LISTED])} and {len(names) - _LISTED} more"


def _keys(item: Item) -> frozenset[str]:
    if isinstance(item.value, dict):
        return frozenset(item.value)
    if isinstance(item.value, list) and item.value and isinstance(item.value[0].value, dict):
        return frozenset(item.value[0].value)
    return frozenset()


def _words(path: str) -> Iterator[str]:
    return (word.lower() for word in _SEPARATORS.split(path) if word)


def spelled_otherwise(path: str, leaves: Leaves) -> str | None:
    """``toolkit-version``, ``driver.kernelmoduletype``, ``Driver``: a path with the same letters."""
    found = _by_letters(tuple(leaves)).get(_folded(path))
    return found if found != path else None


def top_level(word: str, sections: Iterable[str]) -> str:
    """``(did you mean 'driver'?)`` for the first word of a file; empty when nothing is like it."""
    near = difflib.get_close_matches(word, [*sections, "apiVersion", "kind"], 1)
    return f" (did you mean {named(near[0])}?)" if near else ""
