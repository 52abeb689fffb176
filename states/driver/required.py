"""Packages of the driver, and kernel headers, that a node without any of them needs: for bundles and their checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpustate.core.packages import Offer, PackageRoot, StatePackages
from gpustate.formats import driverschemes, driverset, kernelnames
from gpustate.formats.rpm import is_rpm
from gpustate.states.driver import files
from gpustate.states.driver.choice import Request, brief, is_for_desktops
from gpustate.states.driver.gpus import module_type
from gpustate.states.driver.observed import Observed
from gpustate.states.driver.parameters import DriverParameters


def required(state: DriverParameters, offer: Offer, observed: Observed | None) -> StatePackages:
    """The driver's set and the headers it is built with."""
    kernels = offer.kernels if observed is None else _kernels(state, observed)
    switches = offer.facts.has_nvswitch if observed is None else observed.switches
    target, missing = _target(state, offer, kernels, switches=switches)
    if target is None:
        return StatePackages(missing=missing)
    headers: tuple[PackageRoot, ...] = ()
    headerless: dict[str, str] = {}
    if not state.precompiled and state.headers == "install":
        headers, headerless = _headers(offer, kernels)
    packages = tuple(target.packages.items())
    pins = files.pins_of(target.version, target.packages)
    return StatePackages(packages, "", headers, headerless, {"driver": target.version}, pins)


def _kernels(state: DriverParameters, observed: Observed) -> tuple[str, ...]:
    """Kernels that need packages: headers where there are none; prebuilt modules of rpm packages, all of them."""
    every = bool(state.precompiled) and is_rpm(observed.manager)
    return tuple(sorted(k for k, ready in observed.headers.items() if every or not ready))


def _headers(
    offer: Offer, kernels: Sequence[str]
) -> tuple[tuple[PackageRoot, ...], dict[str, str]]:
    """Packages with the headers of kernels, and those that are not offered."""
    manager, versions = offer.facts.package_manager, offer.versions
    packages: dict[PackageRoot, None] = {}
    headerless: dict[str, str] = {}
    for kernel in kernels:
        if not is_rpm(manager):
            name = f"linux-headers-{kernel}"
            if versions(name):
                packages[name, ""] = None
            else:
                headerless[kernel] = name
            continue
        names = kernelnames.header_names(manager, kernel)
        package = kernelnames.headers(manager, kernel, {name: versions(name) for name in names})
        if package is None:
            headerless[kernel] = f"{names[0]}-{kernelnames.parts(manager, kernel)['e']}"
            continue
        packages[package] = None
        if package[1] in versions(kernelnames.MATCHED):
            packages[kernelnames.MATCHED, package[1]] = None
    return tuple(packages), headerless


def _names(state: DriverParameters, offer: Offer, kernels: Sequence[str]) -> Iterator[str]:
    """Every name that a package of the driver may have on a distribution."""
    os_id = offer.facts.os_id
    if not driverschemes.is_rpm(os_id):
        yield from (name for key, rows in state.names_to_query() if key == os_id for name in rows)
        for name in state.per_kernel():
            yield from (name.replace("{k}", kernel) for kernel in kernels)
        return
    yield from state.rpm_names()
    for scheme in driverschemes.of(os_id) if state.precompiled else ():
        builds = offer.versions(scheme.compute[0])
        for version in {driverset.driver_version(build) for build in builds}:
            for kernel in kernels if scheme.prebuilt and version else ():
                for kind in (driverset.OPEN, driverset.PROPRIETARY):
                    yield from scheme.built_for(kernel, version, kind)


def _target(
    state: DriverParameters, offer: Offer, kernels: Sequence[str], *, switches: bool
) -> tuple[driverset.Target, str] | tuple[None, str]:
    os_id, prebuilt = offer.facts.os_id, bool(state.precompiled)
    full = state.packages == "full"
    request = Request(state.version, state.branch, state.module_type, full, prebuilt)
    # A refusal names the other branches.
    every = state.model_copy(update={"version": None, "branch": None})
    names = dict.fromkeys(_names(every, offer, kernels))
    available = {name: builds for name in names if (builds := offer.versions(name))}
    offered = driverset.choices(os_id, available, full=full, prebuilt=prebuilt)
    if switches:
        fit = [choice for choice in offered if not is_for_desktops(choice, available)]
        # As the state chooses.
        offered = fit if any(request.admits(version) for _, version, _ in fit) else offered
    if prebuilt and kernels and driverschemes.is_rpm(os_id):
        offered = [choice for choice in offered if driverset.covers(*choice, kernels, available)]
    problem = ""
    for scheme, version, kind in offered:
        if not request.admits(version):
            continue
        branch = driverset.branch_of(version)
        fitting, why = module_type(offer.facts.gpus, branch, state.module_type)
        if fitting != kind:
            problem = problem or why or ""
            continue
        target = driverset.target(
            scheme,
            version,
            kind,
            full=full,
            installed={},
            available=available,
            prebuilt=tuple(kernels),
            use_prebuilt=prebuilt,
        )
        absent = (f"{n} {v}" for n, v in state.locked.items() if v not in offer.versions(n))
        missing = next(absent, "")
        if missing:
            return None, missing
        target.packages.update(state.locked)
        return target, ""
    requested = state.version or (f"branch {state.branch}" if state.branch else "of any version")
    listed = brief((version for _, version, _ in offered), request) or "none"
    return None, problem or f"driver {requested} as a complete set (available: {listed})"
