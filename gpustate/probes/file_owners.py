"""Which package brings a file that is missing, and the state that puts such a file back.

Asked only of files that somebody misses: a package manager that reads its lists is slow.

Surprising: where /usr is merged, a package may know a file by its path without /usr, and others by the one with it.

Sources: dpkg-query(1), -S; rpm(8), -qf.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpustate import shell
from gpustate.formats.drivernames import TOOLKIT_NAMES
from gpustate.probes import driver_files

#: Defines ``owners PATH...``: prints ``PACKAGE: PATH`` of each that a package brings; what is made while a node
#: runs is nobody's.
SCRIPT = shell.load("file_owners", "gpustate.probes")


def parse(rows: Iterable[str]) -> dict[str, str]:
    """Path to package, of rows ``PACKAGE[:ARCHITECTURE][, PACKAGE]: PATH``; by either path of a merged /usr."""
    packages_by_path: dict[str, str] = {}
    for row in rows:
        names, mark, path = row.partition(": /")
        if not mark or names.startswith("diversion "):
            continue
        below_usr = path.removeprefix("usr/").strip()
        package = names.partition(",")[0].partition(":")[0]
        packages_by_path.update({f"/{below_usr}": package, f"/usr/{below_usr}": package})
    return packages_by_path


def state_of(package: str, path: str) -> str:
    """The state that puts back this file of this package; empty when none looks after it."""
    if package in TOOLKIT_NAMES:
        return "container-toolkit"
    return "driver" if driver_files.FILES.watches(package, path) else ""


__all__ = ["SCRIPT", "parse", "state_of"]
