"""The packages of one driver version: dependencies complete, no conflicts, no mixed versions or origins. Pure.

The search is exact: it backtracks over every choice (alternatives, provided names, builds) before it
reports that there is no set, with its first dead end.

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
from gpustate.solve import relations
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
    problem: str = field(default="", init=False)  # the first dead end of the last search
    _tried: int = field(default=0, init=False)

    def find(self) -> tuple[Package, ...] | None:
        """The set, roots first, without unneeded packages; ``None`` when there is none, and why in ``problem``."""
        self._tried, self.problem = 0, ""
        chosen = self._extend({}, [Need("", (Relation(name),)) for name in self.roots])
        return None if chosen is None else self._prune(tuple(chosen.values()))

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
            objections: list[str] = []
            for package in self._candidates(need):
                objection = self._objection(package, chosen)
                if objection is not None:
                    objections.append(objection)
                    continue
                extended = {**chosen, package.name: package}
                found = self._extend(extended, [*rest, *self._needs(package)])
                if found is not None:
                    return found
            why = "; ".join(dict.fromkeys(filter(None, objections)))
            self.problem = self.problem or f"{need}, {why or 'which no repository offers'}"
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

    def _objection(self, package: Package, chosen: dict[str, Package]) -> str | None:
        """Why a package cannot be added to those chosen; ``None`` if it can, empty for another build of one of them."""
        mine = chosen.get(package.name)
        if mine is not None and mine != package:
            return ""
        reason = next(self._mismatches(package), None)
        if reason is not None:
            return f"{package} {reason}"
        other = next((other for other in chosen.values() if package.conflicts_with(other)), None)
        return f"{package} cannot be installed together with {other}" if other else None

    def _mismatches(self, package: Package) -> Iterator[str]:
        """Reasons why a package cannot be in this set."""
        origin = package.repository.origin
        exact = package.name in self.roots and package.name not in self.any_version
        version = upstream_version(package.version) if exact else package.driver
        if version and version != self.version:
            yield f"does not belong to driver {self.version}"
        if package.forbidden:
            yield f"is forbidden by {package.forbidden_by}"
        if self.origin and origin != self.origin and not package.leaf and (exact or version):
            yield f"comes from {origin}, not from {self.origin}"
