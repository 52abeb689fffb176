"""What some rpm packages need, down to what nodes have: which builds go into a bundle. Pure.

The same idea as :mod:`~gpustate.bundle.closure`, with rpm's relations. What nodes have need not be in the bundle;
where nothing is known of them, everything is taken along, down to the C library.

Surprising: a package that replaces one that is installed may break others that need the old one at its very
version (``glibc-langpack-en`` and ``glibc``). dnf and zypper then install nothing, so those go in as well, at the
version that fits. Kernels and what is built for one are installed side by side, so several versions of those go in.

Sources:
    rpm manual: dependencies, boolean dependencies; dnf.conf(5), installonlypkgs; libzypp, multiversion.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpustate.bundle.closure import SOURCES, Root, World, built, by_repository
from gpustate.bundle.offers import Build
from gpustate.bundle.rpmupstream import RpmBuild
from gpustate.errors import RefusedError
from gpustate.solve import rpmneeds
from gpustate.solve.packages import Package, Universe
from gpustate.solve.relations import Relation
from gpustate.solve.rpmneeds import Need

#: Installed in several versions.
_SIDE_BY_SIDE = re.compile(r"kernel(?:-.+|[0-9.]+(?:-.+)?)?")


@dataclass(frozen=True)
class Installed:
    """What one node has.

    Args:
        packages: with their files among what they provide.
        needs: what each of them requires, by name and version.
    """

    packages: Universe
    needs: Mapping[tuple[str, str], tuple[Need, ...]] = field(
        default_factory=dict[tuple[str, str], tuple[Need, ...]]
    )


@dataclass(slots=True)
class _Search:
    world: World
    nodes: Sequence[Installed]
    chosen: dict[tuple[str, str], tuple[str, RpmBuild]] = field(
        default_factory=dict[tuple[str, str], tuple[str, RpmBuild]]
    )
    provided: dict[str, list[Package]] = field(default_factory=dict[str, list[Package]])
    why: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    waiting: deque[tuple[str, str]] = field(default_factory=deque[tuple[str, str]])

    # --- what there is ---------------------------------------------------------------------

    def taken(self, relation: Relation) -> list[Package]:
        """Chosen packages that meet a relation."""
        rows = self.provided.get(relation.name, ())
        return [one for one in rows if one.meets(relation)]

    def there(self, node: Installed, need: Need) -> bool:
        """One node has what is needed once the bundle is used."""

        def meeting(relation: Relation) -> list[Package]:
            return [*self.taken(relation), *node.packages.meeting(relation)]

        return rpmneeds.holds(need, meeting)

    def met(self, need: Need) -> bool:
        """It need not be seen to any more: on every node."""
        # A condition may not hold of the bundle alone, and hold of a node.
        if (need.relation or not self.nodes) and rpmneeds.holds(need, self.taken):
            return True
        if not self.nodes:
            return False
        many = bool(need.relation and _SIDE_BY_SIDE.fullmatch(need.relation.name))
        # A kernel's own packages are of interest where that kernel is.
        each = (self.there(node, need) for node in self.nodes)
        return any(each) if many else all(each)

    def somewhere(self, need: Need) -> bool:
        """A condition holds on some node."""
        if not self.nodes:
            return rpmneeds.holds(need, self.taken)
        return any(self.there(node, need) for node in self.nodes)

    # --- choosing --------------------------------------------------------------------------

    def take(self, row: tuple[str, Build], why: str) -> None:
        home, build = row
        package = built(build)
        if not isinstance(build, RpmBuild):
            raise RefusedError(f"{package} is no rpm package")
        key = (package.name, package.version)
        if key in self.chosen:
            return
        other = self.clash(package)
        if other is not None:
            raise RefusedError(
                f"{package} ({why}) and {other} ({self.why[other.name, other.version]}) "
                "cannot be installed together",
                fix="make a bundle for each",
            )
        self.chosen[key], self.why[key] = (home, build), why
        self.waiting.append(key)
        for name in dict.fromkeys((package.name, *(name for name, _ in package.provides))):
            self.provided.setdefault(name, []).append(package)

    def clash(self, package: Package) -> Package | None:
        """A chosen package that cannot be installed together with another."""
        for _, build in self.chosen.values():
            other = build.package
            beside = other.name == package.name and _SIDE_BY_SIDE.fullmatch(package.name)
            if not beside and package.clashes(other):
                return other
        return None

    def ways(self, need: Need) -> Iterator[tuple[str, Build]]:
        """Builds that have all of a need, the preferred first: those of which nodes have another version."""
        found: dict[tuple[str, str], tuple[str, Build]] = {}
        for relation in need.relations:
            for row in (*self.world.called(relation.name), *self.world.providing(relation.name)):
                package = built(row[1])
                found.setdefault((package.name, package.version), row)

        rows = [row for row in found.values() if _has(built(row[1]), need)]
        rows.sort(key=lambda row: not self._is_known(built(row[1]).name))
        return iter(rows)

    def _is_known(self, name: str) -> bool:
        return any(node.packages.called(name) for node in self.nodes)

    def fulfil(self, need: Need, why: str) -> bool:
        """See to a need; whether that was possible."""
        if self.met(need):
            return True
        match need.word:
            case "and":
                return all(self.fulfil(part, why) for part in need.parts)
            case "or":
                return any(self.fulfil(part, why) for part in need.parts)
            case "if" | "unless":
                return self._conditional(need, why)
            case _:
                for row in self.ways(need):
                    if self.clash(built(row[1])) is None:
                        self.take(row, why)
                        return True
                return False

    def _conditional(self, need: Need, why: str) -> bool:
        asked = self.somewhere(need.parts[1]) == (need.word == "if")
        if asked:
            return self.fulfil(need.parts[0], why)
        return len(need.parts) < 3 or self.fulfil(need.parts[2], why)

    # --- until nothing is missing ----------------------------------------------------------

    def close(self) -> None:
        """Take along whatever chosen packages, and those that they leave behind on nodes, need."""
        while self.waiting:
            while self.waiting:
                _, build = self.chosen[self.waiting.popleft()]
                self._needs_of(build)
            # What hangs on a condition is judged again, of all that is there by now.
            for _, build in list(self.chosen.values()):
                self._needs_of(build)
            for node in self.nodes:
                self._keep_whole(node)

    def _needs_of(self, build: RpmBuild) -> None:
        if build.listed.unread:
            raise RefusedError(
                f"{build.package} needs {build.listed.unread[0]}, which cannot be read here",
                fix="want another version, or bring it to the nodes by other means",
            )
        for need in build.needs:
            if not self.fulfil(need, f"{build.package} needs it"):
                files = any(r.name.startswith("/") for r in need.relations)
                more = " (repodata has the files of some folders only)" if files else ""
                raise RefusedError(
                    f"{build.package} needs {need}, which no repository offers in a version that fits{more}",
                    fix=SOURCES,
                )

    def _keep_whole(self, node: Installed) -> None:
        """Packages of a node that need what is replaced go along with it."""
        gone = [
            old
            for name in dict.fromkeys(name for name, _ in self.chosen)
            for old in node.packages.called(name)
            if not _SIDE_BY_SIDE.fullmatch(name) and (name, old.version) not in self.chosen
        ]
        if not gone:
            return
        replaced = {old.name for old in gone}
        lost = {name for old in gone for name in (old.name, *(name for name, _ in old.provides))}

        def after(relation: Relation) -> list[Package]:
            there = node.packages.meeting(relation)
            return [*self.taken(relation), *(p for p in there if p.name not in replaced)]

        def before(relation: Relation) -> Sequence[Package]:
            return node.packages.meeting(relation)

        for (name, version), needs in node.needs.items():
            if name in replaced:
                continue
            for need in needs:
                if not any(relation.name in lost for relation in need.relations):
                    continue
                if rpmneeds.holds(need, before) and not rpmneeds.holds(need, after):
                    self._follow(name, version, need)
                    break

    def _follow(self, name: str, version: str, need: Need) -> None:
        """Take the newest build of an installed package: the one that is there would be broken."""
        rows = [row for row in self.world.called(name) if built(row[1]).version != version]
        row = next((row for row in rows if self.clash(built(row[1])) is None), None)
        if row is None:
            if len(self.nodes) > 1:
                return  # it may go in for the others only; dnf and zypper refuse before anything changes
            raise RefusedError(
                f"{name} {version} is installed and needs {need}, which would be replaced, and no repository "
                "offers a version of it that fits",
                fix=f"update the nodes first, or {SOURCES}",
            )
        self.take(row, f"what {name} {version} needs is replaced")


def _has(package: Package, need: Need) -> bool:
    """One package has all of a need."""
    return bool(rpmneeds.having(need, lambda one: [package] if package.meets(one) else []))


def close(
    world: World, roots: Iterable[Root], nodes: Sequence[Installed]
) -> dict[str, list[Build]]:
    """Packages and all they need, by the repository of the bundle they go to.

    Args:
        world: what may be taken.
        roots: what it is all for; those go in whoever has them.
        nodes: what each has installed; empty: nothing is known, and everything goes in.

    Raises:
        RefusedError: something is needed that nobody offers, or two clash.
    """
    search = _Search(world, nodes)
    for name, version in dict.fromkeys(roots):
        if version or not any(name == key for key, _ in search.chosen):
            search.take(world.wanted(name, version), "asked for")
    search.close()
    return by_repository(search.chosen.values())
