"""The packages for Ubuntu: every name that gpustate asks for is there, and what they depend on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import pytest

from gpustate.formats import driverschemes
from gpustate.formats.dpkg import compare_versions
from gpustate.formats.driverschemes import OPEN, PROPRIETARY, Scheme
from gpustate_lab.sim import ubuntu_archive, ubuntu_packages
from gpustate_lab.sim.deb import Package
from gpustate_lab.sim.native import Builder
from gpustate_lab.sim.signing import ModuleSigner
from tests.unit.lab.sim.conftest import NoCompiler

RUNNING = "6.1.0-9-lab"
BUILDER = cast(Builder, NoCompiler())
RELEASE = ubuntu_packages.RELEASES["ubuntu2404"]
ARCHIVE, VENDOR, VENDOR_BY_BRANCH, DESKTOP = driverschemes.of("ubuntu")


#: A dependency with a bound and without an alternative.
BOUND = re.compile(r"(?P<name>[a-z0-9][a-z0-9+.-]*) \((?P<op><<|<=|=|>=|>>) (?P<version>\S+)\)")
SIGNS = {"<<": (-1,), "<=": (-1, 0), "=": (0,), ">=": (0, 1), ">>": (1,)}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Package]]:
    """Packages by pocket."""
    folder = tmp_path_factory.mktemp("archive")
    signer = ModuleSigner(folder / "keys")
    found = ubuntu_archive.pockets(RELEASE, RUNNING, BUILDER, signer, folder)
    return {one.suite: [p for part in one.packages.values() for p in part] for one in found}


def asked(scheme: Scheme, branch: int, version: str) -> set[str]:
    """Every name that gpustate may ask for."""
    names: set[str] = set()
    for kind in (OPEN, PROPRIETARY):
        for full in (False, True):
            names |= {*scheme.required(branch, kind, full=full, prebuilt=False)}
        names |= {*scheme.extra(branch, kind)}
        for kernel in (*RELEASE.kernels, RUNNING) if scheme.prebuilt else ():
            names |= {*scheme.built_for(kernel, version, kind)}
    return names


@pytest.mark.parametrize("version", ["535.309.01", "570.211.01", "580.178.04"])
def test_the_archive_has_every_name_that_is_asked_for(
    archive: dict[str, list[Package]], version: str
) -> None:
    names = {package.name for package in archive["noble-updates"]}
    assert asked(ARCHIVE, int(version[:3]), version) - names == set()


@pytest.mark.parametrize(
    ("scheme", "version"), [(VENDOR_BY_BRANCH, "580.65.06"), (VENDOR, "595.91.07")]
)
def test_nvidias_repository_has_every_name_that_is_asked_for(scheme: Scheme, version: str) -> None:
    names = {package.name for package in ubuntu_packages.vendor_packages(BUILDER)}
    assert asked(scheme, int(version[:3]), version) - names == set()


def test_every_exact_dependency_can_be_met(archive: dict[str, list[Package]]) -> None:
    packages = [package for pocket in archive.values() for package in pocket]
    there = {(package.name, package.version) for package in packages}
    there |= {
        (match[1], match[2])
        for package in packages
        for one in package.relations.get("Provides", ())
        if (match := re.fullmatch(r"(\S+) \(= (\S+)\)", one))
    }
    for package in packages:
        for need in package.depends:
            choices = re.findall(r"(\S+) \(= ([^)]+)\)", need)
            assert not choices or there & set(choices), (package.name, need)


def test_the_bounds_on_versions_in_nvidias_repository_can_be_met() -> None:
    packages = ubuntu_packages.vendor_packages(BUILDER)
    for package in packages:
        bounds = [BOUND.fullmatch(need) for need in package.depends]
        for name in {bound["name"] for bound in bounds if bound}:
            rows = [
                (bound["op"], bound["version"])
                for bound in bounds
                if bound and bound["name"] == name
            ]
            mine = [other.version for other in packages if other.name == name]
            fitting = [
                one
                for one in mine
                if all(compare_versions(one, version) in SIGNS[op] for op, version in rows)
            ]
            assert fitting or not mine, (package.name, package.version, rows)


def test_modules_of_all_branches_want_the_same_signatures(
    archive: dict[str, list[Package]],
) -> None:
    wanted = {
        need
        for package in archive["noble-updates"]
        if re.fullmatch(
            r"linux-modules-nvidia-(535-server|580|580-server-open|595-server)-6.8.0-110-generic",
            package.name,
        )
        and package.version.endswith("+2")
        for need in package.depends
        if need.startswith("linux-signatures-")
    }
    assert wanted == {"linux-signatures-nvidia-6.8.0-110-generic (= 6.8.0-110.110+2)"}


def test_ubuntu_drivers_finds_the_archive_s_drivers(archive: dict[str, list[Package]]) -> None:
    newest = {
        package.name: package.relations
        for package in archive["noble-updates"]
        if package.name.startswith("nvidia-driver-") and package.relations.get("Modaliases")
    }
    assert {
        "nvidia-driver-535-server",
        "nvidia-driver-580-open",
        "nvidia-driver-595-server-open",
    } <= newest.keys()
    assert newest["nvidia-driver-580-server"]["Support"] == ("LTSB",)
    assert newest["nvidia-driver-595-server-open"]["Prefer-Variant"] == ("Open",)
    assert "Prefer-Variant" not in newest["nvidia-driver-535-server"]


def test_modules_are_signed_as_ubuntus(archive: dict[str, list[Package]]) -> None:
    found = next(
        package
        for package in archive["noble-updates"]
        if package.name == f"linux-modules-nvidia-580-server-open-{RUNNING}"
    )
    assert len(found.files) == len(ubuntu_packages.MODULES)
    for entry in found.files.values():
        assert isinstance(entry, Path)
        assert entry.read_bytes().endswith(b"~Module signature appended~\n")
