"""For which kernels modules can be built on a node, with which packages of headers, and where built ones are to be had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpustate.formats import dpkg, driverset, kernelnames
from gpustate.formats.driverschemes import BUILT_MODULES, streams
from gpustate.formats.rpm import is_rpm
from gpustate.states.driver import files
from gpustate.states.driver.observed import Apt, Observed


def headers_of(observed: Observed, kernel: str) -> tuple[str, str] | None:
    """The package that brings the headers of a kernel, and its version; ``None`` where none is offered."""
    if is_rpm(observed.manager):
        return kernelnames.headers(observed.manager, kernel, observed.offers)
    name = f"linux-headers-{kernel}"
    return (name, "") if observed.offers.get(name) else None


def headers_name(observed: Observed, kernel: str) -> str:
    """What such a package is called, for messages."""
    if not is_rpm(observed.manager):
        return f"linux-headers-{kernel}"
    name = kernelnames.header_names(observed.manager, kernel)[0]
    return f"{name}-{kernelnames.parts(observed.manager, kernel)['e']}"


def can_build(observed: Observed, kernel: str, *, install: bool) -> bool:
    """Headers are there, or may be installed and are offered."""
    return observed.headers[kernel] or (install and headers_of(observed, kernel) is not None)


def header_packages(observed: Observed, kernels: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Packages with headers, and what keeps those of the kernel that boots next beside it."""
    found: dict[str, str] = {}
    for kernel in kernels:
        package = headers_of(observed, kernel)
        if package is None:
            continue
        found[package[0]] = package[1]
        if kernel == observed.default_kernel and package[1] in observed.offers.get(
            kernelnames.MATCHED, ()
        ):
            found[kernelnames.MATCHED] = package[1]
    return tuple(found.items())


def further_modules(observed: Observed) -> dict[str, str]:
    """Packages with modules that nvidia-modeset needs, for kernels that lack them, as far as dnf offers them."""
    kernels = observed.bare_kernels if observed.manager == "dnf" else ()
    return {n: v for k in kernels for n, v in kernelnames.modules(k, observed.offers).items()}


def modules_of(
    driver: tuple[driverset.Scheme, str, str], kernels: frozenset[str], packages: Iterable[str]
) -> set[str]:
    """Packages that bring the modules of a driver for some kernels only.

    Args:
        driver: scheme, version and module type.
        packages: among which they are looked for.
    """
    scheme, version, kind = driver
    names = {name for k in kernels for name in scheme.built_for(k, version, kind)}
    ends = tuple(f"-{kernel}" for kernel in kernels)
    return names | {n for n in packages if driverset.is_for_kernel(n) and n.endswith(ends)}


def builds_with_dkms(observed: Observed) -> bool:
    """The installed driver has its modules from DKMS: it stays so unless the policy says otherwise."""
    names = [name for name, v in observed.packages.items() if driverset.is_member(name, v)]
    prebuilt = signed_only(observed) or any(map(BUILT_MODULES.match, names))
    return observed.whole is not None and not prebuilt


def signed_only(observed: Observed) -> bool:
    """Modules that Ubuntu built and signed are installed, and nothing that builds others."""
    names = observed.packages
    return any(map(files.is_signed, names)) and not any(n.startswith("nvidia-dkms-") for n in names)


def _source(apt: Apt, name: str, version: str, installs: Mapping[str, dpkg.Candidate]) -> str:
    offers = (offer for offer in apt.offers.get(name, ()) if offer.version == version)
    origin = next((origin for offer in offers for origin in offer.origins), "")
    return dpkg.repository(origin or (installs[name].origin if name in installs else ""))


def origin(
    apt: Apt,
    observed: Observed,
    packages: Mapping[str, str],
    installs: Mapping[str, dpkg.Candidate],
) -> str:
    """Which repositories ``packages`` that change are from, of several the smaller ones with names; and others of ``installs``."""
    names: dict[str, list[str]] = {}
    for name, version in packages.items():
        if observed.packages.get(name) != version:
            names.setdefault(_source(apt, name, version, installs), []).append(name)
    names.pop("", None)
    main = max(names, key=lambda origin: len(names[origin]), default="")
    others = (f"{', '.join(names[one])} from {one}" for one in names if one != main)
    dependencies = {n: one.version for n, one in installs.items() if n not in packages}
    brought = origins(apt, dependencies, installs)
    rows = (f"from {main}", *others, brought and f"with {brought}")
    return "; ".join(filter(None, rows)) if main else ""


def origins(apt: Apt, packages: Mapping[str, str], installs: Mapping[str, dpkg.Candidate]) -> str:
    """Each package with its version, which ``installs`` has where it is empty, by repository."""
    rows: dict[str, dict[str, list[str]]] = {}
    for name, wanted in sorted(packages.items()):
        version = wanted or (installs[name].version if name in installs else "")
        source = _source(apt, name, version, installs)
        rows.setdefault(source, {}).setdefault(version, []).append(name)
    words = (
        (", ".join(f"{', '.join(some)} {v}".rstrip() for v, some in versions.items()), source)
        for source, versions in rows.items()
    )
    return "; ".join(" from ".join(filter(None, row)) for row in words)


def stream(observed: Observed, target: driverset.Target) -> str | None:
    """The module stream that has the target, where there are streams; else what it is."""
    branch = driverset.branch_of(target.version)
    fitting = streams(branch, target.module_type, prebuilt=not target.builds)
    if not observed.streams or observed.stream in fitting:
        return observed.stream
    return next((one for one in fitting if one in observed.streams), observed.stream)
