"""Profiles of MIG-capable GPUs, without a driver.

NVML's report of a GPU takes precedence. The tables are for plans before a driver is installed, and for checking
files. A GPU without complete public documentation is in :data:`UNKNOWN` with the reason, and plans for it need
NVML's report.

The profiles of all GPUs with seven compute slices differ only in memory. Placements were published for A100,
H100 80 GB and H100 NVL. For the others only the numbers of profiles and instances were, and they are the same. Sizes
of compute instances are those of the A100 and A30, and assumed for other GPUs.

Sources:
    [guide] MIG User Guide r620: supported MIG profiles, supported GPUs, getting started (-lgip,
        -lgipp), deployment considerations (first driver).
    [parted] NVIDIA/mig-parted v0.15, deployments/systemd/config-default.yaml: device ids, names and
        counts; pkg/mig/config/known_configs.go: counts of compute instances; pkg/mig/discovery:
        A30, for which NVML's counts are wrong.
    [nvml] nvml.h 13.0: NVML_GPU_INSTANCE_PROFILE_*, NVML_COMPUTE_INSTANCE_PROFILE_*.
    [mock] NVIDIA/go-nvml, pkg/nvml/mock/gpus/a100.go and a30.go: engines (its other tables are wrong).
    [gke] GoogleCloudPlatform/container-engine-accelerators, partition_gpu.go: nvidia-smi's numbers.
    [h100] NVIDIA/go-nvlib#85 and #102: compute instances of a 1g with double memory on an H100 NVL and an A100.
    [b200] NVIDIA/mig-parted#166, [gb200] #227 and NVIDIA/gpu-operator#1303, [gh200] #139,
        [h200] #120: what nvidia-smi mig -lgip prints there, engines included.
    [rtx] bigstack-oss/cubecos#312: the same for RTX PRO 6000; its places from nvidia-smi mig -lgipp
        on a Server Edition.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from gpustate.errors import UsageError
from gpustate.mig.geometry import NO_MEDIA, ComputeProfile, Geometry, Media, Profile


@dataclass(frozen=True)
class Model:
    """One GPU model, or several with the same MIG properties.

    Args:
        names: NVML's names without ``NVIDIA``; the first one is used for all.
        device_ids: PCI device ids, four lower-case hexadecimal digits.
        architecture: NVIDIA's name, lower case.
        geometry: its profiles.
        sources: labels from the list at the top of the module.
        first_driver: the first driver with MIG support for it; empty if unknown.
        note: for the user.
    """

    names: tuple[str, ...]
    device_ids: tuple[str, ...]
    architecture: str
    geometry: Geometry
    sources: str
    first_driver: str = ""
    note: str = ""

    @property
    def name(self) -> str:
        """The name used for all."""
        return self.names[0]


#: NVML_COMPUTE_INSTANCE_PROFILE_* by slices.
_IDS = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}


def _compute(sizes: tuple[int, ...]) -> tuple[ComputeProfile, ...]:
    """Compute instances of a GPU instance with the last of these sizes."""
    full_size = sizes[-1]
    places = {1: tuple(range(full_size)), 2: (0, 2, 4), 3: (0, 4), 4: (0,), 7: (0,)}
    return tuple(
        ComputeProfile(size, tuple(s for s in places[size] if s + size <= full_size), _IDS[size])
        for size in sizes
    )


_COMPUTE = {g: _compute(s) for g, s in ((1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)))}
_COMPUTE[7] = _compute((1, 2, 3, 4, 7))
#: From Hopper on, a 1g with double memory has more multiprocessors than a compute slice: 1_SLICE_REV1 takes all of them.
_DOUBLE = (*_COMPUTE[1], ComputeProfile(1, (0,), 7))

#: GPUs with seven slices: compute slices, size, starts, most, NVML's number, nvidia-smi's.
_SEVEN = {
    "7g": (7, 8, (0,), 1, 4, 0),
    "4g": (4, 4, (0,), 1, 3, 5),
    "3g": (3, 4, (0, 4), 2, 2, 9),
    "2g": (2, 2, (0, 2, 4), 3, 1, 14),
    "1g double": (1, 2, (0, 2, 4, 6), 4, 9, 15),
    "1g": (1, 1, (0, 1, 2, 3, 4, 5, 6), 7, 0, 19),
    "1g+me": (1, 1, (0, 1, 2, 3, 4, 5, 6), 1, 7, 20),
}
#: Engines by profile: decoders, encoders, JPEG, optical flow.
_AMPERE = {
    "7g": Media(5, 0, 1, 1),
    "4g": Media(2),
    "3g": Media(2),
    "2g": Media(1),
    "1g double": Media(1),
    "1g": NO_MEDIA,
    "1g+me": Media(1, 0, 1, 1),
}
_HOPPER = {
    "7g": Media(7, 0, 7, 1),
    "4g": Media(4, 0, 4),
    "3g": Media(3, 0, 3),
    "2g": Media(2, 0, 2),
    "1g double": Media(1, 0, 1),
    "1g": Media(1, 0, 1),
    "1g+me": Media(1, 0, 1, 1),
}


def compute_profiles(slices: int) -> tuple[ComputeProfile, ...]:
    """Default compute instances of a GPU instance with this many slices."""
    return _COMPUTE.get(slices) or _compute((slices,) if slices in _IDS else (1,))


def _seven(gb: tuple[int, int, int, int], media: dict[str, Media]) -> Geometry:
    """A GPU with seven slices; memory in the names of 1g, 2g, 3g and 7g."""
    single, double, half, full = gb
    memory = {"7g": full, "4g": half, "3g": half, "2g": double, "1g double": double}
    profiles = []
    for kind, (slices, size, starts, most, nvml_id, smi_id) in _SEVEN.items():
        name = f"{slices}g.{memory.get(kind, single)}gb{'+me' if kind == '1g+me' else ''}"
        profiles.append(
            Profile(
                name,
                slices,
                size,
                starts,
                most,
                media[kind],
                _DOUBLE if kind == "1g double" and media is _HOPPER else _COMPUTE[slices],
                nvml_id,
                smi_id,
            )
        )
    return Geometry(8, 7, tuple(profiles), media["7g"], "table")


def _four(
    memory_slices: int, media: Media, *rows: tuple[str, int, Media, int, int, int]
) -> Geometry:
    """A GPU with four slices; a row is a profile: name, slices, engines, most, NVML, nvidia-smi."""
    unit = memory_slices // 4
    profiles = tuple(
        Profile(
            name,
            slices,
            slices * unit,
            tuple(range(0, memory_slices, slices * unit)),
            most,
            engines,
            _COMPUTE[slices],
            nvml_id,
            smi_id,
        )
        for name, slices, engines, most, nvml_id, smi_id in rows
    )
    return Geometry(memory_slices, 4, profiles, media, "table")


_A30 = _four(
    4,
    Media(4, 0, 1, 1),
    ("4g.24gb", 4, Media(4, 0, 1, 1), 1, 3, 0),
    ("2g.12gb", 2, Media(2), 2, 1, 5),
    ("2g.12gb+me", 2, Media(2, 0, 1, 1), 1, 8, 6),
    ("1g.6gb", 1, NO_MEDIA, 4, 0, 14),
    ("1g.6gb+me", 1, Media(1, 0, 1, 1), 1, 7, 21),
)
_ALL = Media(4, 4, 4, 1)
_RTX_PRO_6000 = _four(
    12,
    _ALL,
    ("4g.96gb", 4, _ALL, 1, 3, 0),
    ("4g.96gb+gfx", 4, _ALL, 1, 12, 32),
    ("2g.48gb", 2, Media(2, 2, 2), 2, 1, 5),
    ("2g.48gb+gfx", 2, Media(2, 2, 2), 2, 11, 35),
    ("2g.48gb+me.all", 2, _ALL, 1, 16, 64),
    ("2g.48gb-me", 2, NO_MEDIA, 2, 14, 66),
    ("1g.24gb", 1, Media(1, 1, 1), 4, 0, 14),
    ("1g.24gb+me", 1, Media(1, 1, 1, 1), 1, 7, 21),
    ("1g.24gb+gfx", 1, Media(1, 1, 1), 4, 10, 47),
    ("1g.24gb+me.all", 1, _ALL, 1, 15, 65),
    ("1g.24gb-me", 1, NO_MEDIA, 4, 13, 67),
)


def _gb200() -> Geometry:
    """GB200, whose large profiles had other names in early drivers."""
    seven_slices = _seven((23, 47, 93, 186), _HOPPER)
    earlier = {"3g.93gb": "3g.95gb", "4g.93gb": "4g.95gb", "7g.186gb": "7g.189gb"}
    profiles = tuple(
        replace(profile, also=(earlier[profile.name],)) if profile.name in earlier else profile
        for profile in seven_slices.profiles
    )
    return replace(seven_slices, profiles=profiles)


MODELS: tuple[Model, ...] = (
    Model(("A30",), ("20b7",), "ampere", _A30, "guide parted mock", "460.73.01"),
    Model(
        ("A100-SXM4-40GB", "A100-PCIE-40GB", "A100 40GB", "A800 40GB"),
        ("20b0", "20b1", "20f1", "20f6"),
        "ampere",
        _seven((5, 10, 20, 40), _AMPERE),
        "guide parted mock",
        "450.80.02",
    ),
    Model(
        ("A100-SXM4-80GB", "A100 80GB PCIe", "A100 80GB", "A800-SXM4-80GB", "A800 80GB PCIe"),
        ("20b2", "20b5", "20f3", "20f5"),
        "ampere",
        _seven((10, 20, 40, 80), _AMPERE),
        "guide parted mock",
        "450.80.02",
    ),
    Model(
        ("PG506-96",), ("20b6",), "ampere", _seven((12, 24, 48, 96), _AMPERE), "parted", "450.80.02"
    ),
    Model(
        ("H100 80GB HBM3", "H100 PCIe", "H100 80GB", "H800", "H800 PCIe"),
        ("2330", "2331", "2322", "2324"),
        "hopper",
        _seven((10, 20, 40, 80), _HOPPER),
        "guide parted",
        "525.85.12",
    ),
    Model(
        ("H100 NVL", "H800 NVL", "H100 94GB"),
        ("2321", "233a"),
        "hopper",
        _seven((12, 24, 47, 94), _HOPPER),
        "guide parted",
        "525.85.12",
    ),
    Model(
        ("H100 96GB", "GH200 480GB", "GH200 96GB", "H20"),
        ("233d", "2342", "2329"),
        "hopper",
        _seven((12, 24, 48, 96), _HOPPER),
        "guide parted",
        "535.161.07",
    ),
    Model(
        ("H200", "H200 NVL", "H200 141GB"),
        ("2335", "233b"),
        "hopper",
        _seven((18, 35, 71, 141), _HOPPER),
        "guide parted gke h200",
        "550.90.07",
    ),
    Model(
        ("GH200 144G HBM3e", "GH200 144GB"),
        ("2348",),
        "hopper",
        _seven((18, 36, 72, 144), _HOPPER),
        "parted gh200",
    ),
    Model(
        ("B200",),
        ("2901",),
        "blackwell",
        _seven((23, 45, 90, 180), _HOPPER),
        "guide parted gke b200",
        "570.133.20",
    ),
    Model(
        ("GB200",),
        ("2941",),
        "blackwell",
        _gb200(),
        "guide parted gke gb200",
        "570.133.20",
        note="early drivers have other names for some profiles; NVML reports them",
    ),
    Model(
        ("B300",),
        ("3182",),
        "blackwell",
        _seven((34, 67, 135, 269), _HOPPER),
        "parted gke",
        "580.82.07",
    ),
    Model(
        ("GB300",),
        ("31c2",),
        "blackwell",
        _seven((35, 70, 139, 278), _HOPPER),
        "parted",
        "595.58.03",
    ),
    Model(
        (
            "RTX PRO 6000 Blackwell Server Edition",
            "RTX PRO 6000 Blackwell Workstation Edition",
            "RTX PRO 6000 Blackwell Max-Q Workstation Edition",
            "RTX PRO 6000 Blackwell",
            "RTX PRO 6000",
        ),
        ("2bb5", "2bb1", "2bb4"),
        "blackwell",
        _RTX_PRO_6000,
        "guide parted rtx",
        "575.51.03",
        note="workstation boards: in compute mode (DisplayModeSelector), vBIOS 98.02.55.00.00 "
        "(Max-Q: 98.02.6a.00.00) or later",
    ),
)

#: MIG-capable, but without complete public documentation.
UNKNOWN: dict[str, tuple[str, str]] = {
    "2bb3": ("RTX PRO 5000 Blackwell", "its placements are not published, its profiles changed"),
    "2c31": ("RTX PRO 4500 Blackwell", "its placements are not published"),
    "2338": ("H100 SXM 96GB", "its profiles are not published"),
    "2339": ("H100 SXM 94GB", "its profiles are not published"),
    "20b3": ("A100-SXM-64GB", "its profiles are not published"),
    "20bd": ("A800-SXM4-40GB", "its profiles are not published"),
}


@cache
def by_device_id() -> dict[str, Model]:
    """Models by PCI device id."""
    return {device: model for model in MODELS for device in model.device_ids}


def find(text: str) -> Model:
    """Find a model: ``H100 80GB HBM3``, ``NVIDIA B200``, or a PCI device id.

    Raises:
        UsageError: it is unknown or ambiguous.
    """
    plain = _plain(text)
    if model := by_device_id().get(plain.lower()):
        return model
    for device, (name, why) in UNKNOWN.items():
        if plain in (_plain(name), device.upper()):
            raise UsageError(
                f"{text}: {why}", fix="pass a layout with the profiles reported by NVML (--current)"
            )
    exact = [model for model in MODELS if plain in map(_plain, model.names)]
    begun = [m for m in MODELS if plain and any(_plain(n).startswith(plain) for n in m.names)]
    candidates = exact or begun
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise UsageError(
            f"{text} is ambiguous: {', '.join(repr(model.name) for model in candidates)} have different profiles",
            fix=f"use the name in nvidia-smi -L: --gpu '{candidates[0].name}'",
        )
    names = {_plain(name): name for name in _names()}
    near = difflib.get_close_matches(plain, names, 1, 0.6)
    raise UsageError(
        f"{text!r} is not a supported MIG-capable GPU",
        fix=f"did you mean {names[near[0]]!r}" if near else "list them with gpustate node mig show",
    )


def _names() -> Iterator[str]:
    for model in MODELS:
        yield from model.names


def _plain(name: str) -> str:
    return re.sub(r"[^A-Z0-9]", "", name.upper()).removeprefix("NVIDIA")
