"""Relations between Debian packages: dependencies, conflicts and provided names. Pure.

Surprising: a provided name without a version (``Provides: a``) satisfies only relations without a version.
A relation to another architecture (``a:i386``) is never satisfied: a driver set has one architecture.

Sources:
    deb-control(5): Depends, Pre-Depends, Conflicts, Breaks, Provides;
    Debian policy 7.1 (syntax) and 7.5 (virtual packages).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpustate.formats.dpkg import compare_versions

_RELATION = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9+.-]*)(?::(?P<arch>[a-z0-9-]+))?"
    r"(?:\s*\(\s*(?P<op><<|<=|>=|>>|=|<|>)\s*(?P<version>[0-9A-Za-z.+:~-]+)\s*\))?"
)
#: "<" and ">" are obsolete spellings that meant "or equal".
_SIGNS = {
    "<<": (-1,),
    "<=": (-1, 0),
    "<": (-1, 0),
    "=": (0,),
    ">=": (0, 1),
    ">": (0, 1),
    ">>": (1,),
}


@dataclass(frozen=True, slots=True)
class Relation:
    """A package name with an optional version constraint.

    Args:
        name: of a package, or a provided name.
        op: ``<<``, ``<=``, ``=``, ``>=``, ``>>``; empty for any version.
        version: to compare with.
        arch: foreign architecture; empty for the set's own.
    """

    name: str
    op: str = ""
    version: str = ""
    arch: str = ""

    def __str__(self) -> str:
        name = f"{self.name}:{self.arch}" if self.arch else self.name
        return f"{name} ({self.op} {self.version})" if self.op else name

    def allows(self, version: str) -> bool:
        """Whether a package of the name at this version satisfies it."""
        if self.arch:
            return False
        return not self.op or compare_versions(version, self.version) in _SIGNS[self.op]

    def satisfied_by(self, name: str, version: str, provides: Iterable[tuple[str, str]]) -> bool:
        """Whether a package is, or provides, what the relation requires."""
        if name == self.name and self.allows(version):
            return True
        if self.arch:
            return False
        return any(
            provided == self.name and (not self.op or (bound != "" and self.allows(bound)))
            for provided, bound in provides
        )


Clause = tuple[Relation, ...]


def parse(field: str) -> tuple[Clause, ...]:
    """Read ``a (>= 1) | b, c``: all clauses must be satisfied, each by any of its relations.

    Unreadable parts are skipped: one odd field does not make a whole index useless.
    """
    clauses: list[Clause] = []
    for part in field.split(","):
        relations = [one for word in part.split("|") if (one := _relation(word.strip()))]
        if relations:
            clauses.append(tuple(relations))
    return tuple(clauses)


def _relation(word: str) -> Relation | None:
    match = _RELATION.match(word)
    if match is None:
        return None
    arch = match["arch"] or ""
    return Relation(
        match["name"],
        match["op"] or "",
        match["version"] or "",
        "" if arch in ("any", "native") else arch,
    )


def parse_provides(field: str) -> tuple[tuple[str, str], ...]:
    """Read ``Provides``: names, each with a version or an empty text."""
    return tuple(
        (one.name, one.version if one.op == "=" else "")
        for clause in parse(field)
        for one in clause[:1]
    )


def clause_text(clause: Clause) -> str:
    """Format a clause as in an index."""
    return " | ".join(map(str, clause))
