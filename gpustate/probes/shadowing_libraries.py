"""A library that somebody laid beside the driver's own, and that programs get in its place.

ldconfig leads ``libcuda.so.1`` to the highest version in its folder, whoever put it there, so a copy of a newer
library wins over the package's, also after a reinstallation of that. No package manager is asked where there is
one version only. A driver of no package at all, as NVIDIA's .run installer brings it, has no foreign library beside it.

Sources: ldconfig(8); dpkg-query(1), -S; rpm(8), -qf.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpustate import shell

#: Prints ``beside=FOREIGN|OWN`` for each library whose link leads to a file of no package, with the package's file.
SCRIPT = shell.load("shadowing_libraries", "gpustate.probes")
REMEDY = "move it out of that folder, which no apply does, as it is foreign; then: ldconfig"


def describe(rows: Iterable[str]) -> tuple[str, ...]:
    """What programs get in place of what, in words; a row is ``FOREIGN|OWN``."""
    pairs = (row.partition("|") for row in rows)
    return tuple(
        f"programs get {foreign}, which belongs to no package, in place of {packaged.rpartition('/')[2]}"
        for foreign, mark, packaged in pairs
        if mark
    )
