"""Read which devices the kubelet has given to which pods. Pure.

Sources:
    kubernetes, pkg/kubelet/cm/devicemanager/checkpoint: PodDevicesEntry, DevicesPerNUMA;
    NVIDIA/k8s-device-plugin, internal/rm: a device is named by its UUID, a shared one by UUID, ``::`` and a number.
"""

from __future__ import annotations

import json

CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
_NAMES = ("GPU-", "MIG-")


def gpus_by_pod(checkpoint: str | None) -> dict[str, tuple[str, ...]]:
    """GPUs and MIG devices of pods, by the pod's UID; empty if that cannot be read."""
    result: dict[str, tuple[str, ...]] = {}
    try:
        for entry in json.loads(checkpoint or "{}")["Data"]["PodDeviceEntries"] or ():
            names = [name for ids in entry["DeviceIDs"].values() for name in ids]
            gpus = tuple(name for name in names if name.startswith(_NAMES))
            if gpus:
                result[entry["PodUID"]] = (*result.get(entry["PodUID"], ()), *gpus)
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
    return result
