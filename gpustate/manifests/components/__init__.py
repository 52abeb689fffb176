"""The components of a cluster, one module each.

A new one is a module with a ``PART``, its settings in :mod:`gpustate.manifests.settings`, and its name here.
"""

from __future__ import annotations

from gpustate.manifests.components import device_plugin, feature_discovery
from gpustate.manifests.components.part import Part

PARTS: tuple[Part, ...] = (device_plugin.PART, feature_discovery.PART)

__all__ = ["PARTS", "Part"]
