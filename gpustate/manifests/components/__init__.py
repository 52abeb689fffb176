"""The components of a cluster: a row here, the objects in a file of ``data``, the settings in :mod:`gpustate.manifests.settings`.

What a policy decides beside its settings is in a module of the component.
"""

from __future__ import annotations

from gpustate.documents import Json
from gpustate.manifests.components import (
    container_toolkit,
    dcgm_exporter,
    device_plugin,
    dra_driver,
    driver,
    mig_manager,
    vgpu_manager,
)
from gpustate.manifests.components.part import Part
from gpustate.manifests.ownership import DEPLOY
from gpustate.manifests.settings import ClusterSettings


def _of_node_status(settings: ClusterSettings) -> Json:
    labels = settings.dcgm_exporter.monitor.labels
    return {"monitor_labels": {"app": "nvidia-node-status-exporter", **labels}}


def _of_vgpu_devices(settings: ClusterSettings) -> Json:
    return {"has_data": settings.vgpu_device_manager.data is not None}


def _of_vfio(settings: ClusterSettings) -> Json:
    manager = settings.vfio_manager.manager
    return driver.manager_values(settings, manager, "vfioManager.driverManager")


PARTS: tuple[Part, ...] = (
    driver.PART,
    container_toolkit.PART,
    Part("validator", "validator", f"{DEPLOY}operator-validator"),
    mig_manager.PART,
    vgpu_manager.PART,
    Part(
        "vgpuDeviceManager",
        "vgpu_device_manager",
        f"{DEPLOY}vgpu-device-manager",
        machines=True,
        values=_of_vgpu_devices,
    ),
    Part(
        "vfioManager",
        "vfio_manager",
        f"{DEPLOY}vfio-manager",
        "vfio",
        machines=True,
        replaces=True,
        values=_of_vfio,
    ),
    device_plugin.PART,
    Part("gfd", "feature_discovery", f"{DEPLOY}gpu-feature-discovery"),
    Part("dcgm", "dcgm", f"{DEPLOY}dcgm", "dcgm", claims=True),
    dcgm_exporter.PART,
    Part(
        "nodeStatusExporter",
        "node_status_exporter",
        f"{DEPLOY}node-status-exporter",
        values=_of_node_status,
    ),
    Part(
        "sandboxDevicePlugin",
        "sandbox_device_plugin",
        f"{DEPLOY}sandbox-device-plugin",
        machines=True,
    ),
    Part(
        "kataSandboxDevicePlugin",
        "kata_device_plugin",
        f"{DEPLOY}kata-sandbox-device-plugin",
        machines=True,
    ),
    Part("ccManager", "cc_manager", f"{DEPLOY}cc-manager", machines=True),
    dra_driver.PART,
)

__all__ = ["PARTS", "Part"]
