"""Simulate the modules of GPUDirect and OFED, and the kernel's errors for modules that do not fit.

- nvidia_peermem: built without OFED, or against another OFED than the loaded ib_core: Invalid argument.
- gdrdrv: built for the open driver beside the proprietary one, or against another version: refused.
- nvidia_fs: built against another version of the driver: refused; otherwise it shows its version in /proc.

Sources: NVIDIA/open-gpu-kernel-modules, kernel-open/nvidia-peermem; NVIDIA/gdrcopy README (kinds of the
driver); NVIDIA/gds-nvidia-fs, src/nvfs-proc.c.
"""

# On the node the imported modules are in this folder.
# mypy: disable-error-code="import-not-found,no-any-return"
from __future__ import annotations

import json
from typing import Any

from labnode import RUN, at, kmod, make_node, modinfo, remove_nodes, remove_tree, write

GDRDRV_MAJOR = 508
SYMBOL = "ib_register_peer_memory_client"
INVALID = "Invalid argument"


class RefusedError(Exception):
    """The kernel refuses a module; the message is that of strerror."""


def _loaded() -> dict[str, dict[str, Any]]:
    path = RUN / "modules.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _field(path: str, name: str) -> str:
    return modinfo(path).get(name, [""])[0]


def _load_peermem(entry: dict[str, Any]) -> None:
    wanted = ""
    for line in kmod("modprobe", "--dump-modversions", entry["path"]).stdout.splitlines():
        checksum, _, name = line.partition("\t")
        if name.strip() == SYMBOL:
            wanted = checksum
    core = _loaded().get("ib_core")
    gives = _field(core["path"], "lab_peer_memory_crc") if core else ""
    if not wanted or not gives or int(wanted, 16) != int(gives, 16):
        raise RefusedError(INVALID)


def _fits_driver(entry: dict[str, Any]) -> None:
    driver = _loaded().get("nvidia")
    if driver is None or _field(entry["path"], "lab_nvidia") != driver["version"]:
        raise RefusedError(INVALID)


def _load_gdrdrv(entry: dict[str, Any]) -> None:
    _fits_driver(entry)
    opened = "opensource" in _field(entry["path"], "description")
    if opened and "GPL" not in _loaded()["nvidia"]["license"]:
        raise RefusedError(INVALID)
    write(at("/proc/driver") / "gdrdrv/params", "dbg_enabled: 0\ninfo_enabled: 0\n")
    if opened:  # device_create is used by modules for the open driver
        make_node("/dev/gdrdrv", GDRDRV_MAJOR, 0)


def _unload_gdrdrv(_entry: dict[str, Any]) -> None:
    remove_nodes("gdrdrv")
    remove_tree(at("/proc/driver") / "gdrdrv")


def _load_fs(entry: dict[str, Any]) -> None:
    _fits_driver(entry)
    if "GPL" not in _loaded()["nvidia"]["license"]:
        raise RefusedError(INVALID)
    place = at("/proc/driver") / "nvidia-fs"
    write(place / "version", f"version: {'.'.join(entry['version'].split('.')[:2])}\n")
    write(place / "devcount", "0\n")
    write(place / "modules", "")


def _unload_fs(_entry: dict[str, Any]) -> None:
    remove_tree(at("/proc/driver") / "nvidia-fs")


def _nothing(_entry: dict[str, Any]) -> None:
    return


EFFECTS = {
    "nvidia_peermem": (_load_peermem, _nothing),
    "gdrdrv": (_load_gdrdrv, _unload_gdrdrv),
    "nvidia_fs": (_load_fs, _unload_fs),
}


def devices(modules: dict[str, dict[str, Any]]) -> list[str]:
    """Return lines of /proc/devices."""
    return [f"{GDRDRV_MAJOR} gdrdrv"] if "gdrdrv" in modules else []
