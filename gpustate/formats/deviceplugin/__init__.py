"""The device plugin's configuration file, schema v1: read, chosen among named ones, written.

The plugin and GPU feature discovery read the same file. What they accept and do not honour is a
warning in a file and an error in a policy: unknown keys, keys that stand twice, ``rename``,
``devices`` and ``resources``. Values of these three are checked anyway, as the plugin does.

Sources:
    NVIDIA/k8s-device-plugin v0.20.0: api/config/v1/*.go (schema, ``DisableResourceNamingInConfig``),
    cmd/nvidia-device-plugin/main.go (``validateFlags``), cmd/mps-control-daemon/mps/device.go (limits),
    cmd/config-manager/main.go (which of several named configurations counts).
"""

from gpustate.formats.deviceplugin.choose import choose, read_all
from gpustate.formats.deviceplugin.model import NO_SHARING, PluginConfig, Shared, Sharing
from gpustate.formats.deviceplugin.read import as_text, faults, read, read_data

__all__ = [
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
