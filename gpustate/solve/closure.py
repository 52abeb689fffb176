"""The packages of one driver version: dependencies complete, no conflicts, no mixed versions or origins. Pure.

The search is exact: it backtracks over every choice (alternatives, provided names, builds) before it
reports that there is no set. Then it reports a minimal conflict: every fact in it is needed.

In every set, packages that must share the driver's version do, all driver packages come from one
origin, every dependency is satisfied, and no two packages conflict. The dependencies of other packages are
left to apt.

Sources:
    Debian policy 7 (relations); apt(8), EDSP: alternatives are tried in their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpustate.errors import RefusedError
from gpustate.formats.dpkg import upstream_version
from gpustate.solve import core, relations
from gpustate.solve.packages import Package, Universe
from gpustate.solve.relations import Clause, Relation

#: A hundred times more choices than any real set of packages needs.
_LIMIT = 200_000


@dataclass(frozen=True, slots=True)
class Need:
    """A dependency of the set (``by`` is empty), or of one of its packages."""

    by: str
    clause: Clause

    def __str__(self) -> str:
        what = relations.clause_text(self.clause)
        return f"{self.by} needs {what}" if self.by else f"the set needs {what}"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two packages that cannot be installed together, sorted by name."""

    one: str
    other: str

    def __str__(self) -> str:
        return f"{self.one} cannot be installed together with {self.other}"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A package of another driver version or origin than the set, or one that a pin forbids."""

    package: str
    why: str

    def __str__(self) -> str:
        return f"{self.package} {self.why}"


Fact = Need | Conflict | Mismatch


@dataclass(slots=True)
class Closure:
    """The search for the packages of one driver version.

    Args:
        universe: available packages.
        version: the driver version.
        origin: the repository that all driver packages come from; empty for any single one.
        roots: names of required packages.
        any_version: roots that may have any version, such as modules for one kernel.
    """

    universe: Universe
    version: str
    origin: str
    roots: tuple[str, ...]
    any_version: frozenset[str] = frozenset()
    _tried: int = field(default=0, init=False)
    _respected: frozenset[Fact] | None = field(default=None, init=False)  # None: all
    _met: dict[Fact, None] = field(default_factory=dict[Fact, None], init=False)

    def find(self) -> tuple[Package, ...] | None:
        """The set, roots first, without unneeded packages; ``None`` when there is none."""
        found = self.solve_with(None)
        return None if found is None else self._prune(found)

    def reasons(self) -> tuple[Fact, ...]:
        """A minimal conflict that explains why there is no set."""
        self._met = {}
        if self.solve_with(None) is not None:
            return ()
        # Facts that the search never reached are not part of its failure.
        return core.minimal_conflict(
            tuple(self._met), lambda facts: self.solve_with(facts) is not None
        )

    def describe(self) -> str:
        """The conflict in words; dependencies that no repository offers are marked."""
        words: list[str] = []
        for fact in self.reasons():
            if isinstance(fact, Need) and not fact.by:
                continue  # the roots are not news
            nobody = isinstance(fact, Need) and not any(
                self.universe.providers_of(relation) for relation in fact.clause
            )
            words.append(f"{fact}, which no repository offers" if nobody else str(fact))
        return "; ".join(dict.fromkeys(words))

    def solve_with(self, facts: frozenset[Fact] | None) -> tuple[Package, ...] | None:
        """Search with only some of the facts; ``None`` stands for all of them."""
        self._respected, self._tried = facts, 0
        needs = [Need("", (Relation(name),)) for name in self.roots]
        found = self._extend({}, [need for need in needs if self._applies(need)])
        return None if found is None else tuple(found.values())

    def _applies(self, fact: Fact) -> bool:
        """Whether a fact applies; it is recorded as reached."""
        if self._respected is not None:
            return fact in self._respected
        self._met.setdefault(fact)
        return True

    def _prune(self, found: tuple[Package, ...]) -> tuple[Package, ...]:
        """Remove packages that a later choice made unnecessary."""
        kept = list(found)
        for one in reversed(found):
            rest = [other for other in kept if other is not one]
            needs = [need for other in rest for need in self._needs(other)]
            if one.name not in self.roots and all(
                any(self._meets(other, need) for other in rest) for need in needs
            ):
                kept = rest
        return tuple(kept)

    def _extend(self, chosen: dict[str, Package], needs: list[Need]) -> dict[str, Package] | None:
        self._tried += 1
        if self._tried > _LIMIT:
            raise RefusedError(
                f"driver {self.version}: too many combinations of packages to search",
                fix="use fewer repositories, or request an exact version",
            )
        for number, need in enumerate(needs):
            if any(self._meets(one, need) for one in chosen.values()):
                continue
            rest = needs[number + 1 :]
            for package in self._candidates(need):
                if not self._is_compatible(package, chosen):
                    continue
                mine = [n for n in self._needs(package) if self._applies(n)]
                found = self._extend({**chosen, package.name: package}, [*rest, *mine])
                if found is not None:
                    return found
            return None
        return chosen

    def _meets(self, package: Package, need: Need) -> bool:
        return any(
            package.satisfies(relation) and (need.by or package.name == relation.name)
            for relation in need.clause
        )

    def _candidates(self, need: Need) -> Iterator[Package]:
        """Packages that satisfy a dependency, the preferred first; a root needs the package of that name."""
        seen: set[Package] = set()
        for relation in need.clause:
            fitting = [
                package
                for package in self.universe.providers_of(relation)
                if package not in seen and (need.by or package.name == relation.name)
            ]
            seen.update(fitting)
            # A tool that may have any version is preferred at the driver's own.
            yield from sorted(fitting, key=lambda p: upstream_version(p.version) != self.version)

    @staticmethod
    def _needs(package: Package) -> list[Need]:
        return [Need(str(package), clause) for clause in package.depends]

    def _is_compatible(self, package: Package, chosen: dict[str, Package]) -> bool:
        mine = chosen.get(package.name)
        if mine is not None and mine != package:
            return False
        if any(self._applies(fact) for fact in self._mismatches(package)):
            return False
        conflicts_with = (other for other in chosen.values() if package.conflicts_with(other))
        return not any(
            self._applies(Conflict(*sorted((str(package), str(other))))) for other in conflicts_with
        )

    def _mismatches(self, package: Package) -> Iterator[Mismatch]:
        """Reasons why a package cannot be in this set."""
        name, origin = str(package), package.repository.origin
        exact = package.name in self.roots and package.name not in self.any_version
        version = upstream_version(package.version) if exact else package.driver
        if version and version != self.version:
            yield Mismatch(name, f"does not belong to driver {self.version}")
        if package.forbidden:
            yield Mismatch(name, f"is forbidden by {package.forbidden_by}")
        if self.origin and origin != self.origin and not package.leaf and (exact or version):
            yield Mismatch(name, f"comes from {origin}, not from {self.origin}")
