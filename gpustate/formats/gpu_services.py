"""Monitoring services that hold GPUs open: they can be stopped by name and started again.

Sources: unit files of datacenter-gpu-manager, of dcgm-exporter's host packages and of NVIDIA System
Management (DGX); NVIDIA/mig-parted deployments/systemd/hooks.sh.
"""

from __future__ import annotations

#: In the order in which they are stopped; started in reverse.
MONITORS = (
    "nvidia-device-plugin.service",
    "nvidia-dcgm-exporter.service",
    "dcgm-exporter.service",
    "nvidia-dcgm.service",
    "dcgm.service",
    "nvsm-notifier.service",
    "nvsm-api-gateway.service",
    "nvsm-mqtt.service",
    "nvsm-core.service",
    "nvsm.service",
)
