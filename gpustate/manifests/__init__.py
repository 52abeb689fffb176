"""Kubernetes objects of a policy as plain data: the components of a cluster. Pure.

``settings`` is what a policy decides, ``build`` turns it into objects in the order of their application, ``components``
has a module for each component, ``pods`` and ``rbac`` are what they share, ``kinds`` lists the kinds, and ``differences``
compares two objects.
"""

from __future__ import annotations

from gpustate.manifests.settings import (
    ClusterObjects,
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
    "ClusterObjects",
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
