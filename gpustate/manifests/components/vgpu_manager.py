"""NVIDIA's vGPU manager: the driver of a host whose GPUs are divided among virtual machines."""

from __future__ import annotations

from collections.abc import Iterator

from gpustate.documents import Json
from gpustate.errors import PolicyError
from gpustate.manifests import workloads
from gpustate.manifests.components import driver
from gpustate.manifests.components.part import Part
from gpustate.manifests.ownership import DEPLOY
from gpustate.manifests.settings import ClusterSettings


def _objects(settings: ClusterSettings, image: str) -> Iterator[Json]:
    manager = settings.vgpu_manager
    systems = {system.tag: system for system in driver.systems_of(settings)}
    if len(systems) > 1:
        raise PolicyError(
            f"vgpuManager has one image, and the nodes have {', '.join(systems)}",
            fix="list only the system of the nodes for virtual machines",
        )
    (system,) = systems.values()
    values = driver.manager_values(settings, manager.manager, "vgpuManager.driverManager")
    values |= driver.module_files(manager.module_config)
    whole_image = driver.with_system(image, system)
    yield from workloads.objects("vgpu-manager", settings, manager, whole_image, values)


PART = Part("vgpuManager", "vgpu_manager", f"{DEPLOY}vgpu-manager", machines=True, build=_objects)
