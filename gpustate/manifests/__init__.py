"""Kubernetes objects of a policy as plain data: the components of a cluster. Pure.

``settings`` is what a policy decides, ``build`` turns it into objects in the order of their application. The objects of a
component are a file in ``data``, ``components`` says which there are and what a policy decides for them, ``templates``
fills in values, and ``workloads`` adds what all pods have in common. ``kinds`` lists the kinds, and ``differences`` compares
two objects.
"""

from __future__ import annotations

from gpustate.manifests.settings import (
    ClusterSettings,
    Component,
    Container,
    Counters,
    DraDriver,
    DriverContainer,
    Exporter,
    Files,
    HostDriver,
    License,
    MigManager,
    Monitor,
    PluginConfig,
    Pods,
    System,
    ToolkitContainer,
    ValidatorContainer,
    VgpuDeviceManager,
)

__all__ = [
    "ClusterSettings",
    "Component",
    "Container",
    "Counters",
    "DraDriver",
    "DriverContainer",
    "Exporter",
    "Files",
    "HostDriver",
    "License",
    "MigManager",
    "Monitor",
    "PluginConfig",
    "Pods",
    "System",
    "ToolkitContainer",
    "ValidatorContainer",
    "VgpuDeviceManager",
]
