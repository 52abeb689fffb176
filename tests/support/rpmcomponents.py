"""A repository with the simulated components beside the driver, built and signed with the real tools of rpm."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import rpmnodes
from rpmnodes import Repository
from rpmworld import Rpm, build, needs

from gpustate_lab.sim import component_rpms
from gpustate_lab.sim.component_rpms import RpmPackage

DRIVER = "580.65.06"


def as_rpm(package: RpmPackage, folder: Path) -> Rpm:
    more, files = component_rpms.sections(package, folder)
    return Rpm(
        package.name,
        package.version,
        package.requires,
        package.provides,
        package.conflicts,
        more=more,
        files=files,
    )


def world(folder: Path) -> Repository:
    """A repository with all of them, signed as NVIDIA signs its CUDA repositories."""
    needs("rpmsign")
    made = rpmnodes.repository(folder / "world")
    some = [
        *component_rpms.dcgm(),
        *component_rpms.fabric(),
        *component_rpms.gpudirect(folder / "native"),
    ]
    site = Rpm("site-storage", "1-1", ("nvidia-fs-dkms", "dkms"))
    whole = Rpm("cuda-13-0", "13.0.0-1", ("nvidia-driver-cuda",))
    driver = Rpm("nvidia-driver-cuda", f"3:{DRIVER}-1.el9")
    world = [as_rpm(one, folder / "trees") for one in some]
    dkms = Rpm("dkms", "3.2.1-1.el9", arch="noarch")
    build([rpmnodes.BASE, dkms, site, whole, driver, *world], made.folder, folder / "build")
    sign(made)
    made.index()
    return made


def sign(repository: Repository, names: str = "*", by: Repository | None = None) -> None:
    """Sign the packages too, as NVIDIA does in its CUDA repositories.

    Args:
        repository: the packages are in it.
        names: pattern of the packages' names.
        by: its key is taken, of another repository; by default the own one.
    """
    # Debian's rpm looks for gpg2, which Debian does not have.
    defines = ("__gpg /usr/bin/gpg", "_gpg_name lab@example")
    words = ["rpmsign", *(word for one in defines for word in ("--define", one)), "--addsign"]
    files = map(str, repository.folder.glob(f"{names}.rpm"))
    env = {**os.environ, "GNUPGHOME": str((by or repository).home)}
    subprocess.run([*words, *files], check=True, capture_output=True, env=env)
