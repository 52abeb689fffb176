"""Shared code of the simulated programs: paths, hardware description, PCI, modules.

``/run/gpustate-lab`` is lost at a reboot. It has ``proc`` and ``sys`` (probes read them instead of the
real ones, since ``/proc/modules`` and ``/sys/module`` cannot be mounted over), ``holders`` (a file for
each process that has a GPU open) and ``state`` (modes of the GPUs).

For tests, ``GPUSTATE_LAB_ROOT`` puts all of it below another directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PREFIX = os.environ.get("GPUSTATE_LAB_ROOT", "")
KMOD = "/usr/bin/kmod"
NVIDIA_MAJOR = 195
UVM_MAJOR = 510
CAPS_MAJOR = 236
IMEX_MAJOR = 235
SWITCH_MAJOR = 509


def at(path: str) -> Path:
    """Return an absolute path on this node, or below the test root."""
    return Path(PREFIX + path)


RUN = at("/run/gpustate-lab")
PROC = RUN / "proc"
SYS = RUN / "sys"
PCI = at("/sys/bus/pci")


def hardware() -> dict[str, Any]:
    """Return the hardware description; a node without one has no GPUs."""
    path = at("/etc/gpustate-lab/hardware.json")
    if not path.exists():
        return {"gpus": [], "nvswitches": [], "faults": [], "board": None}
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def has_fault(name: str) -> bool:
    return name in hardware()["faults"]


def kernel() -> str:
    """Return the release of the running kernel; tests override it."""
    return os.environ.get("GPUSTATE_LAB_KERNEL") or os.uname().release


def write(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)


def relink(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def remove_tree(path: Path) -> None:
    """Remove a tree of files, links and device nodes, if it exists."""
    if path.is_dir() and not path.is_symlink():
        for child in path.iterdir():
            remove_tree(child)
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold the lock on the list of loaded modules."""
    RUN.mkdir(parents=True, exist_ok=True)
    with open(RUN / "lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def kmod(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a real kmod program; they are one binary, selected by its name."""
    # Its output (modules, options, dependencies) is only for the caller.
    return subprocess.run(
        [name, *arguments],
        executable=KMOD,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MODPROBE_OPTIONS": ""},
    )


def modinfo(path: str) -> dict[str, list[str]]:
    """Return the values of each field in the .modinfo of a module file."""
    fields: dict[str, list[str]] = {}
    for item in kmod("modinfo", "-0", path).stdout.split("\0"):
        name, equals, value = item.partition("=")  # only the file name has a colon instead
        if equals:
            fields.setdefault(name, []).append(value.strip())
    return fields


# --- device nodes --------------------------------------------------------------------------------


def make_node(path: str, major: int, minor: int, mode: int = 0o666) -> None:
    """Create a character device; in an unprivileged test, a regular file."""
    place = at(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    wanted = os.makedev(major, minor)
    with contextlib.suppress(FileNotFoundError):
        there = place.stat()
        if stat.S_ISCHR(there.st_mode) and there.st_rdev == wanted:
            return
        place.unlink()
    try:
        os.mknod(place, stat.S_IFCHR | mode, wanted)
    except PermissionError:
        if not PREFIX:
            raise
        place.touch()
    place.chmod(mode)


def remove_nodes(*patterns: str) -> None:
    for pattern in patterns:
        for path in at("/dev").glob(pattern):
            remove_tree(path)


# --- processes that use a GPU -----------------------------------------------------------------------------


def holders() -> list[tuple[int, str]]:
    """Return (pid, kind) for each device that a running process has open."""
    found = []
    for path in sorted((RUN / "holders").glob("*")):
        pid = _locker(path) if "-" in path.name else int(path.name)
        if at(f"/proc/{pid}").exists() or Path(f"/proc/{pid}").exists():
            found += [(pid, line.split()[0]) for line in path.read_text().splitlines() if line]
    return found


def _locker(path: Path) -> int:
    """Return the pid, outside the container, of the process that has locked a file (see lab.c); -1 without one."""
    query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with path.open("rb") as handle:
        answer = fcntl.fcntl(handle, fcntl.F_GETLK, query)
    kind, _, _, _, pid = struct.unpack("hhqqi4x", answer)
    return -1 if kind == fcntl.F_UNLCK else int(pid)


def hold(kind: str, what: list[str]) -> None:
    """Record that this process uses ``what`` (PCI addresses, or a version for the fabric)."""
    lines = "".join(f"{kind} {item} 0\n" for item in what)
    write(RUN / "holders" / str(os.getpid()), lines)


def release() -> None:
    (RUN / "holders" / str(os.getpid())).unlink(missing_ok=True)


# --- PCI binding ---------------------------------------------------------------------------------


def bound_to(address: str) -> str | None:
    """Return the driver of a PCI device."""
    link = PCI / "devices" / address / "driver"
    return os.path.basename(os.readlink(link)) if link.is_symlink() else None


def bind(address: str, driver: str) -> None:
    directory = PCI / "drivers" / driver
    directory.mkdir(parents=True, exist_ok=True)
    make_pipe(directory / "unbind")
    relink(PCI / "devices" / address / "driver", f"../../drivers/{driver}")
    relink(directory / address, f"../../devices/{address}")


def make_pipe(path: Path) -> None:
    """Create a writable sysfs file as a pipe, which pcidaemon.py reads."""
    if not path.exists():
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o200)


def unbind(address: str) -> None:
    """Unbind a device from its driver."""
    driver = bound_to(address)
    if driver is not None:
        (PCI / "devices" / address / "driver").unlink(missing_ok=True)
        (PCI / "drivers" / driver / address).unlink(missing_ok=True)


def unbind_all(driver: str) -> None:
    for link in (PCI / "devices").glob("*/driver"):
        if os.path.basename(os.readlink(link)) == driver:
            link.unlink()
    remove_tree(PCI / "drivers" / driver)
