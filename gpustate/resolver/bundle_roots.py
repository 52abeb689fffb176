"""The packages that the states of a policy would install, and those missing for it.

This is computed twice: from the repositories when a bundle is built, and from the bundle's content before a node
is changed with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpustate.core.facts import NodeFacts
from gpustate.core.state import AnyState
from gpustate.formats import dpkg, driverschemes, driverset, kernelnames
from gpustate.formats.dcgm import packages as dcgm
from gpustate.formats.rpm import is_rpm
from gpustate.solve import branches, schemes
from gpustate.states.container_toolkit import PACKAGES as TOOLKIT_PACKAGES
from gpustate.states.cuda_toolkit import package_name
from gpustate.states.driver.gpus import module_type

Root = tuple[str, str]
#: Available versions of a package, newest first.
Versions = Callable[[str], tuple[str, ...]]
#: Included if available: whether a node needs them depends on its hardware.
_MAYBE = {
    "nvlsm": ("nvlsm",),
    "gdrcopy": ("gdrdrv-dkms", "libgdrapi", "gdrcopy-kmod", "gdrcopy"),
    "gds": ("nvidia-fs-dkms", "nvidia-fs"),
    "nouveau": (),
}


@dataclass(frozen=True, slots=True)
class RequiredPackages:
    """Packages required by states.

    Args:
        by_state: names and versions; packages for kernels are under ``kernels``.
        problem: why a package is unavailable, with its name.
        bare: kernels without available headers, with the package that would have them.
    """

    by_state: Mapping[str, tuple[Root, ...]] = field(default_factory=dict[str, tuple[Root, ...]])
    problem: str = ""
    bare: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def roots(self) -> tuple[Root, ...]:
        """All of them."""
        return tuple(row for rows in self.by_state.values() for row in rows)


def required_packages(
    states: Sequence[AnyState], facts: NodeFacts, versions: Versions, kernels: Sequence[str]
) -> RequiredPackages:
    """The packages that the states of a policy would install on an empty node.

    Args:
        states: with the node's parameters.
        facts: distribution, and the GPUs if known.
        versions: returns available versions.
        kernels: releases that need headers.
    """
    by_name: dict[str, Any] = {state.name: state for state in states if not state.absent}
    found: dict[str, tuple[Root, ...]] = {}
    driver, bare = "", dict[str, str]()
    if "driver" in by_name:
        target, problem = _driver(by_name["driver"], facts, versions, kernels)
        if target is None:
            return RequiredPackages(problem=problem)
        driver = target.version
        found["driver"] = tuple(target.packages.items())
        found["fabric-manager"] = tuple(_fabric(by_name, driver, versions))
        if not by_name["driver"].precompiled and by_name["driver"].headers == "install":
            found["kernels"], bare = _headers(facts.package_manager, kernels, versions)
    for name, state in by_name.items():
        rows, problem = _of(name, state, driver, versions)
        if problem:
            return RequiredPackages(problem=problem)
        found[name] = (*found.get(name, ()), *rows)
    return RequiredPackages({name: rows for name, rows in found.items() if rows}, bare=bare)


def _headers(
    manager: str, kernels: Sequence[str], versions: Versions
) -> tuple[tuple[Root, ...], dict[str, str]]:
    """Packages with the headers of kernels, and unavailable ones."""
    found: dict[Root, None] = {}
    bare: dict[str, str] = {}
    for kernel in kernels:
        if not is_rpm(manager):
            name = f"linux-headers-{kernel}"
            if versions(name):
                found[name, ""] = None
            else:
                bare[kernel] = name
            continue
        names = kernelnames.header_names(manager, kernel)
        package = kernelnames.headers(manager, kernel, {name: versions(name) for name in names})
        if package is None:
            bare[kernel] = f"{names[0]}-{kernelnames.parts(manager, kernel)['e']}"
            continue
        found[package] = None
        if package[1] in versions(kernelnames.MATCHED):
            found[kernelnames.MATCHED, package[1]] = None
    return tuple(found), bare


def _names(state: Any, os_id: str, versions: Versions, kernels: Sequence[str]) -> Iterator[str]:
    """All possible names of driver packages on a distribution."""
    if not driverschemes.is_rpm(os_id):
        yield from (name for one, rows in state.names_to_query() if one == os_id for name in rows)
        for name in state.per_kernel():
            yield from (name.replace("{k}", kernel) for kernel in kernels)
        return
    yield from state.rpm_names()
    for scheme in driverschemes.of(os_id) if state.precompiled else ():
        for version in {driverset.driver_version(v) for v in versions(scheme.compute[0])}:
            for kernel in kernels if scheme.prebuilt and version else ():
                for kind in (driverset.OPEN, driverset.PROPRIETARY):
                    yield from scheme.built_for(kernel, version, kind)


def _driver(
    state: Any, facts: NodeFacts, versions: Versions, kernels: Sequence[str]
) -> tuple[driverset.Target, str] | tuple[None, str]:
    names = dict.fromkeys(_names(state, facts.os_id, versions, kernels))
    available = {name: found for name in names if (found := versions(name))}
    offered = driverset.choices(
        facts.os_id, available, full=state.packages == "full", prebuilt=state.precompiled
    )
    if state.precompiled and kernels and driverschemes.is_rpm(facts.os_id):
        offered = [one for one in offered if driverset.covers(*one, kernels, available)]
    problem = ""
    for scheme, version, kind in offered:
        if not _admits(state, version):
            continue
        branch = driverset.branch_of(version)
        fitting, why = module_type(facts.gpus, branch, state.module_type)
        if fitting != kind:
            problem = problem or why or ""
            continue
        target = driverset.target(
            scheme,
            version,
            kind,
            full=state.packages == "full",
            installed={},
            available=available,
            prebuilt=tuple(kernels),
            use_prebuilt=state.precompiled,
        )
        gone = next((f"{n} {v}" for n, v in state.locked.items() if v not in versions(n)), "")
        if gone:
            return None, gone
        target.packages.update(state.locked)
        return target, ""
    wanted = state.version or (f"branch {state.branch}" if state.branch else "of any version")
    there = ", ".join(dict.fromkeys(version for _, version, _ in offered)) or "none"
    return None, problem or f"driver {wanted} as a complete set (available: {there})"


def _admits(state: Any, version: str) -> bool:
    if state.version in branches.CHANNELS:
        if not branches.in_channel(version, state.version):
            return False
    elif state.version is not None:
        return bool(version == state.version)
    return state.branch in (None, driverset.branch_of(version))


def _fabric(by_name: Mapping[str, Any], driver: str, versions: Versions) -> Iterator[Root]:
    branch = driverset.branch_of(driver)
    groups = {
        "fabric-manager": schemes.fabric_managers(branch),
        "imex": ("nvidia-imex", f"nvidia-imex-{branch}"),
    }
    for state, names in groups.items():
        for name in names if state in by_name else ():
            fitting = driverset.at_version(versions(name), driver)
            if fitting is not None:
                yield name, fitting
                break


def _of(name: str, state: Any, driver: str, versions: Versions) -> tuple[tuple[Root, ...], str]:
    """Packages of one other state, or the problem."""
    if name == "container-toolkit":
        return _together(TOOLKIT_PACKAGES, state.version, versions)
    if name == "dcgm":
        major = dcgm.cuda_major(driver) if driver else None
        if major is None:
            return (), ""
        return _together(dcgm.names(major, closed=state.proprietary), state.version, versions)
    if name == "dcgm-exporter":
        there = next((one for one in dcgm.EXPORTERS if versions(one)), "")
        return ((there, ""),) if there else (), ""
    if name == "cuda-toolkit":
        rows = [(package_name(one), state.releases.get(one, "")) for one in state.versions]
        gone = next((package for package, _ in rows if not versions(package)), "")
        return tuple(rows), gone
    return tuple((one, "") for one in _MAYBE.get(name, ()) if versions(one)), ""


def _together(
    names: Sequence[str], version: str | None, versions: Versions
) -> tuple[tuple[Root, ...], str]:
    """Packages at one version: the desired one, else the newest of all of them."""
    for name in names:
        if not versions(name):
            return (), name
    common = set.intersection(*(set(versions(name)) for name in names))
    fitting = [one for one in common if version in (None, one, dpkg.upstream_version(one))]
    if not fitting:
        return (), f"{names[0]} {version or 'in one version with ' + ', '.join(names[1:])}"
    best = next(one for one in versions(names[0]) if one in fitting)  # the newest
    return tuple((name, best) for name in names), ""
