"""Labels of MIG devices, for both strategies.

``single``: every MIG device is an ``nvidia.com/gpu``, which requires the same profile on all GPUs; otherwise
the product ends in ``MIG-INVALID`` and the count is 0. ``mixed``: a resource per profile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpustate.formats.deviceplugin.model import GPU, Sharing
from gpustate.formats.labels.names import product
from gpustate.formats.labels.resource import base_labels
from gpustate.formats.nvml_report import Gpu, MigDevice

_PROFILE = re.compile(r"(?:^|\s)(?:MIG\s+)?((?:\d+c\.)?\d+g\.\d+gb(?:[+-][a-z.,]+)?)$")
#: Suffix of the label, field of the report.
_ATTRIBUTES = (
    ("memory", "memory_mib"),
    ("multiprocessors", "multiprocessors"),
    ("slices.gi", "gi_slices"),
    ("slices.ci", "ci_slices"),
    ("engines.copy", "copy_engines"),
    ("engines.decoder", "decoders"),
    ("engines.encoder", "encoders"),
    ("engines.jpeg", "jpeg_engines"),
    ("engines.ofa", "ofa_engines"),
)


def profile(device: MigDevice) -> str:
    """The profile as in resource names: ``1g.10gb.me`` for ``... MIG 1g.10gb+me``; empty if unknown."""
    match = _PROFILE.search(device.name.strip())
    return match[1].replace("+", ".") if match else ""


def problem(gpus: Iterable[Gpu]) -> str | None:
    """Return why the MIG devices of GPUs cannot be described."""
    for gpu in gpus:
        for device in gpu.mig_devices:
            if not profile(device):
                return f"GPU {gpu.index}: the profile of MIG device {device.uuid} is unknown"
            if device.memory_mib is None:
                return (
                    f"GPU {gpu.index}: nvidia-smi alone does not report the attributes of MIG devices; "
                    "install a complete python3 on the node"
                )
    return None


def labels(
    gpus: Iterable[Gpu], strategy: str, sharing: Sharing, notes: list[str]
) -> dict[str, str]:
    """Labels of the MIG devices, on top of those of whole GPUs."""
    all_gpus = tuple(gpus)
    enabled = [gpu for gpu in all_gpus if gpu.mig_current]
    devices = [(gpu, device) for gpu in enabled for device in gpu.mig_devices]
    profiles = list(dict.fromkeys(profile(device) for _, device in devices))
    if strategy == "single":
        if not enabled:
            return {}
        why = _invalid(all_gpus, enabled, profiles)
        if why:
            notes.append(f"the MIG strategy single is not applicable: {why}")
            return _invalid_labels(enabled[0])
    by_name: dict[str, str] = {}
    for name in profiles:
        same = [(gpu, device) for gpu, device in devices if profile(device) == name]
        resource = GPU if strategy == "single" else f"nvidia.com/mig-{name}"
        gpu, device = same[0]
        by_name |= base_labels(resource, len(same), sharing, product_parts=(gpu.name, "MIG", name))
        for suffix, field in _ATTRIBUTES:
            by_name[f"{resource}.{suffix}"] = str(getattr(device, field) or 0)
    return by_name


def _invalid(gpus: tuple[Gpu, ...], enabled: list[Gpu], profiles: list[str]) -> str:
    if any(not gpu.mig_devices for gpu in enabled):
        return "a GPU has MIG enabled and no MIG device"
    if len(enabled) < len(gpus):
        return "MIG is enabled on some GPUs only"
    return "" if len(profiles) == 1 else f"there are several profiles ({', '.join(profiles)})"


def _invalid_labels(gpu: Gpu) -> dict[str, str]:
    return {
        GPU + ".product": product(gpu.name, "MIG", "INVALID"),
        GPU + ".count": "0",
        GPU + ".replicas": "0",
        GPU + ".sharing-strategy": "",
        GPU + ".memory": "0",
    }
