"""The simulated repository of NVIDIA against what public package lists and its packaging say of the real one.

Sources: packages of NVIDIA's repositories on machines (tests/data/driver-sets); NVIDIA's installation guide 620, desktop-only
and compute-only installations; cuda-drivers 595.58.03 of debian12.
"""

from __future__ import annotations

from typing import cast

import pytest

from gpustate_lab.sim import driver_packages, ubuntu_packages
from gpustate_lab.sim.deb import Package
from gpustate_lab.sim.native import Builder
from tests.unit.lab.sim.conftest import NoCompiler

BUILDER = cast(Builder, NoCompiler())


def debian(version: str) -> dict[str, Package]:
    drivers = driver_packages.DriverSet(version, 13000, driver_packages.VENDOR, BUILDER)
    return {one.name: one for one in (*drivers.packages(), *drivers.vendor_packages())}


def ubuntu() -> list[Package]:
    return ubuntu_packages.vendor_packages(BUILDER)


@pytest.mark.parametrize("name", ["nvidia-open", "cuda-drivers"])
def test_a_metapackage_takes_any_newer_driver(name: str) -> None:
    """Without a pin the newest set comes along, as on real machines."""
    metapackages = [one for one in (*ubuntu(), *debian("595.91.07").values()) if one.name == name]
    assert metapackages
    for package in metapackages:
        assert all(" (>= " in need for need in package.depends), package


def test_cuda_drivers_replaces_the_open_driver_and_provides_its_branch() -> None:
    relations = debian("595.91.07")["cuda-drivers"].relations
    assert relations["Provides"] == ("cuda-drivers-595",)
    assert relations["Conflicts"] == relations["Replaces"] == ("nvidia-driver-open",)


def test_a_desktop_of_debian_has_no_compute_part() -> None:
    needs = " ".join(debian("595.91.07")["nvidia-driver"].depends)
    assert "nvidia-driver-cuda" not in needs


def test_580_of_ubuntu_has_firmware_without_a_version_and_libraries_of_gpu_compilation() -> None:
    names = {one.name for one in ubuntu() if one.version.startswith("580.")}
    assert {"nvidia-firmware-580", "libnvidia-gpucomp-580"} <= names


@pytest.mark.parametrize(
    ("version", "revision"),
    [
        ("570.211.01", "-0ubuntu1"),
        ("580.95.05", "-0ubuntu1"),
        ("580.105.08", "-0ubuntu1"),
        ("580.126.09", "-1ubuntu1"),
        ("580.159.03", "-1ubuntu1"),
        ("595.71.05", "-1ubuntu1"),
    ],
)
def test_revisions_change_within_580(version: str, revision: str) -> None:
    assert ubuntu_packages.vendor_revision(version) == revision
