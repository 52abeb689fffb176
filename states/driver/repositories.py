"""What of apt's offers may be installed, and what stands against the others: a foreign pin, or the repository in use.

Surprising: pins of gpustate's own are no obstacle. Those of the state ``driver-repository`` say which repository is in
use, and the policy says that; so what another repository has is named with the parameters that choose it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from gpustate.formats import aptsources, driverset
from gpustate.ops.transaction import PIN_PATH
from gpustate.states.driver import files
from gpustate.states.driver.observed import Apt

#: Origin of a package in a component of Debian's or Ubuntu's archive that has drivers; flat repositories have none.
_ARCHIVE = re.compile(r"\S+ \S+/(restricted|multiverse|contrib|non-free|non-free-firmware) ")
_OF_ARCHIVE = "'s archive"
_VENDOR = "developer.download.nvidia.com"


@dataclass(frozen=True, slots=True)
class Offers:
    """The versions on offer, by what becomes of them.

    Args:
        allowed: versions that may be installed, by name of the package.
        pinned_away: driver versions and module types that a foreign pin forbids, each with the file of that.
        elsewhere: driver versions of repositories that are not in use, by repository.
        in_use: the repository that most of the allowed ones are from.
        admitting_pins: foreign files whose pins come before those that choose one repository, each with the repositories
            that the allowed ones are from, of which there are several.
        kernel_pins: packages of kernels that a foreign pin forbids, each with the file of that.
    """

    allowed: dict[str, tuple[str, ...]]
    pinned_away: dict[tuple[str, str], str]
    elsewhere: dict[str, tuple[str, ...]]
    in_use: str
    admitting_pins: dict[str, tuple[str, ...]]
    kernel_pins: dict[str, str]


def sort(os_id: str, apt: Apt) -> Offers:
    """The offers of a node, by what becomes of them."""
    allowed: dict[str, tuple[str, ...]] = {}
    pinned, paths = dict[str, tuple[str, ...]](), dict[str, str]()
    kernel_pins: dict[str, str] = {}
    admitting: set[str] = set()
    unused: dict[str, dict[str, tuple[str, ...]]] = {}
    used = Counter[str]()
    for name, offers in apt.offers.items():
        allowed[name] = ()
        # The repository's pins do not reach packages of kernels, and APT::Default-Release is a pin of 990.
        of_kernel = name.startswith("linux-")
        pin = files.PIN_PRIORITY if of_kernel else aptsources.REPOSITORY_PRIORITY
        for offer in offers:
            version, origins = offer.version, offer.origins
            if not origins or apt.relations.successor(name, version):
                continue
            if not aptsources.is_forbidden(offer, offers, pin):
                allowed[name] += (version,)
                if driverset.is_member(name, version):
                    used.update(origins[:1])
                    admitting |= {
                        path
                        for path, rows in apt.pins.items()
                        if rows.get((name, version)) == offer.priority > pin
                    }
                continue
            path = aptsources.forbidding_file(name, version, offers, apt.pins)
            if of_kernel:
                kernel_pins |= {name: path} if path else {}
            elif path:
                pinned[name] = (*pinned.get(name, ()), version)
                paths.setdefault(driverset.driver_version(version), path)
            else:
                for origin in origins:
                    rows = unused.setdefault(_repository(os_id, origin), {})
                    rows[name] = (*rows.get(name, ()), version)
    in_use = _repository(os_id, used.most_common(1)[0][0]) if used else ""
    several = tuple(sorted({_repository(os_id, origin) for origin in used}))
    # What the repository in use has is excluded by no pin of gpustate's own, though by no file alone.
    for name, versions in unused.pop(in_use, {}).items():
        pinned[name] = (*pinned.get(name, ()), *versions)
        for version in map(driverset.driver_version, versions):
            paths.setdefault(version, PIN_PATH.rpartition("/")[0])
    both = {name: (*versions, *pinned.get(name, ())) for name, versions in allowed.items()}
    lost = _sets(os_id, both) - _sets(os_id, allowed) if pinned else set[tuple[str, str, bool]]()
    return Offers(
        allowed,
        {(version, kind): paths[version] for version, kind, _ in sorted(lost) if version in paths},
        {
            choice: tuple(sorted({version for version, *_ in sets}))
            for choice, rows in unused.items()
            if (sets := _sets(os_id, rows))
        },
        in_use,
        dict.fromkeys(sorted(admitting), several) if len(several) > 1 else {},
        kernel_pins,
    )


def _repository(os_id: str, origin: str) -> str:
    """A repository in a few words: the archive of the distribution, or an address."""
    if _ARCHIVE.match(origin):
        return os_id.capitalize() + _OF_ARCHIVE
    return origin.split()[0] if ":/" in origin else origin


def is_archive(repository: str) -> bool:
    """It is the archive of the distribution."""
    return repository.endswith(_OF_ARCHIVE)


def choice(repository: str) -> str:
    """The options that choose a repository, in whatever layer its parameters are set."""
    option = "--set driver-repository.origin"
    if is_archive(repository):
        return f"{option}=distribution"
    if _VENDOR in repository:
        return f"{option}=vendor"
    return f"{option}=mirror --set driver-repository.url={repository}"


def _sets(os_id: str, available: driverset.Versions) -> set[tuple[str, str, bool]]:
    """Driver versions that are there as a whole set, their module type, and whether the set is the full one."""
    return {
        (*row[1:], full)
        for full in (False, True)
        for row in driverset.choices(os_id, available, full=full)
    }
