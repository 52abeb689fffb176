"""Packages of repository indexes, and which of them satisfy a dependency. Pure.

This module reads Debian's indexes; rpm repositories are read by :mod:`~gpustate.solve.repodata`.

Sources:
    deb822(5); Debian wiki, RepositoryFormat: fields of Packages and Release files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpustate.formats import driverset, rpmversion
from gpustate.formats.dpkg import upstream_version, version_key
from gpustate.solve import relations
from gpustate.solve.relations import Clause, Relation

_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+:~-]*")
#: Why a package is forbidden on a node with apt.
PIN = "a pin of apt"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, order=True)
class Repository:
    """The repository of a package.

    Args:
        origin: as its Release file has it: ``Debian``, ``NVIDIA``; else its URL.
        suite: ``bookworm``; ``/`` for a flat repository.
        component: ``non-free``; empty for a flat repository.
        site: its URL.
    """

    origin: str
    suite: str = "/"
    component: str = ""
    site: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.origin, self.suite.strip("/"), self.component)))


@dataclass(frozen=True, slots=True)
class Package:
    """One build of one package.

    Args:
        name, version, architecture: as in the index.
        repository: that offers it.
        depends: clauses of Depends and Pre-Depends.
        conflicts: relations of Conflicts and Breaks.
        provides: provided names, each with a version or an empty text.
        sha256: hash of the file; empty when the index has none.
        size: of the file in bytes.
        leaf: not a driver package: its dependencies are left to apt or dnf.
        forbidden: the node's configuration forbids it.
        forbidden_by: what forbids it.
        rpm: compare versions as rpm does.
    """

    name: str
    version: str
    repository: Repository
    architecture: str = ""
    depends: tuple[Clause, ...] = ()
    conflicts: tuple[Relation, ...] = ()
    provides: tuple[tuple[str, str], ...] = ()
    sha256: str = ""
    size: int = 0
    leaf: bool = False
    forbidden: bool = False
    forbidden_by: str = PIN
    rpm: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def sort_key(self) -> Any:
        """Sort key of its version, oldest first."""
        return rpmversion.version_key(self.version) if self.rpm else version_key(self.version)

    @property
    def driver(self) -> str:
        """The driver version that all packages of a set must share; empty when any version is allowed."""
        if driverset.any_version_fits(self.name) or not driverset.is_member(
            self.name, self.version
        ):
            return ""
        return upstream_version(self.version)

    def satisfies(self, relation: Relation) -> bool:
        """Whether it is, or provides, what a relation requires."""
        return relation.satisfied_by(self.name, self.version, self.provides)

    def conflicts_with(self, other: Package) -> bool:
        """Whether two packages cannot be installed together. A package never conflicts with itself."""
        if self.name == other.name:
            return self.version != other.version
        return any(other.satisfies(one) for one in self.conflicts) or any(
            self.satisfies(one) for one in other.conflicts
        )


def parse(text: str, repository: Repository, *, leaf: bool = False) -> Iterator[Package]:
    """Read the stanzas of a Packages file; anything else is skipped."""
    for stanza in _stanzas(text):
        name, version = stanza.get("package", ""), stanza.get("version", "")
        if not _NAME.fullmatch(name) or not _VERSION.fullmatch(version):
            continue
        size, digest = stanza.get("size", ""), stanza.get("sha256", "").lower()
        needs = (stanza.get("pre-depends", ""), stanza.get("depends", ""))
        forbids = (stanza.get("conflicts", ""), stanza.get("breaks", ""))
        yield Package(
            name,
            version,
            repository,
            stanza.get("architecture", ""),
            () if leaf else tuple(c for one in needs for c in relations.parse(one)),
            tuple(c[0] for one in forbids for c in relations.parse(one)),
            relations.parse_provides(stanza.get("provides", "")),
            digest if _SHA256.fullmatch(digest) else "",
            int(size) if re.fullmatch(r"[0-9]{1,15}", size) else 0,
            leaf,
        )


def _stanzas(text: str) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    last = ""
    for line in text.split("\n"):
        if not line.strip():
            if fields:
                yield fields
            fields, last = {}, ""
        elif line[0] in " \t":
            if last:
                fields[last] += " " + line.strip()
        else:
            name, colon, value = line.partition(":")
            last = name.strip().lower() if colon else ""
            if last:
                fields[last] = value.strip()
    if fields:
        yield fields


@dataclass(frozen=True)
class Universe:
    """All available packages, by name and by provided name.

    Args:
        packages: in any order; a build that two repositories of one origin offer counts once.
    """

    packages: tuple[Package, ...]
    _by_name: Mapping[str, tuple[Package, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found: dict[str, dict[tuple[str, str, str], Package]] = {}
        for one in self.packages:
            for name in dict.fromkeys((one.name, *(name for name, _ in one.provides))):
                key = (one.name, one.version, one.repository.origin)
                found.setdefault(name, {}).setdefault(key, one)
        ordered = {
            name: tuple(
                sorted(
                    sorted(rows.values(), key=lambda p: p.sort_key, reverse=True),
                    key=lambda p: p.name != name,
                )
            )
            for name, rows in found.items()
        }
        object.__setattr__(self, "_by_name", ordered)

    def builds_of(self, name: str) -> tuple[Package, ...]:
        """Builds of a package, newest first."""
        return tuple(one for one in self._by_name.get(name, ()) if one.name == name)

    def providers_of(self, relation: Relation) -> tuple[Package, ...]:
        """Packages that satisfy a relation: those of the same name first, newest first."""
        return tuple(one for one in self._by_name.get(relation.name, ()) if one.satisfies(relation))

    def versions(self, name: str, origin: str) -> tuple[str, ...]:
        """Driver versions at which an origin offers a package, newest first."""
        versions = (upstream_version(p.version) for p in self.from_origin(name, origin))
        return tuple(dict.fromkeys(versions))

    def from_origin(self, name: str, origin: str) -> tuple[Package, ...]:
        """Builds of a package from one origin, newest first."""
        return tuple(one for one in self.builds_of(name) if one.repository.origin == origin)

    @property
    def origins(self) -> tuple[str, ...]:
        """Origins of driver packages, sorted."""
        return tuple(sorted({p.repository.origin for p in self.packages if p.driver}))


def unresolved_names(packages: Iterable[Package]) -> tuple[str, ...]:
    """Names that packages depend on and none of them is or provides, sorted."""
    packages = tuple(packages)
    inside = {name for p in packages for name in (p.name, *(name for name, _ in p.provides))}
    needed = {relation.name for p in packages for clause in p.depends for relation in clause}
    return tuple(sorted(needed - inside))
