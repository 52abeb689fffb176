"""One set of packages for one driver version: everything needed, nothing that clashes, nothing mixed. Pure.

The search is exact: it goes back over every choice (alternatives, packages that stand in for others,
builds) before it says that there is no set. Where there is none, it says which facts are at fault,
and each of those is needed for the fault.

What holds in every set: all packages that must share the driver's version do, all packages of the driver's
family come from one origin, every clause of what they need is met, and no two clash. What
packages outside of the family need in turn is left to apt.

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

#: More choices than any real set of packages takes, by a factor of a hundred.
_LIMIT = 200_000


@dataclass(frozen=True, slots=True)
class Need:
    """A package that the set must have, or that a package of it needs. ``by`` is empty for the first."""

    by: str
    clause: Clause

    def __str__(self) -> str:
        what = relations.clause_text(self.clause)
        return f"{self.by} needs {what}" if self.by else f"the set has {what}"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two packages that cannot be installed together, in the order of their names."""

    one: str
    other: str

    def __str__(self) -> str:
        return f"{self.one} cannot be installed together with {self.other}"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A package that is of another driver version or another origin than the set, or that a pin forbids."""

    package: str
    why: str

    def __str__(self) -> str:
        return f"{self.package} {self.why}"


Fact = Need | Conflict | Mismatch


@dataclass(slots=True)
class Closure:
    """The search for one set.

    Args:
        universe: what there is.
        version: the driver version.
        origin: where all of the driver comes from; empty: anywhere, as long as it is one place.
        roots: names that must be there.
        any_version: roots of which any build will do, such as modules for one kernel.
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
        """The set, roots first, without packages that nothing in it needs; ``None``: there is none."""
        found = self.solve_with(None)
        return None if found is None else self._prune(found)

    def reasons(self) -> tuple[Fact, ...]:
        """Why there is no set: facts that leave none, of which each is needed for that."""
        self._met = {}
        if self.solve_with(None) is not None:
            return ()
        # What the search never came to had no part in its failure.
        return core.minimal_conflict(
            tuple(self._met), lambda facts: self.solve_with(facts) is not None
        )

    def describe(self) -> str:
        """The same in words; what nobody offers is named as such."""
        words: list[str] = []
        for fact in self.reasons():
            if isinstance(fact, Need) and not fact.by:
                continue  # what the set must have goes without saying
            nobody = isinstance(fact, Need) and not any(
                self.universe.providers_of(relation) for relation in fact.clause
            )
            words.append(f"{fact}, which no repository offers" if nobody else str(fact))
        return "; ".join(dict.fromkeys(words))

    def solve_with(self, facts: frozenset[Fact] | None) -> tuple[Package, ...] | None:
        """A set that respects only these facts; ``None`` stands for all there are."""
        self._respected, self._tried = facts, 0
        needs = [Need("", (Relation(name),)) for name in self.roots]
        found = self._extend({}, [need for need in needs if self._applies(need)])
        return None if found is None else tuple(found.values())

    def _applies(self, fact: Fact) -> bool:
        """The fact is to be respected; it is written down that it was looked at."""
        if self._respected is not None:
            return fact in self._respected
        self._met.setdefault(fact)
        return True

    def _prune(self, found: tuple[Package, ...]) -> tuple[Package, ...]:
        """Without what another choice made superfluous."""
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
                f"driver {self.version}: its packages can be combined in too many ways to tell",
                fix="name fewer repositories, or an exact version",
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
        """Packages that meet a need, the preferred first; a root is the package of that very name."""
        seen: set[Package] = set()
        for relation in need.clause:
            fitting = [
                package
                for package in self.universe.providers_of(relation)
                if package not in seen and (need.by or package.name == relation.name)
            ]
            seen.update(fitting)
            # A tool of which any version fits is best of the driver's own.
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
        """What keeps a package out of this set."""
        name, origin = str(package), package.repository.origin
        exact = package.name in self.roots and package.name not in self.any_version
        version = upstream_version(package.version) if exact else package.driver
        if version and version != self.version:
            yield Mismatch(name, f"is no part of driver {self.version}")
        if package.forbidden:
            yield Mismatch(name, f"is forbidden by {package.forbidden_by}")
        if self.origin and origin != self.origin and not package.leaf and (exact or version):
            yield Mismatch(name, f"comes from {origin}, not from {self.origin}")
