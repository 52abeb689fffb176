"""The MIG geometries of simulated GPUs: the tables of :mod:`gpustate.mig` in the format of the stub NVML.

Memory and multiprocessors of instances are computed, not measured; nothing depends on them.

Sources:
    MIG User Guide r620 and what ``nvidia-smi mig -lgip`` prints (see :mod:`gpustate.mig.tables`):
    multiprocessors of the A100 and H100.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpustate.mig import tables
from gpustate.mig.geometry import Geometry, Profile
from gpustate_lab.sim.models import GpuModel

#: Multiprocessors of a compute slice; for other models all are divided evenly.
_OF_SLICE = {"ampere": 14, "hopper": 16}


def geometries(gpus: Iterable[GpuModel]) -> dict[str, Any]:
    """Return geometries by PCI device id, for every model with MIG."""
    found: dict[str, Any] = {}
    for gpu in gpus:
        model = tables.by_device_id().get(gpu.device_id)
        if gpu.max_mig_devices and model is not None:
            found[gpu.device_id] = _geometry(gpu, model.geometry)
    return found


def _geometry(gpu: GpuModel, geometry: Geometry) -> dict[str, Any]:
    return {
        "memory_slices": geometry.memory_slices,
        "compute_slices": geometry.compute_slices,
        "media": list(geometry.media),
        "profiles": [_profile(gpu, geometry, one) for one in geometry.profiles],
    }


def _profile(gpu: GpuModel, geometry: Geometry, profile: Profile) -> dict[str, Any]:
    each = _OF_SLICE.get(gpu.architecture, gpu.sm_count // geometry.compute_slices)
    memory_mib = gpu.memory_mib * profile.size // geometry.memory_slices
    return {
        "name": profile.name,
        "nvml_id": profile.nvml_id,
        "smi_id": profile.smi_id,
        "slices": profile.slices,
        "size": profile.size,
        "starts": list(profile.starts),
        "most": profile.most,
        "media": list(profile.media),
        "sm_count": min(each * profile.slices, gpu.sm_count),
        "memory_mib": memory_mib * 95 // 100 // 128 * 128,
        "compute": [
            {"slices": one.slices, "nvml_id": one.nvml_id, "starts": list(one.starts)}
            for one in profile.compute
        ],
    }
