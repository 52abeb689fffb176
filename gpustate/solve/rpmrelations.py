"""Relations between rpm packages: capabilities with version constraints. Pure.

Surprising: unlike Debian's, a capability provided without a version satisfies every constraint. Obsoletes
match package names only, not provided names.

Of boolean dependencies, ``and``, ``or`` and ``with`` become clauses. Conditions (``if``, ``unless``,
``without``), files and rpm's own features are left to dnf.

Sources:
    rpm manual: dependencies, boolean dependencies; rpm, lib/rpmds.c; libsolv, src/pool.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpustate.formats import rpmversion
from gpustate.solve.relations import Clause, Relation

#: Flags of repodata, as relations are written.
SIGNS = {"EQ": "=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}
_ADMITTED = {"=": (0,), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}
_TOKEN = re.compile(r"\s*([()]|<=|>=|=|<|>|(?:[^\s()<>=]+(?:\([^\s()]*\))*)+)")
_CONDITIONS = frozenset({"if", "unless", "without", "else"})
#: More than any real dependency is nested.
_MAX_DEPTH = 20


@dataclass(frozen=True, slots=True)
class RpmRelation(Relation):
    """A capability with an optional version constraint.

    Args:
        obsoletes: match package names only.
    """

    obsoletes: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.op} {self.version}" if self.op else self.name

    def allows(self, version: str) -> bool:
        """Whether a capability of the name at this version satisfies it."""
        if not self.op:
            return True
        found = rpmversion.compare_in_relation(version, self.version)
        return (found > 0) - (found < 0) in _ADMITTED[self.op]

    def satisfied_by(self, name: str, version: str, provides: Iterable[tuple[str, str]]) -> bool:
        """Whether a package is, or provides, what the relation requires."""
        if name == self.name and self.allows(version):
            return True
        if self.obsoletes:
            return False
        return any(
            provided == self.name and (not bound or self.allows(bound))
            for provided, bound in provides
        )


def parse(text: str) -> tuple[Clause, ...]:
    """Read ``name``, ``name >= 1`` or a boolean dependency; empty for what is left to dnf."""
    if not text.startswith("("):
        words = text.split()
        found = _plain(words)
        return ((found,),) if found is not None else ()
    tokens = _TOKEN.findall(text)
    clauses, rest = _boolean(tokens, 0)
    return clauses if clauses is not None and not rest else ()


def plain(name: str, flags: str, version: str) -> RpmRelation | None:
    """A relation from attributes of repodata; ``None`` for what is left to dnf."""
    if _is_left_to_dnf(name):
        return None
    sign = SIGNS.get(flags, "")
    return RpmRelation(name, sign, version) if sign and version else RpmRelation(name)


def _is_left_to_dnf(name: str) -> bool:
    return not name or name.startswith(("rpmlib(", "config(", "/", "("))


def _plain(words: list[str]) -> RpmRelation | None:
    if not words or _is_left_to_dnf(words[0]):
        return None
    if len(words) == 3 and words[1] in _ADMITTED:
        return RpmRelation(words[0], words[1], words[2])
    return RpmRelation(words[0])


def _boolean(tokens: list[str], depth: int) -> tuple[tuple[Clause, ...] | None, list[str]]:
    """Clauses of a dependency in parentheses, and the remaining tokens; ``None``: left to dnf."""
    if depth > _MAX_DEPTH or not tokens or tokens[0] != "(":
        return None, []
    parts: list[tuple[Clause, ...] | None] = []
    word, rest = "", tokens[1:]
    while True:
        part, rest = _operand(rest, depth)
        parts.append(part)
        if not rest:
            return None, []
        sign, rest = rest[0], rest[1:]
        if sign == ")":
            break
        if sign in _CONDITIONS or (word and sign != word):
            parts.append(None)
        word = sign
    known = [part for part in parts if part is not None]
    if len(known) != len(parts):
        return None, rest
    if word == "or":
        return _either(known), rest
    if word in ("", "and", "with"):
        return tuple(clause for part in known for clause in part), rest
    return None, rest


def _operand(tokens: list[str], depth: int) -> tuple[tuple[Clause, ...] | None, list[str]]:
    if tokens and tokens[0] == "(":
        return _boolean(tokens, depth + 1)
    size = 3 if len(tokens) > 2 and tokens[1] in _ADMITTED else 1
    found = _plain(tokens[:size])
    return (None if found is None else ((found,),)), tokens[size:]


def _either(parts: list[tuple[Clause, ...]]) -> tuple[Clause, ...] | None:
    """Any of several parts, in conjunctive normal form."""
    found: tuple[Clause, ...] = ((),)
    for part in parts:
        found = tuple((*left, *right) for left in found for right in part)
        if len(found) > 64:
            return None
    return found
