"""The simulated archive of Ubuntu: its pockets and components, with kernels, drivers and signed modules.

Real: the layout, the fields of Release files that apt's pins and unattended-upgrades match, names, relations. Not
there: everything else of Ubuntu. A node's other packages are Debian's.

Sources:
    Ubuntu's archive: dists/noble, -updates and -security; Phased-Update-Percentage of apt_preferences(5).
    canonical/nvidia-graphics-drivers: branch 550 continues as 570 (June 2025), 590 as 595 (March 2026); 570 as 580 (April
    2026), which is left out here.
    Ends of the versions of signed modules (``modules``): lists of a machine with 580.95.05 (none) and of a DGX Spark with
    580.142 (+1000), read on 2026-11-28: tests/data/driver-sets/deb, public-11 and public-13.
    Release fields of esm.ubuntu.com: origins of unattended-upgrades' own configuration for Ubuntu (mvo5/unattended-upgrades).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpustate_lab.sim import gpudirect_packages, node_packages, ubuntu_packages
from gpustate_lab.sim.deb import Package
from gpustate_lab.sim.native import Builder
from gpustate_lab.sim.signing import ModuleSigner
from gpustate_lab.sim.ubuntu_packages import Driver, Release, UbuntuSet

COMPONENTS = ("main", "restricted", "multiverse")
_OLD_535 = Driver("535.309.01", 12020)
_LAST_550 = Driver("550.163.01", 12040, modules="+1")
_LAST_590 = Driver("590.48.01", 13010, upload="4", modules="+1")
_OLD_580 = Driver("580.173.02", 13000, modules="")
_NEW_580 = Driver("580.178.04", 13000, modules="+1000")
#: Drivers of each pocket, by the end of its suite.
DRIVERS: Mapping[str, tuple[Driver, ...]] = {
    "": (_OLD_535, _LAST_550),
    "-security": (
        *(_OLD_535, Driver("570.211.01", 12080), _OLD_580, _LAST_590),
        *(Driver("580.173.02", 13000, server=False), Driver("595.84", 13020)),
    ),
    "-updates": (
        *(_OLD_535, Driver("570.211.01", 12080), _OLD_580),
        *(_NEW_580, Driver("580.173.02", 13000, server=False)),
        Driver("595.84", 13020),
    ),
}
#: Branches that have ended in a pocket: their last driver, end of the empty packages' versions, and the next branch.
ENDED: Mapping[str, tuple[tuple[Driver, str, int], ...]] = {
    "-security": ((_LAST_550, "2", 570),),
    "-updates": ((_LAST_550, "2", 570), (_LAST_590, "5", 595)),
}
#: What extended security maintenance (Ubuntu Pro) has: packages of a driver, built again. Made up; its modules are not there.
ESM = Driver("580.173.02", 13000, upload="1+esm1")
#: Packages of a pocket that reach one node in ten at first.
PHASED: Mapping[str, tuple[str, int]] = {"-updates": ("580.178.04", 10)}
#: A package of each pocket that no driver has to do with.
OTHER = "ubuntu-lab-other"
#: nvidia-modprobe has its own version in the archive.
MODPROBE = "550.54.14-1"


@dataclass(slots=True)
class Pocket:
    """A part of the archive with a Release file of its own.

    Args:
        suite: ``noble``, ``noble-updates``, ``noble-security``, ``noble-infra-security``.
        packages: by component.
        origin: ``Ubuntu``, or ``UbuntuESM``, which is an archive of its own.
    """

    suite: str
    packages: dict[str, list[Package]] = field(default_factory=dict[str, list[Package]])
    origin: str = "Ubuntu"

    @property
    def archive(self) -> str:
        """Folder of its archive."""
        return "ubuntu" if self.origin == "Ubuntu" else "esm"

    def add(self, component: str, packages: Sequence[Package]) -> None:
        known = {(one.name, one.version) for one in self.packages.setdefault(component, [])}
        self.packages[component] += [p for p in packages if (p.name, p.version) not in known]

    def phase(self, version: str, percentage: int) -> None:
        """Offer the packages of a driver version to some nodes only.

        Signed modules are not phased, as kernels are not.
        """
        for component, packages in self.packages.items():
            self.packages[component] = [
                replace(one, phased=percentage) if one.version.startswith(version) else one
                for one in packages
            ]


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
    found = {tail: Pocket(release.codename + tail) for tail in DRIVERS}
    kernels = {
        kernel: node_packages.ubuntu_kernel_packages(kernel, builder, scratch)
        for kernel in (older, newer, running)
    }
    found[""].add("main", [*kernels[older], *kernels[running]])
    found[""].add("main", node_packages.ubuntu_kernel_metas(older, release.number))
    if (version := gpudirect_packages.ARCHIVED_FS.get(release.code)) is not None:
        found[""].add("multiverse", [gpudirect_packages.nvidia_fs(version)])
    for tail in ("-security", "-updates"):
        found[tail].add("main", kernels[newer])
        found[tail].add("main", node_packages.ubuntu_kernel_metas(newer, release.number))
    every = dict.fromkeys(driver for drivers in DRIVERS.values() for driver in drivers)
    sets = {driver: ubuntu_packages.archive_set(release, driver, builder) for driver in every}
    for driver, one in sets.items():
        built = {
            kernel: one.prebuilt(
                kernel, node_packages.include_folder(kernel, scratch), signer, scratch
            )
            for kernel in kernels
        }
        for tail, drivers in DRIVERS.items():
            if driver in drivers:
                newest = newer if tail else older
                ready = [b for kernel, b in built.items() if tail or kernel != newer]
                _add_driver(found[tail], release, driver, one, ready, newest)
    for tail, ended in ENDED.items():
        for driver, upload, successor in ended:
            empty = ubuntu_packages.transitional(sets[driver], upload, successor)
            found[tail].add("restricted", empty)
    for tail, (version, percentage) in PHASED.items():
        found[tail].phase(version, percentage)
    esm = Pocket(f"{release.codename}-infra-security", origin="UbuntuESM")
    esm.add("main", ubuntu_packages.archive_set(release, ESM, builder).packages())
    for pocket, version in zip(found.values(), ("1", "1.1", "1.2"), strict=True):
        pocket.add("main", [Package(OTHER, version, "what a pocket brings beside drivers")])
    esm.add("main", [Package(OTHER, "1.1+esm1", "what a pocket brings beside drivers")])
    found["-updates"].phase("1.2", 10)
    return [*found.values(), esm]


def _add_driver(
    pocket: Pocket,
    release: Release,
    driver: Driver,
    one: UbuntuSet,
    built: Sequence[Sequence[Package]],
    newest: str,
) -> None:
    pocket.add("restricted", one.packages())
    if driver.server:
        pocket.add("multiverse", ubuntu_packages.archive_components(one))
    pocket.add("multiverse", [_modprobe(one)])
    for packages in built:
        pocket.add("restricted", packages)
    for flavour in ("generic", f"generic-hwe-{release.number}"):
        pocket.add("restricted", one.meta_modules(newest, flavour))


def _modprobe(one: UbuntuSet) -> Package:
    (found,) = (package for package in one.tools() if package.name == "nvidia-modprobe")
    return replace(found, version=MODPROBE)


def sources(release: Release, base_url: str, key: str) -> dict[str, str]:
    """Return apt's sources of a node by path, as Ubuntu's installer writes them: one line each before 24.04.

    Args:
        release: of Ubuntu.
        base_url: of the lab's packages.
        key: path of the key on a node.
    """
    url, suites = (
        f"{base_url}/ubuntu/{release.code}/",
        [release.codename, f"{release.codename}-updates"],
    )
    security, components = f"{release.codename}-security", " ".join(COMPONENTS)
    if release.number < "24.04":
        lines = [
            f"deb [signed-by={key}] {url} {suite} {components}\n" for suite in (*suites, security)
        ]
        return {"/etc/apt/sources.list": "".join(lines)}
    stanzas = [
        f"Types: deb\nURIs: {url}\nSuites: {some}\nComponents: {components}\nSigned-By: {key}\n"
        for some in (" ".join(suites), security)
    ]
    return {"/etc/apt/sources.list.d/ubuntu.sources": "\n".join(stanzas)}
