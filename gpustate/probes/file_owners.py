"""Which package brings a file that is missing, and the state that puts such a file back.

Asked only of files that somebody misses: a package manager that reads its lists is slow.

Surprising: where /usr is merged, a package may know a file by its path without /usr, and others by the one with it.

Sources: dpkg-query(1), -S; rpm(8), -qf.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpustate.formats.drivernames import TOOLKIT_NAMES
from gpustate.probes import driver_files

#: Defines ``owners PATH...``: prints ``PACKAGE: PATH`` of each that a package brings; what is made while a node
#: runs is nobody's.
SCRIPT = r"""
owners() {
  set -- $(for ow_f do case $ow_f in /dev/*|/run/*|/var/run/*|/tmp/*) ;; /usr/*) echo "$ow_f" "${ow_f#/usr}" ;; *) echo "$ow_f" "/usr$ow_f" ;; esac; done)
  [ $# != 0 ] || return 0
  if command -v dpkg-query >/dev/null; then timeout -k 1 10 dpkg-query -S "$@" 2>/dev/null
  else for ow_f do ow_p=$(timeout -k 1 10 rpm -qf --qf '%{NAME}\n' "$ow_f" 2>/dev/null) && printf '%s: %s\n' "${ow_p%%[!A-Za-z0-9._+-]*}" "$ow_f"; done; fi
  :
}
"""


def parse(rows: Iterable[str]) -> dict[str, str]:
    """Path to package, of rows ``PACKAGE[:ARCHITECTURE][, PACKAGE]: PATH``; by either path of a merged /usr."""
    found: dict[str, str] = {}
    for row in rows:
        names, mark, path = row.partition(": /")
        if not mark or names.startswith("diversion "):
            continue
        bare = path.removeprefix("usr/").strip()
        package = names.partition(",")[0].partition(":")[0]
        found.update({f"/{bare}": package, f"/usr/{bare}": package})
    return found


def state_of(package: str, path: str) -> str:
    """The state that puts back this file of this package; empty when none looks after it."""
    if package in TOOLKIT_NAMES:
        return "container-toolkit"
    return "driver" if driver_files.FILES.watches(package, path) else ""


__all__ = ["SCRIPT", "parse", "state_of"]
