"""The simulated driver packages of the distribution: another origin, other versions, partly other names.

They share names of library packages with NVIDIA's repository (``libcuda1``, ``libnvidia-ml1``), so a node with
both sources may get a mixed set. On Debian 12 the open modules have another version than the libraries, as in the
real archive; persistenced and modprobe have versions of their own.

Sources:
    Debian 12 and 13 archives with security, non-free, read with apt on 2026-11-28: versions of nvidia-graphics-drivers,
    nvidia-open-gpu-kernel-modules, nvidia-persistenced, nvidia-modprobe.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpustate_lab.sim.deb import Package
from gpustate_lab.sim.driver_packages import DriverSet, Naming
from gpustate_lab.sim.native import Builder

OPEN_DKMS = "nvidia-open-kernel-dkms"
OPEN_SUPPORT = "nvidia-open-kernel-support"


@dataclass(frozen=True, slots=True)
class Archive:
    """The driver packages of a Debian release."""

    version: str
    cuda_version: int
    revision: str
    open_version: str
    open_revision: str
    persistenced: str
    modprobe: str


ARCHIVES = {
    "debian12": Archive(
        "535.309.01",
        12020,
        "-0+deb12u1",
        "535.261.03",
        "-1",
        "535.171.04-1~deb12u1",
        "535.161.07-1~deb12u1",
    ),
    "debian13": Archive(
        "550.163.01", 12040, "-2", "550.163.01", "-1", "550.163.01-1", "570.133.07-1"
    ),
}


def packages(suite: str, builder: Builder) -> list[Package]:
    """Return the distribution's packages; empty for a suite without any."""
    archive = ARCHIVES.get(suite)
    if archive is None:
        return []
    own = DriverSet(
        archive.version, archive.cuda_version, Naming(archive.revision, OPEN_DKMS), builder
    )
    apart = {"nvidia-persistenced": archive.persistenced, "nvidia-modprobe": archive.modprobe}
    found = [
        replace(package, version=apart.get(package.name, package.version))
        for package in own.packages()
        if package.name != OPEN_DKMS
    ]
    opened = DriverSet(
        archive.open_version,
        archive.cuda_version,
        Naming(archive.open_revision, OPEN_DKMS),
        builder,
    )
    for package in opened.packages():
        if package.name == OPEN_DKMS:
            # As in Debian it depends on its own source package, not on the libraries, which allows mixed versions.
            found.append(replace(package, depends=("dkms", OPEN_SUPPORT)))
        if package.name == "nvidia-kernel-support":
            support = replace(package, name=OPEN_SUPPORT, depends=("nvidia-modprobe",), files={})
            found.append(support)
    return found
