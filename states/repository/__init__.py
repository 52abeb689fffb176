"""NVIDIA packages come from exactly one place, with a key that is pinned to it (apt, dnf and zypper).

Two states: ``driver-repository`` (the driver and everything that must have its version) and
``toolkit-repository`` (the container toolkit). Each writes one deb822 source file, a key file of
its own that ``Signed-By`` points to (never the keyring that all repositories share), and pins: the
packages in question come from this repository's host, and no other host may offer them at all.
NVIDIA's repository and the distributions name the same driver's packages differently, so a set put
together from both never fits.

On nodes with dnf or zypper it is a .repo file with a priority in the place of pins (:mod:`.rpm`).

Surprising: entries of others are never edited. A second source of NVIDIA packages is refused with
its file named, or, with ``exclusive``, left where it is and pinned away. Pins tell hosts apart, not
paths, so the distribution's archive on the host of another repository is recognized by its codename. The same address in
another file with another ``Signed-By`` breaks apt as a whole and is always refused. Only this repository's package lists are read, and only when the files changed;
those of others where there are none at all, as in a cloud image, so that headers can be found.

Sources:
    sources.list(5): deb822, flat repositories; ``Signed-By`` takes a key file together with a
    fingerprint; apt_preferences(5): the first specific-form record that fits a version decides.
    NVIDIA driver installation guide: addresses and keys of the CUDA repository;
    NVIDIA container toolkit installation guide: address and key of libnvidia-container.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import ClassVar, Literal

from gpustate import NodeFacts
from gpustate.core.planned import PlannedObservation
from gpustate.formats import drivernames, driverset
from gpustate.states.repository import rpm
from gpustate.states.repository.base import RepositoryState
from gpustate.states.repository.parameters import Observed
from gpustate.states.repository.where import Repository, cuda_repository, toolkit_repository

#: Names of packages that bring kernel modules.
_MODULES = re.compile(r"dkms|kmod|kernel|cuda-drivers|nvidia-driver|nvidia-open")


class DriverRepository(RepositoryState):
    """The driver's packages come from one repository only, and its package lists are read.

    Args:
        origin: ``vendor`` is NVIDIA's CUDA repository; ``distribution`` is the archive of Debian
            (non-free) or Ubuntu (restricted), with the missing components added; ``mirror`` is
            ``url`` with ``key``.
        url, username, password, suite, components, signed, key, fingerprint, exclusive, pin_priority, refresh_days, unless_offered: see above.

    Disruption:
        ``NONE``: nothing is installed.
    """

    name: ClassVar[str] = "driver-repository"
    driver: ClassVar[bool] = True
    serves: ClassVar[tuple[str, ...]] = ("driver",)
    origin: Literal["vendor", "distribution", "mirror"] = "vendor"

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        return {"driver_from": self.origin}

    @property
    def source(self) -> str:
        return self.origin

    def vendor(self, facts: NodeFacts) -> Repository:
        return cuda_repository(facts)

    def packages(self, os_id: str) -> tuple[str, ...]:
        return drivernames.pin_names(os_id)

    def rpm_vendor(self, facts: NodeFacts) -> Repository:
        return rpm.cuda_repository(facts)

    def chief_packages(self) -> tuple[str, ...]:
        families = ("debian", "ubuntu", "rhel", "sles")
        names = (driverset.names_to_query(f, drivernames.KNOWN_BRANCHES) for f in families)
        return tuple(dict.fromkeys(n for n in chain(*names) if _MODULES.search(n)))

    def _same_packages(self, uri: str) -> bool:
        # The toolkit's repository has no driver in it.
        return "nvidia.github.io" not in uri and "libnvidia-container" not in uri


class ToolkitRepository(RepositoryState):
    """The container toolkit's packages come from one repository only, and its lists are read.

    Args:
        origin: ``vendor`` is NVIDIA's libnvidia-container repository, ``mirror`` is ``url`` with
            ``key``. The distributions do not have the toolkit.
        url, username, password, suite, components, signed, key, fingerprint, exclusive, pin_priority, refresh_days, unless_offered: see above.

    Disruption:
        ``NONE``: nothing is installed.
    """

    name: ClassVar[str] = "toolkit-repository"
    serves: ClassVar[tuple[str, ...]] = ("container-toolkit",)
    origin: Literal["vendor", "mirror"] = "vendor"

    @property
    def source(self) -> str:
        return self.origin

    def vendor(self, facts: NodeFacts) -> Repository:
        return toolkit_repository(facts)

    def packages(self, os_id: str) -> tuple[str, ...]:
        return drivernames.TOOLKIT_NAMES

    def rpm_vendor(self, facts: NodeFacts) -> Repository:
        return rpm.toolkit_repository(facts)

    def chief_packages(self) -> tuple[str, ...]:
        return ("nvidia-container-toolkit",)

    def _same_packages(self, uri: str) -> bool:
        # The CUDA repository carries the toolkit too, and the driver's state wants it: it is pinned
        # away here without a word.
        return "/cuda/" not in uri and "graphics-drivers" not in uri


__all__ = ["DriverRepository", "Observed", "ToolkitRepository"]
