"""What some packages need, down to what every system has: which builds go into a bundle. Pure.

Surprising: what "every system has" is not one version. Where nodes were asked, it is what each of them
has installed. Otherwise it is the essential packages of the distribution, as far as nobody wants a
version of them: those are taken along, for a machine may be older than the index.

Sources:
    Debian policy 7 (relations), 3.8 (essential); apt-get(8): the first of several alternatives that
    can be had is taken; apt_preferences(5): pins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpustate.bundle.offers import Build, Offers
from gpustate.bundle.upstream import Stanza
from gpustate.errors import RefusedError
from gpustate.solve.packages import Package, Universe
from gpustate.solve.relations import Clause, Relation, text

#: A name, and a version or nothing for the newest.
Root = tuple[str, str]
#: The next move where something is missing.
SOURCES = "name the repository that has it with --sources"


@dataclass(frozen=True)
class World:
    """What may be taken.

    Args:
        indexes: by the repository of the bundle that packages from there go to.
        pins: by repository, names that come from it and from nowhere else.
    """

    indexes: Mapping[str, Sequence[Offers]]
    pins: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])

    def called(self, name: str) -> list[tuple[str, Build]]:
        """Builds of a package with the repository they go to, newest first."""
        rows = [
            (repository, stanza)
            for repository in self.repositories_of(name)
            for index in self.indexes[repository]
            for stanza in index.stanzas.get(name, ())
            if stanza.package is not None
        ]
        return sorted(rows, key=lambda row: built(row[1]).order, reverse=True)

    def providing(self, name: str) -> list[tuple[str, Build]]:
        """Builds that stand in for a name, by their own, newest first."""
        rows = [
            (repository, stanza)
            for repository, indexes in self.indexes.items()
            for index in indexes
            for stanza in index.provides.get(name, ())
            if stanza.package is not None
            and repository in self.repositories_of(stanza.package.name)
        ]
        rows.sort(key=lambda row: built(row[1]).order, reverse=True)
        return sorted(rows, key=lambda row: built(row[1]).name)

    def versions(self, name: str) -> tuple[str, ...]:
        """What there is of a package, newest first."""
        return tuple(dict.fromkeys(built(stanza).version for _, stanza in self.called(name)))

    def wanted(self, name: str, version: str) -> tuple[str, Build]:
        """The build of a package at a version, or the newest where that is empty.

        Raises:
            RefusedError: nobody offers it.
        """
        rows = self.called(name)
        fitting = [row for row in rows if version in ("", built(row[1]).version)]
        if not fitting:
            there = f" (there are {', '.join(self.versions(name)[:5])})" if rows else ""
            raise RefusedError(
                f"no repository offers {f'{name} {version}'.rstrip()}{there}",
                fix=f"{SOURCES}, or want another version",
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


def built(stanza: Build) -> Package:
    """What a build is of."""
    if stanza.package is None:  # such were left out when they were found
        raise RefusedError(f"an index of {stanza.source.site} has a stanza that is no package")
    return stanza.package


@dataclass(frozen=True, slots=True)
class Base:
    """What need not be in the bundle.

    Args:
        nodes: what each node has installed.
        essential: leave out what every system of the distribution has; where no node was asked.
    """

    nodes: tuple[Universe, ...] = ()
    essential: bool = False

    def meets(self, relation: Relation) -> bool:
        """Every node has it."""
        return bool(self.nodes) and all(one.meeting(relation) for one in self.nodes)

    def has(self, name: str) -> bool:
        """Every node has some version of a package."""
        return bool(self.nodes) and all(one.called(name) for one in self.nodes)


@dataclass(slots=True)
class _Search:
    world: World
    base: Base
    chosen: dict[str, tuple[str, Build]] = field(default_factory=dict[str, tuple[str, Build]])
    why: dict[str, str] = field(default_factory=dict[str, str])

    def need(self, by: Package, clause: Clause) -> str | None:
        """Meet a clause; the package that came for it."""
        if any(built(s).meets(one) for one in clause for _, s in self.chosen.values()):
            return None
        if any(self.base.meets(one) for one in clause):
            return None
        for relation in clause:
            for row in self._ways(relation):
                package = built(row[1])
                if self.base.essential and _is_essential(row[1]) and not relation.op:
                    return None
                if self._fits(package):
                    self.take(row, f"{by} needs it")
                    return package.name
        raise RefusedError(
            f"{by} needs {text(clause)}, which no repository offers in a version that fits",
            fix=SOURCES,
        )

    def _ways(self, relation: Relation) -> Iterator[tuple[str, Build]]:
        rows = (*self.world.called(relation.name), *self.world.providing(relation.name))
        return (row for row in rows if built(row[1]).meets(relation))

    def _fits(self, package: Package) -> bool:
        others = (built(stanza) for _, stanza in self.chosen.values())
        return not any(package.clashes(other) for other in others)

    def take(self, row: tuple[str, Build], why: str) -> None:
        package = built(row[1])
        for _, stanza in self.chosen.values():
            if package.clashes(built(stanza)):
                raise RefusedError(
                    f"{package} ({why}) and {built(stanza)} ({self.why[built(stanza).name]}) "
                    "cannot be installed together",
                    fix="make a bundle for each",
                )
        self.chosen[package.name] = row
        self.why[package.name] = why


def _is_essential(build: Build) -> bool:
    return isinstance(build, Stanza) and build.part_of_base


def close(world: World, roots: Iterable[Root], base: Base) -> dict[str, list[Build]]:
    """Packages and all they need, by the repository of the bundle they go to.

    Args:
        world: what may be taken.
        roots: what it is all for; those go in whoever has them.
        base: what need not.

    Raises:
        RefusedError: something is needed that nobody offers, or two clash.
    """
    search = _Search(world, base)
    for name, version in dict.fromkeys(roots):
        mine = search.chosen.get(name)
        if mine is None or version not in ("", built(mine[1]).version):
            search.take(world.wanted(name, version), "asked for")
    waiting = deque(search.chosen)
    while waiting:
        package = built(search.chosen[waiting.popleft()][1])
        for clause in package.depends:
            came = search.need(package, clause)
            if came is not None:
                waiting.append(came)
    return by_repository(search.chosen.values())


def by_repository(chosen: Iterable[tuple[str, Build]]) -> dict[str, list[Build]]:
    """Builds by the repository they go to, in an order that is always the same."""
    found: dict[str, list[Build]] = {}
    for repository, build in chosen:
        found.setdefault(repository, []).append(build)
    return {
        name: sorted(rows, key=lambda one: (built(one).name, built(one).version))
        for name, rows in sorted(found.items())
    }
