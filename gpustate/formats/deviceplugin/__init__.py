"""The device plugin's configuration file, schema v1: reading, choosing among named ones, writing.

The plugin and GPU feature discovery read the same file. Keys that they accept and ignore are warnings in a
file and errors in a policy: unknown and duplicate keys, ``rename``, ``devices`` and ``resources``. Values of
these three are validated anyway, as the plugin does.

Sources:
    NVIDIA/k8s-device-plugin v0.20.0: api/config/v1/*.go (schema, ``DisableResourceNamingInConfig``),
    cmd/nvidia-device-plugin/main.go (``validateFlags``), cmd/mps-control-daemon/mps/device.go (limits),
    cmd/config-manager/main.go (selection among named configurations).
"""

from gpustate.formats.deviceplugin.choose import choose, read_all
from gpustate.formats.deviceplugin.model import NO_SHARING, PluginConfig, Shared, Sharing
from gpustate.formats.deviceplugin.read import (
    INSTEAD_OF_MIXED,
    NOT_WITH_MIXED,
    as_text,
    faults,
    read,
    read_data,
)

__all__ = [
    "INSTEAD_OF_MIXED",
    "NOT_WITH_MIXED",
    "NO_SHARING",
    "PluginConfig",
    "Shared",
    "Sharing",
    "as_text",
    "choose",
    "faults",
    "read",
    "read_all",
    "read_data",
]
