"""Services that hold GPUs open and can be stopped by name and started again.

Sources: unit files of datacenter-gpu-manager, of dcgm-exporter's host packages and of NVIDIA System
Management (DGX); NVIDIA/mig-parted deployments/systemd/hooks.sh.
"""

from __future__ import annotations

from gpustate.formats import mps

#: Monitoring, in the order in which it is stopped; started in reverse.
MONITORS = (
    *("gpu-feature-discovery.service", "nvidia-device-plugin.service"),
    *("nvidia-dcgm-exporter.service", "dcgm-exporter.service", "nvidia-dcgm.service"),
    *("dcgm.service", "nvsm-notifier.service", "nvsm-api-gateway.service"),
    *("nvsm-mqtt.service", "nvsm-core.service", "nvsm.service"),
)
#: Of packages that leave with the driver, and of the state ``mps``.
OF_DRIVER = (
    "nvidia-gridd.service",
    "nvidia-topologyd.service",
    mps.UNIT,
    "nvidia-persistenced.service",
    "nvidia-imex.service",
    "nvidia-fabricmanager.service",
)
#: gpustate's own validation at boot: a run validates itself, so it stops this one and does not start it again.
VALIDATION = "gpustate-validate.service"
#: All of them, in this order.
STOPPABLE = (*MONITORS, "nvidia-mps.service", *OF_DRIVER)
