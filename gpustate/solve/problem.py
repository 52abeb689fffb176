"""The input of the resolver: the policy's request, the repositories' packages, and what the GPUs allow. Pure.

The compatibility matrix and the table of kernel modules are other modules' business, so a problem carries
them as functions. Every driver that a repository might offer is a :class:`Candidate`, incomplete ones
included: the answer "no set" consists of the reasons that exclude each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gpustate.formats import driverset
from gpustate.formats.dpkg import version_key
from gpustate.formats.driverset import OPEN, PROPRIETARY, Scheme
from gpustate.solve import branches, schemes
from gpustate.solve.packages import Universe
from gpustate.solve.request import DriverRequest

#: Kernel module type for a branch and a requested type, as (type, "") or (None, why there is none).
Modules = Callable[[int, str], tuple[str | None, str]]
#: Compatibility rules that block a driver version with a module type: id and reason of each.
Blocks = Callable[[str, str], "tuple[tuple[str, str], ...]"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One driver that a repository might offer.

    Args:
        scheme: package naming scheme.
        origin: the repository.
        version: driver version.
        module_type: open or proprietary.
        required: names of required packages.
    """

    scheme: Scheme
    origin: str
    version: str
    module_type: str
    required: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.version} {self.module_type} ({self.origin})"


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything that decides which driver a node gets.

    Args:
        wanted: the policy's request.
        universe: packages of the node's repositories.
        os_id: distribution, as in os-release.
        modules: kernel module type of a branch for the GPUs.
        blocks: compatibility rules that block a driver.
        kernels: kernel releases that need prebuilt modules.
        scheme: naming scheme of the installed driver packages; empty for none.
    """

    wanted: DriverRequest
    universe: Universe
    os_id: str
    modules: Modules
    blocks: Blocks = field(default=lambda version, module_type: ())
    kernels: tuple[str, ...] = ()
    scheme: str = ""

    def candidates(self) -> list[Candidate]:
        """All candidates, complete or not: newest first, then the installed naming scheme."""
        found = list(self._candidates())
        order = {scheme.name: number for number, scheme in enumerate(schemes.of(self.os_id))}
        found.sort(key=lambda c: (c.scheme.name != self.scheme, order[c.scheme.name], c.origin))
        found.sort(key=lambda c: version_key(c.version), reverse=True)
        return found

    def _candidates(self) -> Iterator[Candidate]:
        for scheme in schemes.of(self.os_id):
            if self.wanted.precompiled and not scheme.prebuilt:
                continue
            known = sorted(driverset.branches_in(p.name for p in self.universe.packages))
            for branch in known if scheme.by_branch else (0,):
                for module_type in (OPEN, PROPRIETARY):
                    yield from self._of_names(scheme, branch, module_type)

    def _of_names(self, scheme: Scheme, branch: int, module_type: str) -> Iterator[Candidate]:
        names = scheme.required(
            branch, module_type, full=self.wanted.full, prebuilt=self.wanted.precompiled
        )
        for origin in self.universe.origins:
            offered = [self.universe.versions(name, origin) for name in names]
            if not all(offered):
                continue  # this repository uses other names
            for version in dict.fromkeys(version for one in offered for version in one):
                if driverset.is_version(version):
                    required = (*names, *self._fabric_manager(origin, version))
                    yield Candidate(scheme, origin, version, module_type, required)

    def _fabric_manager(self, origin: str, version: str) -> tuple[str, ...]:
        if not self.wanted.fabric_manager:
            return ()
        names = schemes.fabric_managers(driverset.branch_of(version))
        offered = (name for name in names if version in self.universe.versions(name, origin))
        there = (name for name in names if self.universe.from_origin(name, origin))
        return (next(offered, next(there, names[-1])),)

    def extras(self, candidate: Candidate) -> Iterator[str]:
        """Optional packages that the repository offers in the driver's version."""
        branch = driverset.branch_of(candidate.version)
        display = self.wanted.full and self.wanted.precompiled
        for name in candidate.scheme.extra(branch, candidate.module_type, display=display):
            if candidate.version in self.universe.versions(name, candidate.origin):
                yield name

    def prebuilt(self, candidate: Candidate) -> tuple[str, ...]:
        """Packages with prebuilt modules for the node's kernels, where the policy requests them."""
        if not self.wanted.precompiled:
            return ()
        branch, is_open = driverset.branch_of(candidate.version), candidate.module_type == OPEN
        stems = [Scheme.fill(name, branch, is_open) for name in candidate.scheme.prebuilt]
        names = (stem.replace("{k}", kernel) for kernel in self.kernels for stem in stems)
        return tuple(name for name in names if self.universe.from_origin(name, candidate.origin))

    def wants(self, version: str) -> bool:
        """Whether a version matches the requested version, branch and channel."""
        wanted = self.wanted
        return (
            (wanted.version is None or version == wanted.version)
            and (wanted.branch is None or driverset.branch_of(version) == wanted.branch)
            and (wanted.channel is None or branches.in_channel(version, wanted.channel))
        )
