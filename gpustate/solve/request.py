"""What the solver needs from states: the request for a driver, and the parts of a node that decide. Pure.

The solver knows no state by name. A state whose packages it chooses is a subclass of :class:`SolvedState`; the one
whose package must have the driver's version, of :class:`FabricManagerState`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic

from gpustate.core.facts import NodeFacts
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
        fabric_manager: include the fabric manager in the driver's version.
    """

    version: str | None = None
    channel: str | None = None
    branch: int | None = None
    module_type: str = "auto"
    full: bool = False
    precompiled: bool = False
    fabric_manager: bool = False

    @property
    def text(self) -> str:
        """The request in a few words."""
        words = f"driver {self.version}" if self.version else self.channel or ""
        if self.branch is not None:
            words = f"{words} of branch {self.branch}" if words else f"branch {self.branch}"
        return words or "a driver"


@dataclass(frozen=True, slots=True)
class InstalledSet:
    """The parts of an observation that decide which driver a node gets.

    Args:
        scheme: naming scheme of the installed driver packages; empty for none.
        kernels: kernel releases that need modules.
    """

    scheme: str
    kernels: tuple[str, ...]


class SolvedState(State[ObservedT], Generic[ObservedT]):
    """Base of the state whose packages the solver chooses, and a lock file pins."""

    @abstractmethod
    def request(self) -> DriverRequest:
        """MUST: the request that the parameters make."""

    @abstractmethod
    def installed_set(self, observed: ObservedT) -> InstalledSet:
        """MUST: the parts of an observation that decide."""

    @abstractmethod
    def modules_for(
        self, gpus: tuple[Any, ...], branch: int, wanted: str
    ) -> tuple[str | None, str]:
        """MUST: the kernel module type of a branch for some GPUs; or ``None``, and why there is none.

        Args:
            gpus: on PCI.
            branch: driver branch.
            wanted: the requested type.
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


class FabricManagerState(State[ObservedT], Generic[ObservedT]):
    """Base of the state that installs the fabric manager, which the solver chooses together with the driver."""

    @abstractmethod
    def is_needed(self, facts: NodeFacts, observed: ObservedT | None) -> bool:
        """MUST: the node needs the package.

        Args:
            facts: of the node.
            observed: what the probe read; ``None`` where it failed.
        """


__all__ = ["DriverRequest", "FabricManagerState", "InstalledSet", "SolvedState"]
