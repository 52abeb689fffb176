"""Names and versions of DCGM's packages, and which of them fit a driver.

Sources:
    NVIDIA/DCGM, cmake/packaging.cmake: names, and that all packages depend on one another at the same version;
    CUDA 13.0 release notes: CUDA 13 comes with R580, CUDA 12 with R525.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpustate.formats import dpkg
from gpustate.formats.numbers import parse_uint

#: DCGM 3 and older; conflicts with 4.
OLD = "datacenter-gpu-manager"
PREFIX = f"{OLD}-4"
CORE = f"{PREFIX}-core"
CLOSED = f"{PREFIX}-proprietary"
#: NVIDIA's name of the exporter's package, and Microsoft's of its own build.
EXPORTERS = (f"{OLD}-exporter", "dcgm-exporter")
MAJORS = (11, 12, 13)

_FIRST_BRANCH = {13: 580, 12: 525}
MAJOR = re.compile(r"-cuda(\d+)$")


def cuda_major(driver: str) -> int | None:
    """The CUDA major of a driver by its branch; ``None`` if the text is not a version."""
    branch = parse_uint(driver.partition(".")[0])
    if branch is None:
        return None
    return next((major for major, first in _FIRST_BRANCH.items() if branch >= first), 11)


def names(major: int, *, closed: bool) -> tuple[str, ...]:
    """The packages of a host engine for drivers of a CUDA major."""
    open_names = (CORE, f"{PREFIX}-cuda{major}")
    return (*open_names, CLOSED, f"{CLOSED}-cuda{major}") if closed else open_names


def all_names() -> tuple[str, ...]:
    """All packages queried from repositories."""
    return tuple(dict.fromkeys(name for major in MAJORS for name in names(major, closed=True)))


def of_other_major(name: str, major: int) -> bool:
    """Whether it is a DCGM package for another CUDA major."""
    match = MAJOR.search(name)
    return name.startswith(PREFIX) and match is not None and int(match[1]) != major


@dataclass(frozen=True, slots=True)
class Choice:
    """A version available for all packages, or why there is none."""

    version: str = ""  # of the packages, with epoch
    problem: str = ""


def choose(
    required: Iterable[str],
    installed: Mapping[str, str],
    offered: Iterable[tuple[str, str]],
    version: str | None,
) -> Choice:
    """Choose a version that all packages have.

    Args:
        required: names of packages.
        installed: versions by name.
        offered: names and versions in repositories.
        version: the desired version of DCGM; ``None`` for the installed one if all packages are installed
            or available at it, else the newest.
    """
    needed = tuple(required)
    sets: dict[str, set[str]] = {name: set() for name in needed}
    for name, candidate in (*offered, *installed.items()):
        if name in sets:
            sets[name].add(candidate)
    common = set.intersection(*sets.values()) if sets else set[str]()
    if version is not None:
        fitting = [candidate for candidate in common if dpkg.upstream_version(candidate) == version]
        if fitting:
            return Choice(max(fitting, key=dpkg.version_key))
        lacking = [
            name
            for name, versions in sets.items()
            if version not in {dpkg.upstream_version(candidate) for candidate in versions}
        ]
        return Choice(problem=f"{(lacking or list(needed))[0]} {version}")
    if installed.get(CORE) in common:
        return Choice(installed[CORE])
    if common:
        return Choice(max(common, key=dpkg.version_key))
    lacking = [name for name, versions in sets.items() if not versions]
    problem = lacking[0] if lacking else f"{', '.join(needed)} at one version"
    return Choice(problem=problem)
