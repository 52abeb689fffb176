"""Faults that are files of a node instead of values of the simulator: libraries and a service.

``library-mismatch`` is the state after an unattended upgrade: programs load a library of another version than the
loaded module. The library is a copy from the package of the other version; only links lead to it, so dpkg notices
nothing. Reinstalling the driver's packages restores the links, and so does ``ldconfig``.

``containerd`` is a drop-in that makes containerd fail to start while a file of ``/etc/containerd`` names NVIDIA's
runtime. containerd itself is real, and so is the failed start.

All of it is simulated.

Sources:
    systemd.service(5), ExecStartPre=; systemd.unit(5), drop-ins.
    ldconfig(8): the link of a soname leads to the newest library in the same folder.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path

from gpustate.errors import LabError
from gpustate_lab.sim.driver_packages import DRIVERS, LIBRARY_DIRECTORY
from gpustate_lab.sim.native import run

LIBRARY_MISMATCH = "library-mismatch"
CONTAINERD = "containerd"
NOUVEAU = "nouveau"
_NOUVEAU_FILE = "*/kernel/drivers/gpu/drm/nouveau/nouveau.ko"
#: Not searched by ldconfig, so that repaired links stay repaired.
COPIES = "usr/lib/gpustate-lab/other-version"
DROP_IN = "etc/systemd/system/containerd.service.d/gpustate-lab-fault.conf"
#: Package of each library.
LIBRARIES = {"libnvidia-ml": "libnvidia-ml1", "libcuda": "libcuda1"}
#: Pattern of Ubuntu's package of all libraries.
UBUNTU_PACKAGE = "libnvidia-compute*"

_DROP_IN_TEXT = """\
# Simulated fault of gpustate lab: containerd does not start with NVIDIA's runtime in its configuration.
[Service]
ExecStartPre=/bin/sh -c 'if grep -rqs nvidia-container-runtime /etc/containerd; then \
echo "simulated fault: a file of /etc/containerd names nvidia-container-runtime" >&2; exit 1; fi'
"""


def switch(root: Path, fault: str, on: bool, packages: Path) -> bool:
    """Add a fault to the node's file tree ``root``, or remove it.

    Args:
        root: the node's ``/``.
        fault: a fault; those without a file on the node change nothing.
        on: add or remove it.
        packages: folder with NVIDIA's repositories of any distribution, which have the same libraries.

    Returns:
        Whether the node needs ``systemctl daemon-reload``.

    Raises:
        LabError: no driver is installed, there is no other version of it, no kernel has nouveau, or the tree
            cannot be written.
    """
    try:
        if fault == LIBRARY_MISMATCH:
            _break_libraries(root, packages) if on else _repair_libraries(root)
        elif (
            on
            and fault.startswith(NOUVEAU)
            and not any((root / "usr/lib/modules").glob(_NOUVEAU_FILE))
        ):
            raise LabError(
                f"{fault}: no kernel of the node has nouveau.ko, which Ubuntu has in linux-modules-extra",
                fix="install it on the node (apt-get install linux-modules-extra-$(uname -r)), or use an image of Debian",
            )
        elif fault == CONTAINERD:
            return _break_containerd(root) if on else _repair_containerd(root)
    except OSError as error:
        raise LabError(f"cannot switch fault {fault}: {error}") from error
    return False


def check_first_boot(fault: str) -> None:
    """Raise for a fault that needs an installed driver."""
    if fault == LIBRARY_MISMATCH:
        raise LabError(
            f"{fault} requires an installed driver, which a new node lacks",
            place="faults",
            fix="run gpustate apply first, then gpustate lab fault NODE library-mismatch on",
        )


# --- the driver's libraries ----------------------------------------------------------------------


def other_version(installed: str) -> str:
    """Return the version of an upgrade: the newest of the branch, else the newest of all."""
    branch = installed.partition(".")[0]
    others = sorted((one for one in DRIVERS if one != installed), key=_numbers)
    return next((one for one in reversed(others) if one.partition(".")[0] == branch), others[-1])


def _break_libraries(root: Path, packages: Path) -> None:
    for library, package in LIBRARIES.items():
        link = root / LIBRARY_DIRECTORY / f"{library}.so.1"
        if not link.is_symlink():
            raise LabError(
                f"{LIBRARY_MISMATCH}: no driver is installed ({library}.so.1 is missing)",
                fix="run gpustate apply first",
            )
        if _is_copy(link):
            continue
        version = other_version(os.readlink(link).rpartition(".so.")[2])
        name = f"{library}.so.{version}"
        copy = root / COPIES / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        names = (package, UBUNTU_PACKAGE)
        debs = [deb for one in names for deb in packages.rglob(f"{one}_{version}-*_amd64.deb")]
        if not debs:
            raise LabError(
                f"no package of the other driver version has {name}",
                place=str(packages),
                fix="rebuild the lab's packages with gpustate lab up",
            )
        copy.write_bytes(_file_of(debs[0], f"./{LIBRARY_DIRECTORY}/{name}"))
        _relink(link, os.path.relpath(copy, link.parent))


def _repair_libraries(root: Path) -> None:
    for library in LIBRARIES:
        link = root / LIBRARY_DIRECTORY / f"{library}.so.1"
        if not _is_copy(link):
            continue
        # The library of the installed package; there is one version, since the packages conflict.
        own = [path for path in link.parent.glob(f"{library}.so.*.*") if not path.is_symlink()]
        if own:
            _relink(link, own[0].name)
        else:
            link.unlink()
    shutil.rmtree(root / COPIES, ignore_errors=True)


def _is_copy(link: Path) -> bool:
    return link.is_symlink() and Path(COPIES).name in Path(os.readlink(link)).parts


def _relink(link: Path, target: str) -> None:
    # Atomically, since a program may start at any time.
    fresh = link.with_name(f".{link.name}.gpustate-lab")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    os.replace(fresh, link)


def _file_of(deb: Path, name: str) -> bytes:
    """Extract a file from a package."""
    with tarfile.open(fileobj=io.BytesIO(run(["dpkg-deb", "--fsys-tarfile", str(deb)]))) as tree:
        handle = tree.extractfile(name)
        if handle is None:
            raise LabError(f"{deb.name} has no file {name}")
        return handle.read()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


# --- containerd ----------------------------------------------------------------------------------


def _break_containerd(root: Path) -> bool:
    path = root / DROP_IN
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_DROP_IN_TEXT, encoding="utf-8")
    return True


def _repair_containerd(root: Path) -> bool:
    path = root / DROP_IN
    if not path.exists():
        return False
    path.unlink()
    if not any(path.parent.iterdir()):
        path.parent.rmdir()
    return True
