"""What a policy decides for NVIDIA's MIG manager."""

from __future__ import annotations

from gpustate.documents import Json
from gpustate.manifests import workloads
from gpustate.manifests.components.part import Part
from gpustate.manifests.ownership import DEPLOY
from gpustate.manifests.settings import ClusterSettings

#: Layouts that the Operator brings itself; the program falls back to them.
DEFAULT_LAYOUTS, DEFAULT_CLIENTS = "default-mig-parted-config", "default-gpu-clients"
_SCRIPT = "export WITH_SHUTDOWN_HOST_GPU_CLIENTS=$IS_HOST_DRIVER\nexec nvidia-mig-manager\n"


def _values(settings: ClusterSettings) -> Json:
    return {
        "default_layouts": settings.mig_manager.layouts.name == DEFAULT_LAYOUTS,
        "entrypoint": workloads.entrypoint(_SCRIPT),
    }


PART = Part(
    "migManager",
    "mig_manager",
    f"{DEPLOY}mig-manager",
    "mig",
    partitions=True,
    replaces=True,
    values=_values,
)
