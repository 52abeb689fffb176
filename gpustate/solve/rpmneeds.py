"""What rpm packages need, boolean dependencies and files included: whether some packages have it. Pure.

Where :mod:`~gpustate.solve.rpmrelations` leaves to dnf what a driver set can do without, a repository that is
to be complete has to have all of it.

Surprising: ``with`` and ``without`` are about one package, ``and`` and ``or`` about all of them; what stands
behind ``if`` is judged of the packages that will be there, so it may come to hold while packages are added.

Sources:
    rpm manual, boolean dependencies (semantics, nesting); rpm, lib/rpmds.c.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpustate.solve.packages import Package
from gpustate.solve.rpmrelations import SIGNS, RpmRelation

#: Packages that meet a relation.
Meeting = Callable[[RpmRelation], Sequence[Package]]
_TOKEN = re.compile(
    r"\s*([()]|<=|>=|=|<|>|(?:[^\s()<>=]+(?:\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*\))*)+)"
)
_WORDS = frozenset({"and", "or", "if", "unless", "with", "without", "else"})
_BOUNDS = frozenset({"=", "<", "<=", ">", ">="})
#: More than any real dependency is nested.
_MAX_DEPTH = 20


@dataclass(frozen=True, slots=True)
class Need:
    """One requirement: a relation, or a word with parts.

    Args:
        word: ``""`` for a relation, else ``and``, ``or``, ``if``, ``unless``, ``with``, ``without``.
        relation: where there is no word.
        parts: of ``if`` and ``unless``: what is needed, the condition, and what stands behind ``else``.
    """

    word: str = ""
    relation: RpmRelation | None = None
    parts: tuple[Need, ...] = ()

    def __str__(self) -> str:
        if self.relation is not None:
            return str(self.relation)
        texts = [str(one) for one in self.parts]
        if self.word in ("if", "unless") and len(texts) > 2:
            return f"({texts[0]} {self.word} {texts[1]} else {texts[2]})"
        return f"({f' {self.word} '.join(texts)})"

    @property
    def relations(self) -> tuple[RpmRelation, ...]:
        """Every relation in it."""
        if self.relation is not None:
            return (self.relation,)
        return tuple(row for part in self.parts for row in part.relations)


def read(name: str, flags: str, version: str) -> Need | None:
    """A requirement as repodata or rpm's database has it; ``None`` for what is about rpm itself.

    Args:
        name: a capability, a file, or a boolean dependency in brackets.
        flags: ``GE`` as repodata has it, ``>=`` as rpm prints it; empty for any version.
        version: the bound.

    Raises:
        ValueError: a boolean dependency that cannot be read.
    """
    if name.startswith("rpmlib("):
        return None
    if name.startswith("("):
        tokens = _TOKEN.findall(name)
        if "".join(tokens) != re.sub(r"\s+", "", name):
            raise ValueError(name)
        need, rest = _brackets(tokens, 0, name)
        if rest:
            raise ValueError(name)
        return need
    sign = SIGNS.get(flags, flags if flags in _BOUNDS else "")
    bounded = sign and version
    return Need("", RpmRelation(name, sign, version) if bounded else RpmRelation(name))


def _brackets(tokens: list[str], depth: int, text: str) -> tuple[Need, list[str]]:
    if depth > _MAX_DEPTH or not tokens or tokens[0] != "(":
        raise ValueError(text)
    first, rest = _operand(tokens[1:], depth, text)
    parts, words = [first], list[str]()
    while rest and rest[0] != ")":
        words.append(rest[0])
        part, rest = _operand(rest[1:], depth, text)
        parts.append(part)
    if not rest:
        raise ValueError(text)
    return _joined(parts, words, text), rest[1:]


def _joined(parts: list[Need], words: list[str], text: str) -> Need:
    if not words:
        return parts[0]
    kinds = set(words)
    chain = len(kinds) == 1 and kinds <= {"and", "or", "with"}
    pair = words in (["if"], ["unless"], ["without"])
    if chain or pair or words in (["if", "else"], ["unless", "else"]):
        return Need(words[0], None, tuple(parts))
    raise ValueError(text)


def _operand(tokens: list[str], depth: int, text: str) -> tuple[Need, list[str]]:
    if tokens and tokens[0] == "(":
        return _brackets(tokens, depth + 1, text)
    if not tokens or tokens[0] == ")" or tokens[0] in _WORDS or tokens[0] in _BOUNDS:
        raise ValueError(text)
    if len(tokens) > 2 and tokens[1] in _BOUNDS:
        return Need("", RpmRelation(tokens[0], tokens[1], tokens[2])), tokens[3:]
    return Need("", RpmRelation(tokens[0])), tokens[1:]


def having(need: Need, meeting: Meeting) -> list[Package]:
    """Single packages that have all of a need; none of one that is about several packages."""
    if need.relation is not None:
        return list(meeting(need.relation))
    rows = [having(part, meeting) for part in need.parts]
    if need.word == "or":
        return list(dict.fromkeys(one for row in rows for one in row))
    if need.word == "with":
        return [one for one in rows[0] if all(one in row for row in rows[1:])]
    if need.word == "without":
        return [one for one in rows[0] if one not in rows[1]]
    return []


def holds(need: Need, meeting: Meeting) -> bool:
    """Some packages have what is needed."""
    if need.word == "and":
        return all(holds(part, meeting) for part in need.parts)
    if need.word == "or":
        return any(holds(part, meeting) for part in need.parts)
    if need.word in ("if", "unless"):
        asked = holds(need.parts[1], meeting) == (need.word == "if")
        if asked:
            return holds(need.parts[0], meeting)
        return len(need.parts) < 3 or holds(need.parts[2], meeting)
    return bool(having(need, meeting))
