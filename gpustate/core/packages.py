"""Packages that a state installs, as it declares them to bundles and their checks. Pure.

A bundle is built before any node is changed, from the versions that repositories offer. Before a node is changed,
the versions in its bundle are compared with what its states still need. Both call
:meth:`gpustate.core.state.State.required_packages`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType

from gpustate.core.facts import NodeFacts
from gpustate.formats import dpkg, driverset

#: A package name, and its version; an empty version is the newest.
PackageRoot = tuple[str, str]
#: Offered versions of a package, newest first.
Versions = Callable[[str], tuple[str, ...]]


def fitting_version(
    version: str | None, installed: str | None, offered: Iterable[str]
) -> str | None:
    """The installed version of a package, else the first offered one, if it is the given one; without that, any is."""
    versions = filter(None, (installed, *offered))
    return next((v for v in versions if version in (None, "", v, dpkg.upstream_version(v))), None)


def not_offered(
    package: str,
    offered: Iterable[str],
    advice: str,
    forbidden: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """That no repository offers a package as a policy wants it, what there is of it, and the next move.

    Args:
        forbidden: packages with versions that foreign pins forbid, and the file of these.
    """
    listing = ", ".join(islice(offered, 5))
    more = listing and f"; there is {listing}"
    if forbidden:
        paths, (first, *further) = ", ".join(dict.fromkeys(forbidden.values())), forbidden
        example = f"{first} and {len(further)} more" if further else first
        more = f", apart from what pins in {paths} forbid ({example}){more}"
        advice = f"remove these pins, or {advice}"
    return f"no repository offers {package.rstrip()}{more}; {advice}"


@dataclass(frozen=True, slots=True)
class Offer:
    """What a state chooses its packages from.

    Args:
        facts: distribution of the node, and its GPUs where they are known.
        versions: what repositories, or a bundle, offer.
        kernels: kernel releases that need headers or modules, where the node was not observed.
        chosen: facts of the compatibility matrix that follow from the packages of earlier states.
    """

    facts: NodeFacts
    versions: Versions
    kernels: tuple[str, ...] = ()
    chosen: Mapping[str, object] = field(default_factory=dict[str, object])

    def optional(self, *names: str) -> StatePackages:
        """Those packages that are offered; whether a node needs them, only its hardware tells."""
        return StatePackages(tuple((name, "") for name in names if self.versions(name)))

    def at_driver(self, driver: object, *names: str) -> StatePackages:
        """The first of some names that is offered at a driver version; nothing where that is unknown.

        Args:
            driver: as :attr:`chosen` has it; anything but a version is unknown.
            names: of one package; ``{branch}`` is the branch of the driver.
        """
        if isinstance(driver, str):
            branch = driverset.branch_of(driver)
            for name in (pattern.replace("{branch}", str(branch)) for pattern in names):
                fitting = driverset.at_version(self.versions(name), driver)
                if fitting is not None:
                    return StatePackages(((name, fitting),))
        return StatePackages()

    def one_version(self, names: Sequence[str], version: str | None) -> StatePackages:
        """All packages at one version: the requested one, else the newest that all of them have.

        Args:
            names: the packages.
            version: a package version, or an upstream version.
        """
        for name in names:
            if not self.versions(name):
                return StatePackages(missing=name)
        common = set.intersection(*(set(self.versions(name)) for name in names))
        fitting = [v for v in common if version in (None, v, dpkg.upstream_version(v))]
        if not fitting:
            requirement = version or f"in one version with {', '.join(names[1:])}"
            return StatePackages(missing=f"{names[0]} {requirement}")
        best = next(v for v in self.versions(names[0]) if v in fitting)  # the newest
        return StatePackages(tuple((name, best) for name in names))


@dataclass(frozen=True, slots=True)
class StatePackages:
    """What a state installs on a node that has none of it.

    Args:
        packages: without their dependencies.
        missing: a package, or set of packages, that is needed and not offered.
        headers: packages with the headers of kernels.
        missing_headers: kernel releases whose headers are not offered, with the name of the package.
        facts: facts of the compatibility matrix that follow from the packages, for later states.
        pins: text of the preferences with which apt installs them.
    """

    packages: tuple[PackageRoot, ...] = ()
    missing: str = ""
    headers: tuple[PackageRoot, ...] = ()
    missing_headers: Mapping[str, str] = field(default_factory=dict[str, str])
    facts: Mapping[str, object] = field(default_factory=dict[str, object])
    pins: str = ""


__all__ = ["Offer", "PackageRoot", "StatePackages", "Versions", "fitting_version", "not_offered"]
