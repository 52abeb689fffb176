"""What systemd knows of the devices of a running container: those that a ``systemctl daemon-reload`` leaves to it.

With the systemd cgroup driver a container is a unit, and systemd applies its own list of devices to it at every
daemon-reload. The list is compared with the device nodes in the container. Its OCI specification shows how they came:
devices that a hook of NVIDIA's runtime adds (mode legacy) are not in it, so the low-level runtime cannot name them.

The container's program does not end before it gets SIGUSR1 (see :mod:`container_inside`). It is identified by its
command line, which has a token of its own, and by a handler for that signal.

Standard library only, Python 3.9.

Sources:
    systemd.resource-control(5): DeviceAllow, DevicePolicy, BPFProgram; proc_pid_status(5): SigCgt;
    opencontainers/runc, libcontainer/cgroups/devices/systemd.go; containers/crun, src/libcrun/cgroup-systemd.c: on cgroup
    v2 a BPF program of its own instead of a list.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import signal
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

_HANDLED = re.compile(r"(?m)^SigCgt:\s*([0-9a-f]+)$")
_PARENT = re.compile(r"(?m)^PPid:\s*(\d+)$")
_ID = re.compile(r"-([0-9a-f]{64})\.scope$")
#: Major and minor.
Number = tuple[int, int]
_USR1 = 1 << (signal.SIGUSR1 - 1)


@dataclass(frozen=True)
class Scope:
    """The unit of a container.

    Args:
        unit: its name.
        unlisted: device nodes in the container that systemd does not know.
        hooked: those of them that are not in the container's OCI specification.
    """

    unit: str
    unlisted: tuple[str, ...] = ()
    hooked: tuple[str, ...] = ()


def ready(argv: Sequence[str]) -> int | None:
    """The first process with this command line, once it handles SIGUSR1; later ones are its children."""
    cmdline = b"".join(word.encode() + b"\0" for word in argv)
    paths = glob.glob("/proc/[0-9]*/cmdline")
    for path in sorted(paths, key=lambda path: int(path.split("/")[2])):
        try:
            if Path(path).read_bytes() != cmdline:
                continue
            match = _HANDLED.search(Path(path).with_name("status").read_text())
        except OSError:
            continue
        if match is not None and int(match[1], 16) & _USR1:
            return int(path.split("/")[2])
    return None


def observe(
    pid: int, run: Callable[[Sequence[str]], str], *, reads_names: bool, bundle: str = ""
) -> Scope | None:
    """The unit of a waiting container, which goes on then; ``None`` if it has none of its own.

    Args:
        pid: its process, from :func:`ready`.
        run: runs a command and returns its output.
        reads_names: this systemd takes the numbers from the name of a missing link in /dev/char.
        bundle: folder of the OCI specification; empty: that in which the container's shim or monitor runs.
    """
    try:
        return _scope(pid, run, reads_names, bundle)
    except (OSError, ValueError, AttributeError):
        return None
    finally:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGUSR1)


def _scope(
    pid: int, run: Callable[[Sequence[str]], str], reads_names: bool, bundle: str
) -> Scope | None:
    units = re.findall(
        r"(?m)^\d+:(?:name=systemd)?:\S*?/([^/\s]+\.scope)(?:/|$)",
        Path(f"/proc/{pid}/cgroup").read_text(),
    )
    if not units:
        return None
    properties = run(["systemctl", "show", "-p", "DevicePolicy,DeviceAllow,BPFProgram", units[-1]])
    nodes, specified = _device_nodes(pid), _specified(pid, bundle, units[-1])
    unlisted = unknown(properties, nodes.values(), specified, reads_names=reads_names)
    paths = [path for path, number in nodes.items() if number in unlisted]
    hooked = [path for path in paths if nodes[path] not in specified]
    return Scope(units[-1], tuple(paths), tuple(hooked))


def unknown(
    properties: str, numbers: Iterable[Number], specified: set[Number], *, reads_names: bool
) -> set[Number]:
    """Devices that systemd does not know of a unit.

    Args:
        properties: output of ``systemctl show -p DevicePolicy,DeviceAllow,BPFProgram UNIT``.
        numbers: devices in the container.
        specified: devices of its OCI specification.
        reads_names: as in :func:`observe`.
    """
    rows = [line.partition("=")[::2] for line in properties.splitlines()]
    allowed = [value for key, value in rows if key == "DeviceAllow" and value]
    if ("DevicePolicy", "auto") in rows and not allowed:
        own_program = any(key == "BPFProgram" and value.startswith("device") for key, value in rows)
        return set(numbers) - specified if own_program else set()
    names = [value.rpartition(" ")[0] for value in allowed if value.endswith((" rw", " rwm"))]
    return {
        number
        for number in numbers
        if not any(_covers(name, number, reads_names) for name in names)
    }


def _device_nodes(pid: int) -> dict[str, Number]:
    root = f"/proc/{pid}/root"
    nodes = {}
    for path in sorted(
        (*glob.glob(f"{root}/dev/nvidia*"), *glob.glob(f"{root}/dev/nvidia-caps/*"))
    ):
        status = os.stat(path)
        if stat.S_ISCHR(status.st_mode):
            nodes[path[len(root) :]] = (os.major(status.st_rdev), os.minor(status.st_rdev))
    return nodes


def _specified(pid: int, bundle: str, unit: str) -> set[Number]:
    """Devices of the OCI specification; containerd's shim runs in the folder of the sandbox, beside that of the container."""
    container = _ID.search(unit)
    for _ in range(3):
        parent = _PARENT.search(Path(f"/proc/{pid}/status").read_text())
        pid = int(parent[1]) if parent else 0
        if pid <= 1 and not bundle:
            break
        folder = Path(bundle or os.readlink(f"/proc/{pid}/cwd"))
        path = folder / "config.json"
        if container and (folder.parent / container[1] / "config.json").is_file():
            path = folder.parent / container[1] / "config.json"
        if path.is_file():
            linux = json.loads(path.read_text(encoding="utf-8")).get("linux") or {}
            return {(node.get("major"), node.get("minor")) for node in linux.get("devices") or ()}
    return set()


def _covers(entry: str, number: Number, reads_names: bool) -> bool:
    """Whether an entry of DeviceAllow names a device."""
    if entry.startswith("char-"):
        pattern = entry[len("char-") :]
        rows = (line.split() for line in Path("/proc/devices").read_text().splitlines())
        names = {row[1] for row in rows if len(row) == 2 and row[0] == str(number[0])}
        return any(fnmatch(name, pattern) for name in (str(number[0]), *names))
    if reads_names and entry == f"/dev/char/{number[0]}:{number[1]}":
        return True
    try:
        status = os.stat(entry)
    except OSError:
        return False
    return (os.major(status.st_rdev), os.minor(status.st_rdev)) == number
