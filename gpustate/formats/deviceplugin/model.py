"""What a configuration of the device plugin says, as far as anybody but the plugin has to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GPU = "nvidia.com/gpu"
#: Replicas the MPS server has room for; the lower number holds below compute capability 7.5.
MPS_MOST, MPS_MOST_OLD = 48, 16


@dataclass(frozen=True, slots=True)
class Shared:
    """One resource that is advertised several times."""

    name: str  # with its prefix: nvidia.com/gpu
    replicas: int


@dataclass(frozen=True, slots=True)
class Sharing:
    """How GPUs are shared.

    Args:
        strategy: ``none``, ``time-slicing`` or ``mps``, as the label says it.
        resources: those that are shared.
        renamed: shared resources are called ``<name>.shared``.
    """

    strategy: str = "none"
    resources: tuple[Shared, ...] = ()
    renamed: bool = False

    def replicas(self, resource: str) -> int:
        """How often a device of a resource is advertised; 1 when it is not shared."""
        return next((one.replicas for one in self.resources if one.name == resource), 1)


NO_SHARING = Sharing()


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """One configuration.

    Args:
        sharing: what it shares.
        mig_strategy: ``none``, ``single`` or ``mixed``; empty where the file does not say.
        data: all of it that the plugin knows, as plain data, to be written again.
        notes: what a person should know that is no error.
        warnings: what the plugin goes past in the file, each with its place.
    """

    sharing: Sharing = NO_SHARING
    mig_strategy: str = ""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
