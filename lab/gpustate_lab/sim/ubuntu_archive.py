"""The simulated archive of Ubuntu: its pockets and components, with kernels, drivers and signed modules.

Real: the layout, the fields of Release files that apt's pins and unattended-upgrades match, names, relations. Not
there: everything else of Ubuntu. A node's other packages are Debian's.

Sources:
    Ubuntu's archive: dists/noble, -updates and -security; Phased-Update-Percentage of apt_preferences(5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpustate_lab.sim import gpudirect_packages, node_packages, ubuntu_packages
from gpustate_lab.sim.deb import Package
from gpustate_lab.sim.native import Builder
from gpustate_lab.sim.signing import ModuleSigner
from gpustate_lab.sim.ubuntu_packages import SECURITY, UPDATES, Release, UbuntuSet

COMPONENTS = ("main", "restricted", "multiverse")
#: Drivers of the release itself.
FIRST = {version: cuda for version, cuda in SECURITY.items() if version.startswith("535.")}
#: nvidia-modprobe has its own version in the archive.
MODPROBE = "550.54.14-1"


@dataclass(slots=True)
class Pocket:
    """A part of the archive with a Release file of its own.

    Args:
        suite: ``noble``, ``noble-updates``, ``noble-security``.
        packages: by component.
    """

    suite: str
    packages: dict[str, list[Package]] = field(default_factory=dict[str, list[Package]])

    def add(self, component: str, packages: Sequence[Package]) -> None:
        known = {(one.name, one.version) for one in self.packages.setdefault(component, [])}
        self.packages[component] += [p for p in packages if (p.name, p.version) not in known]


def pockets(
    release: Release, running: str, builder: Builder, signer: ModuleSigner, scratch: Path
) -> list[Pocket]:
    """Return the pockets of one release.

    Args:
        release: of Ubuntu.
        running: the kernel that nodes run.
        builder: compiles stubs and modules.
        signer: signs the modules.
        scratch: folder for what is compiled.
    """
    older, newer = release.kernels
    scratch = scratch / release.code
    scratch.mkdir()
    first, security, updates = (
        Pocket(release.codename + tail) for tail in ("", "-security", "-updates")
    )
    kernels = {
        kernel: node_packages.ubuntu_kernel_packages(kernel, builder, scratch)
        for kernel in (older, newer, running)
    }
    first.add("main", [*kernels[older], *kernels[running]])
    first.add("main", node_packages.ubuntu_kernel_metas(older, release.number))
    if (version := gpudirect_packages.ARCHIVED_FS.get(release.code)) is not None:
        first.add("multiverse", [gpudirect_packages.nvidia_fs(version)])
    for pocket in (security, updates):
        pocket.add("main", kernels[newer])
        pocket.add("main", node_packages.ubuntu_kernel_metas(newer, release.number))
    for pocket, versions, built in (
        (first, FIRST, (older, running)),
        (security, SECURITY, (older, newer, running)),
        (updates, UPDATES, (older, newer, running)),
    ):
        _add_drivers(pocket, release, versions, built, builder, signer, scratch)
    return [first, security, updates]


def _add_drivers(
    pocket: Pocket,
    release: Release,
    versions: Mapping[str, int],
    kernels: Sequence[str],
    builder: Builder,
    signer: ModuleSigner,
    scratch: Path,
) -> None:
    for one in ubuntu_packages.archive_sets(release, versions, builder):
        pocket.add("restricted", one.packages())
        pocket.add("multiverse", ubuntu_packages.archive_components(one))
        pocket.add("multiverse", [_modprobe(one)])
        for kernel in kernels:
            headers = node_packages.include_folder(kernel, scratch)
            work = scratch / pocket.suite
            pocket.add("restricted", one.prebuilt(kernel, headers, signer, work))
        generic = [kernel for kernel in kernels if kernel.endswith("-generic")][-1]
        for flavour in ("generic", f"generic-hwe-{release.number}"):
            pocket.add("restricted", ubuntu_packages.meta_modules(one, generic, flavour))


def _modprobe(one: UbuntuSet) -> Package:
    (found,) = (package for package in one.tools() if package.name == "nvidia-modprobe")
    return replace(found, version=MODPROBE)


def sources_text(release: Release, base_url: str, key: str) -> str:
    """Return ubuntu.sources of a node, as Ubuntu's installer writes it from 24.04 on."""
    suites = " ".join(release.codename + tail for tail in ("", "-updates", "-security"))
    return (
        f"Types: deb\nURIs: {base_url}/ubuntu/{release.code}/\nSuites: {suites}\n"
        f"Components: {' '.join(COMPONENTS)}\nSigned-By: {key}\n"
    )
