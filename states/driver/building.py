"""For which kernels modules can be built on a node, with which packages of headers, and where built ones are to be had."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from gpustate.formats import dpkg, driverset, kernelnames
from gpustate.formats.driverschemes import BUILT_MODULES, streams
from gpustate.formats.rpm import is_rpm
from gpustate.states.driver import files
from gpustate.states.driver.observed import Observed


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
    packages: dict[str, str] = {}
    for kernel in kernels:
        package = headers_of(observed, kernel)
        if package is None:
            continue
        packages[package[0]] = package[1]
        if kernel == observed.default_kernel and package[1] in observed.offers.get(
            kernelnames.MATCHED, ()
        ):
            packages[kernelnames.MATCHED] = package[1]
    return tuple(packages.items())


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


def origin(packages: Container[str], installs: Mapping[str, dpkg.Candidate]) -> str:
    """Which repositories those of ``packages`` that come are from, of several the smaller ones with names; and others that come."""
    names: dict[str, list[str]] = {}
    for name, candidate in installs.items():
        if name in packages:
            names.setdefault(dpkg.repository(candidate.origin), []).append(name)
    names.pop("", None)
    main = max(names, key=lambda source: len(names[source]), default="")
    further = (f"{', '.join(names[source])} from {source}" for source in names if source != main)
    extra = origins({n: row for n, row in installs.items() if n not in packages})
    rows = (f"from {main}", *further, extra and f"with {extra}")
    return "; ".join(filter(None, rows)) if main else ""


def origins(packages: Mapping[str, dpkg.Candidate]) -> str:
    """Packages with their versions, by repository."""
    rows: dict[str, dict[str, list[str]]] = {}
    for name, candidate in sorted(packages.items()):
        source = dpkg.repository(candidate.origin)
        rows.setdefault(source, {}).setdefault(candidate.version, []).append(name)
    words = (
        (", ".join(f"{', '.join(names)} {v}".rstrip() for v, names in versions.items()), source)
        for source, versions in rows.items()
    )
    return "; ".join(" from ".join(filter(None, row)) for row in words)


def stream(observed: Observed, target: driverset.Target) -> str | None:
    """The module stream that has the target, where there are streams; else what it is."""
    branch = driverset.branch_of(target.version)
    fitting = streams(branch, target.module_type, prebuilt=not target.builds)
    if not observed.streams or observed.stream in fitting:
        return observed.stream
    return next((name for name in fitting if name in observed.streams), observed.stream)
