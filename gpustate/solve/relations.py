"""Relations between Debian packages: what a package needs, forbids and stands in for. Pure.

Surprising: a version of a provided name counts only where the provider gives one (``Provides: a (=
1)``); without it, only relations without a version are met. A name with an architecture of its
own (``a:i386``) is met by nothing here: a driver set is of one architecture.

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
    """One package name with a bound on its version.

    Args:
        name: of a package, or one that packages provide.
        op: ``<<``, ``<=``, ``=``, ``>=``, ``>>``; empty for any version.
        version: the bound.
        arch: another architecture it is about; empty for the set's own.
    """

    name: str
    op: str = ""
    version: str = ""
    arch: str = ""

    def __str__(self) -> str:
        name = f"{self.name}:{self.arch}" if self.arch else self.name
        return f"{name} ({self.op} {self.version})" if self.op else name

    def allows(self, version: str) -> bool:
        """A package of the name with this version meets it."""
        if self.arch:
            return False
        return not self.op or compare_versions(version, self.version) in _SIGNS[self.op]

    def satisfied_by(self, name: str, version: str, provides: Iterable[tuple[str, str]]) -> bool:
        """A package is, or stands in for, what the relation names."""
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
    """Read ``a (>= 1) | b, c``: all clauses must be met, each by any of its relations.

    What cannot be read is left out: an index with one odd field is no reason to know nothing.
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
    """Read ``Provides``: names, each with its version or an empty text."""
    return tuple(
        (one.name, one.version if one.op == "=" else "")
        for clause in parse(field)
        for one in clause[:1]
    )


def clause_text(clause: Clause) -> str:
    """A clause as it stands in an index."""
    return " | ".join(map(str, clause))
