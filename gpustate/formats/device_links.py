"""Whether containers keep their devices at a ``systemctl daemon-reload`` only with links below /dev/char.

Also runs on the nodes themselves: standard library only, Python 3.9.

Sources:
    opencontainers/runc#3671 (1.1.3 omits devices without a link), #3842 and #3845 (1.1.7 names all of them), both with
    systemd 240 or newer, which takes the numbers from the name of a missing link; containers/crun,
    src/libcrun/cgroup-systemd.c, ``append_device_allow``: all of them, always.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Versions from which on no links are needed.
_SINCE = {"runc": (1, 1, 7), "crun": (0,), "systemd": (240,)}


def program_versions(text: str) -> tuple[str, ...]:
    """Programs in the output of ``runc --version``, ``crun --version`` and ``systemctl --version``: ``runc 1.1.15``."""
    rows = re.findall(r"(?m)^(runc|crun|systemd)(?: version)? v?(\d[\d.]*)", text)
    return tuple(dict.fromkeys(f"{name} {number}" for name, number in rows))


def links_needed(programs: Iterable[str]) -> bool:
    """Whether one of these low-level runtimes, with this systemd, needs the links; unknown ones may.

    Args:
        programs: as :func:`program_versions` returns them.
    """
    names = {program.split(" ")[0] for program in programs}
    versions_known = "systemd" in names and len(names) > 1
    return not versions_known or any(too_old(program) for program in programs)


def too_old(program: str) -> bool:
    """Whether a program, with its version, needs the links."""
    name, number = program.split(" ")
    return tuple(int(part) for part in number.split(".") if part) < _SINCE[name]
