"""Which rpm packages go into a bundle: the roots and their dependencies, as libsolv resolves them for each node.

libsolv is the resolver of dnf and zypper, so a bundle has what they will install: for each set of installed
packages the whole transaction, in which updates of installed packages that would otherwise break are included
(``glibc-langpack-en`` follows ``glibc``). Where nothing is known of the nodes, nothing counts as installed, and
everything goes in, down to the C library. Weak dependencies stay out.

Surprising: kernels and what is built for one are installed side by side, so several versions of those go in. A root
for a kernel has to be installable on some node only: a node without that kernel needs no headers for it.

Sources:
    libsolv, doc/libsolv-bindings.txt; dnf.conf(5), installonlypkgs; libzypp, multiversion; rpm manual, boolean dependencies.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpustate.bundle.closure import SOURCES, Available, Root, by_repository, package_of
from gpustate.bundle.offers import Build
from gpustate.bundle.rpmupstream import RpmBuild
from gpustate.errors import RefusedError, UsageError

#: Installed in several versions.
_SIDE_BY_SIDE = re.compile(r"kernel(?:-.+|[0-9.]+(?:-.+)?)?")
_HEAD = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<metadata xmlns="http://linux.duke.edu/metadata/common" '
    b'xmlns:rpm="http://linux.duke.edu/metadata/rpm">\n'
)
#: More facts of one conflict than anybody reads.
_FACTS = 6


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """One package that is installed on a node.

    Args:
        name, version, architecture: as rpm prints them, the version with its epoch unless that is 0.
        provides: names and files, each with a version or an empty text.
        requires: name, operator and version of each requirement; boolean dependencies have only a name.
    """

    name: str
    version: str
    architecture: str
    provides: tuple[tuple[str, str], ...] = ()
    requires: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class Installed:
    """All packages that are installed on one node."""

    packages: tuple[InstalledPackage, ...]


def resolve(
    world: Available, roots: Iterable[Root], nodes: Sequence[Installed]
) -> dict[str, list[Build]]:
    """Resolve the roots for every node: builds by the repository of the bundle they go to.

    Args:
        world: available packages.
        roots: packages the bundle is built for; they go in even where a node has them.
        nodes: installed packages of each node; empty when nothing is known, and everything goes in.

    Raises:
        RefusedError: a dependency is unavailable, or packages conflict.
        UsageError: libsolv is not installed.
    """
    wanted = list(dict.fromkeys(roots))
    exact = {name for name, version in wanted if version}
    rows = [world.find(*root) for root in wanted if root[1] or root[0] not in exact]
    pool = _Pool(world)
    found = {pool.ids[id(build)]: (home, build) for home, build in rows}
    side_by_side = [one for one in found if _SIDE_BY_SIDE.fullmatch(package_of(found[one][1]).name)]
    refused: dict[int, RefusedError] = {}
    installable: set[int] = set()
    for node in dict.fromkeys(nodes) or (Installed(()),):
        pool.install_base(node)
        try:
            new = pool.resolve(list(found))
            installable.update(side_by_side)
        except RefusedError:
            if not side_by_side or len(nodes) < 2:
                raise
            mine = [one for one in found if one not in side_by_side]
            for kernel in side_by_side:
                try:
                    pool.resolve([kernel])
                    mine.append(kernel)
                except RefusedError as why:
                    refused.setdefault(kernel, why)
            installable.update(mine)
            new = pool.resolve(mine)
        found |= {one: pool.rows[one] for one in new}
    for kernel, error in refused.items():
        if kernel not in installable:
            raise error
    return by_repository(found[one] for one in sorted(found))


class _Pool:
    """libsolv's pool with every available package, and one node's installed packages at a time."""

    def __init__(self, world: Available) -> None:
        try:
            import solv  # a C library that only bundles of rpm packages need
        except ImportError:
            raise UsageError(
                "the Python package solv is not installed, but bundles of rpm packages need it",
                fix="build the bundle on Linux, or install solv: pip install solv",
            ) from None

        self._solv: Any = solv
        self._pool: Any = solv.Pool()
        self._pool.setdisttype(solv.Pool.DISTTYPE_RPM)
        for flag in ("OBSOLETEUSESCOLORS", "IMPLICITOBSOLETEUSESCOLORS"):
            # Packages of a second architecture (glibc.i686) are installed next to those of the first.
            self._pool.set_flag(getattr(solv.Pool, f"POOL_FLAG_{flag}"), 1)
        self.rows: dict[int, tuple[str, RpmBuild]] = {}
        self.ids: dict[int, int] = {}
        architectures: set[str] = set()
        for home, indexes in world.indexes.items():
            builds = [
                build
                for index in indexes
                for name, rows in index.stanzas.items()
                if home in world.repositories_of(name)
                for build in rows
                if isinstance(build, RpmBuild)
            ]
            architectures |= {build.package.architecture for build in builds}
            for build, number in zip(builds, self._load(home, builds), strict=True):
                self.rows[number] = (home, build)
                self.ids[id(build)] = number
        machine = next(iter(sorted(architectures - {"noarch"})), "")
        if machine:
            self._pool.setarch(machine)
        names = {build.package.name for _, build in self.rows.values()}
        self._kernels = sorted(filter(_SIDE_BY_SIDE.fullmatch, names))

    def _load(self, home: str, builds: Sequence[RpmBuild]) -> list[int]:
        repository = self._pool.add_repo(home)
        with tempfile.TemporaryFile() as file:
            file.write(
                _HEAD + b"\n".join(build.entry.text for build in builds) + b"\n</metadata>\n"
            )
            file.seek(0)
            stream = self._solv.xfopen_fd(None, file.fileno())
            loaded = repository.add_rpmmd(stream, None, 0)
            stream.close()
        ids = [one.id for one in repository.solvables]
        if not loaded or len(ids) != len(builds):
            raise RefusedError(f"libsolv cannot read the repodata of {home}: {self._pool.errstr}")
        return ids

    def install_base(self, node: Installed) -> None:
        """Replace the installed packages by those of another node."""
        if self._pool.installed is not None:
            self._pool.installed.free()
        system = self._pool.add_repo("@System")
        for one in node.packages:
            row = system.add_solvable()
            row.name, row.evr, row.arch = one.name, one.version, one.architecture
            for name, version in one.provides:
                row.add_provides(self._dependency(name, "=" if version else "", version))
            for need in one.requires:
                row.add_requires(self._dependency(*need))
        self._pool.installed = system
        self._pool.addfileprovides()
        self._pool.createwhatprovides()

    def _dependency(self, name: str, operator: str, version: str) -> Any:
        if name.startswith("("):
            # What is installed was readable to rpm.
            return self._pool.parserpmrichdep(name) or self._pool.Dep(name)
        dependency = self._pool.Dep(name)
        if not operator:
            return dependency
        flags = {"<": self._solv.REL_LT, "=": self._solv.REL_EQ, ">": self._solv.REL_GT}
        return dependency.Rel(sum(flags[sign] for sign in operator), self._pool.Dep(version))

    def resolve(self, roots: Sequence[int]) -> list[int]:
        """Packages to install on the node for some roots.

        Raises:
            RefusedError: a dependency is unavailable, cannot be read, or packages conflict.
        """
        kinds = self._solv.Job
        jobs = [
            self._pool.Job(kinds.SOLVER_SOLVABLE | kinds.SOLVER_INSTALL, root) for root in roots
        ]
        jobs += [
            self._pool.Job(
                kinds.SOLVER_SOLVABLE_NAME | kinds.SOLVER_MULTIVERSION, self._pool.str2id(name)
            )
            for name in self._kernels
        ]
        solver = self._pool.Solver()
        for flag in ("IGNORE_RECOMMENDED", "ALLOW_VENDORCHANGE", "NO_INFARCHCHECK"):
            solver.set_flag(getattr(self._solv.Solver, f"SOLVER_FLAG_{flag}"), 1)
        problems = solver.solve(jobs)
        if problems:
            raise self._refusal(problems)
        new = [one.id for one in solver.transaction().newsolvables()]
        for one in new:
            self._check_readable(self.rows[one][1])
        return new

    def _check_readable(self, build: RpmBuild) -> None:
        # libsolv leaves out what it cannot read, and a bundle would lack it.
        for text in build.entry.boolean:
            if self._pool.parserpmrichdep(text) is None:
                raise RefusedError(
                    f"{build.package} needs {text}, which is not a valid boolean dependency",
                    fix="choose another version, or install it on the nodes by other means",
                )

    def _refusal(self, problems: Iterable[Any]) -> RefusedError:
        """libsolv's own sentences, which users of dnf and zypper know, those about missing packages first."""
        facts: dict[str, int] = {}
        fix = "build a bundle for each of them"
        for info in (rule.info() for one in problems for rule in one.findallproblemrules()):
            text, missing = info.problemstr(), self._is_missing(info)
            if missing and str(info.dep).startswith("/"):
                text += " (repodata lists only files of a few folders)"
            if info.solvable is not None and info.solvable.isinstalled():
                text = text.replace(str(info.solvable), f"{info.solvable} (installed)", 1)
                fix = f"update the nodes first, or {SOURCES}"
            facts[text] = not missing
        if not all(facts.values()):
            fix = SOURCES
        first = sorted(facts, key=facts.__getitem__)
        more = f"; and {len(first) - _FACTS} more" if len(first) > _FACTS else ""
        return RefusedError("; ".join(first[:_FACTS]) + more, fix=fix)

    def _is_missing(self, info: Any) -> bool:
        return bool(info.type == self._solv.Solver.SOLVER_RULE_PKG_NOTHING_PROVIDES_DEP)
