"""What ``gpustate driver solve`` needs from states: the request for a driver, and the set chosen for a node. Pure.

Nothing here knows a state by name. The state whose packages are locked is a subclass of :class:`SolvedState`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic

from gpustate.core.node import Node
from gpustate.core.state import ObservedT, State


@dataclass(frozen=True, slots=True)
class DriverRequest:
    """What a policy requests of the driver.

    Args:
        version: exact driver version.
        channel: ``latest``, ``latest-lts``, ``latest-production`` or ``latest-new-feature``.
        branch: driver branch.
        module_type: ``auto``, ``open`` or ``proprietary``.
        full: include display libraries.
        precompiled: use Ubuntu's signed modules instead of DKMS.
    """

    version: str | None = None
    channel: str | None = None
    branch: int | None = None
    module_type: str = "auto"
    full: bool = False
    precompiled: bool = False

    @property
    def text(self) -> str:
        """The request in a few words."""
        words = f"driver {self.version}" if self.version else self.channel or ""
        if self.branch is not None:
            words = f"{words} of branch {self.branch}" if words else f"branch {self.branch}"
        return words or "a driver"


@dataclass(frozen=True, slots=True)
class OfferedDriver:
    """A complete driver set that the repositories of a node offer.

    Args:
        version, module_type: of the driver.
        obstacles: why the policy or the GPUs exclude it.
    """

    version: str
    module_type: str
    obstacles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Solution:
    """The driver set that a state chooses for a node.

    Args:
        version, module_type: of the driver.
        packages: full versions, by name.
        offers: versions that repositories offer, by name.
        drivers: all sets that repositories offer.
        problem: why there is no set, with the next move.
    """

    version: str = ""
    module_type: str = ""
    packages: Mapping[str, str] = field(default_factory=dict[str, str])
    offers: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    drivers: tuple[OfferedDriver, ...] = ()
    problem: str = ""


class SolvedState(State[ObservedT], Generic[ObservedT]):
    """Base of the state whose packages a lock file pins."""

    @abstractmethod
    def request(self) -> DriverRequest:
        """MUST: the request that the parameters make."""

    @abstractmethod
    def solve(self, node: Node, preview: str) -> Solution:
        """MUST: choose the newest set of the request, and simulate its installation.

        Args:
            node: is queried.
            preview: sh that adds repositories of the policy that the node does not have yet.
        """

    @abstractmethod
    def locked_parameters(
        self, driver: str, module_type: str, packages: Mapping[str, str]
    ) -> dict[str, object]:
        """MUST: the parameters with which exactly that driver is installed.

        Args:
            driver: its version.
            module_type: open or proprietary.
            packages: full versions by name.
        """


__all__ = ["DriverRequest", "OfferedDriver", "Solution", "SolvedState"]
