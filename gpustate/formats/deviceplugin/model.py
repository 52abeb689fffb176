"""The parts of a device plugin configuration that gpustate uses."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpustate.documents import Json, JsonView

GPU = "nvidia.com/gpu"
#: Maximum clients of an MPS server; the lower number applies below compute capability 7.5.
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
        strategy: ``none``, ``time-slicing`` or ``mps``, as in the label.
        resources: the shared resources.
        renamed: whether shared resources are named ``<name>.shared``.
    """

    strategy: str = "none"
    resources: tuple[Shared, ...] = ()
    renamed: bool = False

    def replicas(self, resource: str) -> int:
        """How often a device of a resource is advertised; 1 if it is not shared."""
        return next((shared.replicas for shared in self.resources if shared.name == resource), 1)


NO_SHARING = Sharing()


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """One configuration.

    Args:
        sharing: of GPUs.
        mig_strategy: ``none``, ``single`` or ``mixed``; empty if the file does not set it.
        data: all supported keys as plain data, for writing.
        notes: for the user; not errors.
        warnings: ignored parts of the file, each with its place.
    """

    sharing: Sharing = NO_SHARING
    mig_strategy: str = ""
    data: JsonView = field(default_factory=Json)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
