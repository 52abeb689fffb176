"""Which deb packages go into a bundle: the roots and their dependencies, without what nodes already have. Pure.

Surprising: what nodes already have is not one version. Where nodes were queried, it is what each of them
has installed. Otherwise it is the essential packages of the distribution. Those still go in where a dependency
requires a version of them, because a machine may be older than the index.

Sources:
    Debian policy 7 (relations), 3.8 (essential); apt-get(8): the first available alternative
    is installed; apt_preferences(5): pins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpustate.bundle.offers import Build, Offers
from gpustate.bundle.upstream import Stanza
from gpustate.errors import RefusedError
from gpustate.solve.packages import Package, Universe
from gpustate.solve.relations import Clause, Relation, clause_text

#: A name, and a version or nothing for the newest.
Root = tuple[str, str]
#: What to do where a package is missing.
SOURCES = "add the repository that has it with --sources"


@dataclass(frozen=True)
class Available:
    """Available packages.

    Args:
        indexes: upstream indexes, by the repository of the bundle that their packages go to.
        pins: by repository, names of packages that come from it only.
    """

    indexes: Mapping[str, Sequence[Offers]]
    pins: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])

    def builds_of(self, name: str) -> list[tuple[str, Build]]:
        """Builds of a package with the repository they go to, newest first."""
        rows = [
            (repository, stanza)
            for repository in self.repositories_of(name)
            for index in self.indexes[repository]
            for stanza in index.stanzas.get(name, ())
            if stanza.package is not None
        ]
        return sorted(rows, key=lambda row: package_of(row[1]).sort_key, reverse=True)

    def providers_of(self, name: str) -> list[tuple[str, Build]]:
        """Builds that provide a name, sorted by their own name, newest first."""
        rows = [
            (repository, stanza)
            for repository, indexes in self.indexes.items()
            for index in indexes
            for stanza in index.provides.get(name, ())
            if stanza.package is not None
            and repository in self.repositories_of(stanza.package.name)
        ]
        rows.sort(key=lambda row: package_of(row[1]).sort_key, reverse=True)
        return sorted(rows, key=lambda row: package_of(row[1]).name)

    def versions(self, name: str) -> tuple[str, ...]:
        """Available versions of a package, newest first."""
        return tuple(
            dict.fromkeys(package_of(stanza).version for _, stanza in self.builds_of(name))
        )

    def find(self, name: str, version: str) -> tuple[str, Build]:
        """The build of a package at a version, or the newest where that is empty.

        Raises:
            RefusedError: no repository offers it.
        """
        rows = self.builds_of(name)
        fitting = [row for row in rows if version in ("", package_of(row[1]).version)]
        if not fitting:
            there = f" (available: {', '.join(self.versions(name)[:5])})" if rows else ""
            raise RefusedError(
                f"no repository offers {f'{name} {version}'.rstrip()}{there}",
                fix=f"{SOURCES}, or request another version",
            )
        return fitting[0]

    def repositories_of(self, name: str) -> Iterator[str]:
        """Repositories of the bundle that a package may come from."""
        pinned = [
            repository
            for repository, names in self.pins.items()
            if repository in self.indexes and name in names
        ]
        yield from pinned or self.indexes


def package_of(stanza: Build) -> Package:
    """The package of a build."""
    if stanza.package is None:  # such stanzas were skipped before
        raise RefusedError(f"an index of {stanza.source.site} has a stanza without a package")
    return stanza.package


@dataclass(frozen=True, slots=True)
class Baseline:
    """What nodes already have.

    Args:
        nodes: installed packages of each node.
        essential: leave out essential packages of the distribution; where no node was queried.
    """

    nodes: tuple[Universe, ...] = ()
    essential: bool = False

    def satisfies(self, relation: Relation) -> bool:
        """Whether every node satisfies a relation."""
        return bool(self.nodes) and all(one.providers_of(relation) for one in self.nodes)

    def has(self, name: str) -> bool:
        """Whether every node has some version of a package."""
        return bool(self.nodes) and all(one.builds_of(name) for one in self.nodes)


@dataclass(slots=True)
class _Search:
    world: Available
    base: Baseline
    chosen: dict[str, tuple[str, Build]] = field(default_factory=dict[str, tuple[str, Build]])
    why: dict[str, str] = field(default_factory=dict[str, str])

    def need(self, by: Package, clause: Clause) -> str | None:
        """Satisfy a clause; the name of the package that was added for it."""
        if any(package_of(s).satisfies(one) for one in clause for _, s in self.chosen.values()):
            return None
        if any(self.base.satisfies(one) for one in clause):
            return None
        for relation in clause:
            for row in self._candidates(relation, by.version):
                package = package_of(row[1])
                if self.base.essential and _is_essential(row[1]) and not relation.op:
                    return None
                if self._is_compatible(package):
                    self.take(row, f"{by} needs it")
                    return package.name
        raise RefusedError(
            f"{by} needs {clause_text(clause)}, which no repository offers in a suitable version",
            fix=SOURCES,
        )

    def _candidates(self, relation: Relation, version: str) -> Iterator[tuple[str, Build]]:
        """Builds that satisfy a relation; first those at a version, for packages of one driver often ask for ``>=``."""
        offers = (*self.world.builds_of(relation.name), *self.world.providers_of(relation.name))
        rows = sorted(offers, key=lambda row: package_of(row[1]).version != version)
        return (row for row in rows if package_of(row[1]).satisfies(relation))

    def _is_compatible(self, package: Package) -> bool:
        others = (package_of(stanza) for _, stanza in self.chosen.values())
        return not any(package.conflicts_with(other) for other in others)

    def take(self, row: tuple[str, Build], why: str) -> None:
        package = package_of(row[1])
        for _, stanza in self.chosen.values():
            if package.conflicts_with(package_of(stanza)):
                raise RefusedError(
                    f"{package} ({why}) and {package_of(stanza)} ({self.why[package_of(stanza).name]}) "
                    "cannot be installed together",
                    fix="build a bundle for each",
                )
        self.chosen[package.name] = row
        self.why[package.name] = why


def _is_essential(build: Build) -> bool:
    return isinstance(build, Stanza) and build.part_of_base


def resolve(world: Available, roots: Iterable[Root], base: Baseline) -> dict[str, list[Build]]:
    """Resolve the roots: builds by the repository of the bundle they go to.

    Args:
        world: available packages.
        roots: packages the bundle is built for; they go in even where nodes have them.
        base: what nodes already have.

    Raises:
        RefusedError: a dependency is unavailable, or two packages conflict.
    """
    search = _Search(world, base)
    for name, version in dict.fromkeys(roots):
        mine = search.chosen.get(name)
        if mine is None or version not in ("", package_of(mine[1]).version):
            search.take(world.find(name, version), "requested")
    waiting = deque(search.chosen)
    while waiting:
        package = package_of(search.chosen[waiting.popleft()][1])
        for clause in package.depends:
            came = search.need(package, clause)
            if came is not None:
                waiting.append(came)
    return by_repository(search.chosen.values())


def by_repository(chosen: Iterable[tuple[str, Build]]) -> dict[str, list[Build]]:
    """Group builds by the repository they go to, in a stable order."""
    found: dict[str, list[Build]] = {}
    for repository, build in chosen:
        found.setdefault(repository, []).append(build)
    return {
        name: sorted(rows, key=lambda one: (package_of(one).name, package_of(one).version))
        for name, rows in sorted(found.items())
    }
