"""Output of ``gpustate node mig show``: supported GPUs, and profiles of one with their placements."""

from __future__ import annotations

from collections.abc import Sequence

from gpustate.mig.geometry import Geometry, Profile
from gpustate.mig.names import device_name
from gpustate.mig.tables import MODELS, UNKNOWN, Model

MODELS_FORMAT = "gpustate.mig-models/1"
PROFILES_FORMAT = "gpustate.mig-profiles/1"


def models_data() -> dict[str, object]:
    """All supported GPUs."""
    return {
        "format": MODELS_FORMAT,
        "models": [_head(model) for model in MODELS],
        "unknown": [
            {"device_id": device, "name": name, "why": why}
            for device, (name, why) in UNKNOWN.items()
        ],
    }


def models_text() -> str:
    """All supported GPUs, one per line."""
    rows = [["GPU", "PCI ids", "instances", "first driver"]]
    for model in MODELS:
        ids, most = " ".join(model.device_ids), _most(model.geometry)
        rows.append([model.name, ids, str(most), model.first_driver or "-"])
    lines = _columns(rows)
    lines += [f"not in the tables: {name} ({why})" for name, why in UNKNOWN.values()]
    return "\n".join(lines) + "\n"


def model_data(model: Model) -> dict[str, object]:
    """One GPU with its profiles."""
    return {
        "format": PROFILES_FORMAT,
        **_head(model),
        "memory_slices": model.geometry.memory_slices,
        "compute_slices": model.geometry.compute_slices,
        "media": model.geometry.media.named(),
        "note": model.note,
        "profiles": [_profile(profile) for profile in model.geometry.profiles],
    }


def model_text(model: Model) -> str:
    """One GPU with its profiles, one per line."""
    rows = [["profile", "most", "compute", "memory", "begins at", "nvidia-smi", "NVML", "media"]]
    for profile in model.geometry.profiles:
        rows.append(
            [
                profile.name,
                str(profile.most),
                f"{profile.slices}/{model.geometry.compute_slices}",
                f"{profile.size}/{model.geometry.memory_slices}",
                " ".join(map(str, profile.starts)),
                str(profile.smi_id),
                str(profile.nvml_id),
                " ".join(f"{count} {word}" for word, count in profile.media.named().items()) or "-",
            ]
        )
    head = f"{model.name}  ({', '.join(model.device_ids)}; {model.architecture})"
    smaller = [
        device_name(piece.slices, profile.name)
        for profile in model.geometry.profiles
        for piece in profile.compute
        if piece.slices < profile.slices
    ]
    lines = [head, *_columns(rows), "", f"smaller compute instances: {' '.join(smaller)}"]
    if model.note:
        lines.append(f"note: {model.note}")
    return "\n".join(lines) + "\n"


def _head(model: Model) -> dict[str, object]:
    return {
        "name": model.name,
        "names": list(model.names),
        "device_ids": list(model.device_ids),
        "architecture": model.architecture,
        "first_driver": model.first_driver,
        "sources": model.sources.split(),
    }


def _profile(profile: Profile) -> dict[str, object]:
    return {
        "name": profile.name,
        "also": list(profile.also),
        "most": profile.most,
        "slices": profile.slices,
        "size": profile.size,
        "starts": list(profile.starts),
        "media": profile.media.named(),
        "nvml_id": profile.nvml_id,
        "smi_id": profile.smi_id,
        "compute": [
            {"slices": p.slices, "starts": list(p.starts), "nvml_id": p.nvml_id}
            for p in profile.compute
        ],
    }


def _most(geometry: Geometry) -> int:
    return max(profile.most for profile in geometry.profiles)


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
