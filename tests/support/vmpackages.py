"""NVIDIA's packages with a kernel module that a real kernel loads, for tests in virtual machines.

The packages are the lab's own (names, versions and what each needs of the others are NVIDIA's), with
three of them changed: the DKMS sources are C for the kernel's own build system instead of objects
that only look like modules, and the two programs that ask the lab's simulator for GPUs know that
there is none in a virtual machine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from gpustate_lab.sim import deb
from gpustate_lab.sim.deb import Entry, Package, Program
from gpustate_lab.sim.driver_packages import DRIVERS, VENDOR, DriverSet
from gpustate_lab.sim.native import Builder
from gpustate_lab.sim.signing import SigningKey

GUEST = Path(__file__).with_name("vmguest")
#: Packs a root into a disk, for the machine and for the Vagrant box.
BOOT_DISK = Path(__file__).with_name("bootdisk.sh")
VERSION = "580.65.06"
DKMS = "nvidia-kernel-open-dkms"
KEY = "key.asc"

_MODPROBE = """#!/bin/sh
# Simulated nvidia-modprobe: loads the modules, which make no device files here.
modprobe -q nvidia || exit 1
case " $* " in *" -u "*) modprobe -q nvidia-uvm || exit 1 ;; esac
case " $* " in *" -m "*) modprobe -q nvidia-modeset || exit 1 ;; esac
"""
_PERSISTENCED = "#!/bin/sh\necho 'no GPU to keep awake (simulated)' >&2\nexit 1\n"


def packages(scratch: Path, *, services: bool = False) -> list[Package]:
    """The driver's packages of one version.

    Args:
        scratch: where the libraries are compiled.
        services: include nvidia-persistenced.service, which fails without a GPU as NVIDIA's does.
    """
    drivers = DriverSet(VERSION, DRIVERS[VERSION], VENDOR, Builder(scratch))
    return list(_changed(drivers.packages(), services))


def _changed(made: list[Package], services: bool) -> Iterator[Package]:
    for package in made:
        if package.name == DKMS:
            yield replace(package, files=_sources())
        elif package.name == "nvidia-modprobe":
            yield replace(package, files={"usr/bin/nvidia-modprobe": Program(_MODPROBE)})
        elif package.name == "nvidia-persistenced":
            files: dict[str, Entry] = {"usr/bin/nvidia-persistenced": Program(_PERSISTENCED)}
            if services:
                yield replace(package, files={**package.files, **files})
            else:
                yield replace(package, files=files, scripts={})
        elif package.name not in ("nvidia-kernel-dkms", "nvidia-driver"):
            yield package


def _sources() -> dict[str, Entry]:
    files: dict[str, Entry] = {
        f"usr/src/nvidia-{VERSION}/{path.name}": path.read_text().replace("@VERSION@", VERSION)
        for path in sorted((GUEST / "dkms").iterdir())
    }
    files[f"usr/src/nvidia-{VERSION}/nv-version.h"] = f'#define NV_VERSION "{VERSION}"\n'
    return files


def build_repository(folder: Path, *, services: bool = False) -> Path:
    """Write a signed flat repository with its key into ``folder``, which does not exist yet.

    Args:
        folder: the private key is kept beside it, in ``<folder>.private``.
        services: as in :func:`packages`.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = packages(Path(scratch), services=services)
        folder.mkdir()
        for package in made:
            deb.write(package, folder)
    key = SigningKey(folder.with_name(f"{folder.name}.private"))
    sign(folder, deb.write_index(made, folder), key)
    return folder


def sign(folder: Path, indices: list[Path], key: SigningKey) -> None:
    """Write ``Release``, ``InRelease`` and the public key of a flat repository."""
    lines = [
        "Origin: gpustate-vm",
        "Label: gpustate-vm",
        "Architectures: amd64",
        f"Date: {datetime.now(UTC):%a, %d %b %Y %H:%M:%S +0000}",
        "SHA256:",
    ]
    for path in indices:
        data = path.read_bytes()
        lines.append(f" {sha256(data).hexdigest()} {len(data)} {path.name}")
    release = "\n".join(lines) + "\n"
    (folder / "Release").write_text(release)
    (folder / "InRelease").write_bytes(key.clearsign(release.encode()))
    (folder / KEY).write_bytes(key.public())
