"""The components of a cluster, one module each.

A new one is a module with a ``PART``, its settings in :mod:`gpustate.manifests.settings`, and its name here.
"""

from __future__ import annotations

from gpustate.manifests.components import (
    cc_manager,
    container_toolkit,
    dcgm,
    dcgm_exporter,
    device_plugin,
    dra_driver,
    driver,
    feature_discovery,
    kata_device_plugin,
    mig_manager,
    node_status_exporter,
    sandbox_device_plugin,
    validator,
    vfio_manager,
    vgpu_device_manager,
    vgpu_manager,
)
from gpustate.manifests.components.part import Part

PARTS: tuple[Part, ...] = (
    driver.PART,
    container_toolkit.PART,
    validator.PART,
    mig_manager.PART,
    vgpu_manager.PART,
    vgpu_device_manager.PART,
    vfio_manager.PART,
    device_plugin.PART,
    feature_discovery.PART,
    dcgm.PART,
    dcgm_exporter.PART,
    node_status_exporter.PART,
    sandbox_device_plugin.PART,
    kata_device_plugin.PART,
    cc_manager.PART,
    dra_driver.PART,
)

__all__ = ["PARTS", "Part"]
