"""Kubernetes objects of a policy as plain data: the device plugin and what it needs. Pure.

``settings`` is what a policy decides, ``build`` turns it into objects in the order of their application,
``daemonsets`` and ``rbac`` contain the parts, ``kinds`` lists the kinds, and ``differences`` compares two objects.
"""

from __future__ import annotations

from gpustate.manifests.settings import ClusterObjects, Component, PluginConfig, Pods

__all__ = ["ClusterObjects", "Component", "PluginConfig", "Pods"]
