"""GPU models in an inventory and their PCI device ids.

A model covers all its boards: an H100 may be SXM, PCIe or NVL. One id may have two models (A2 and A16 differ
only in their subsystem).

Sources:
    NVIDIA/open-gpu-kernel-modules, README.md: list of compatible GPUs; pci.ids for those before Turing.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

#: Lower-case device ids by model.
MODELS: Mapping[str, tuple[str, ...]] = {
    "K80": ("102d",),
    "M60": ("13f2",),
    "P40": ("1b38",),
    "P100": ("15f8", "15f9"),
    "T4": ("1eb8",),
    "V100": ("1db1", "1db4", "1db5", "1db6"),
    "A100": ("20b0", "20b2", "20b3", "20b5", "20f1"),
    "A800": ("20bd", "20f3", "20f5", "20f6"),
    "A30": ("20b7",),
    "A40": ("2235",),
    "A10": ("2236",),
    "A10G": ("2237",),
    "A16": ("25b6",),
    "A2": ("25b6",),
    "A6000": ("2230",),
    "L2": ("27b6",),
    "L4": ("27b8",),
    "L20": ("26ba",),
    "L40": ("26b5",),
    "L40S": ("26b9",),
    "RTX6000ADA": ("26b1",),
    "H100": ("2321", "2330", "2331", "2339"),
    "H800": ("2322", "2324", "233a"),
    "H20": ("230e", "2329", "232c"),
    "H200": ("2335", "233b"),
    "GH200": ("2342", "2348"),
    "B200": ("2901",),
    "B300": ("3182",),
    "GB10": ("2e12",),
    "GB200": ("2941",),
    "GB300": ("31c2",),
    "RTXPRO4500": ("2c31", "2c3a"),
    "RTXPRO5000": ("2bb3",),
    "RTXPRO6000": ("2bb1", "2bb4", "2bb5"),
    "RTXPRO6000D": ("2bb2", "2bb9", "2bbc"),
    # GeForce and TITAN; a SUPER counts as the model it is named after.
    "GTX1650": ("1f0a", "1f82", "1f91", "1f96", "1f99", "1f9d", "1fdd", "2187", "2188"),
    "GTX1660": ("2184", "21c4"),
    "GTX1660TI": ("2182", "2191", "21d1"),
    "RTX2060": (
        *("1e89", "1f03", "1f06", "1f08", "1f11", "1f12"),
        *("1f15", "1f42", "1f47", "1f51", "1f55"),
    ),
    "RTX2070": (
        *("1e84", "1e91", "1ec2", "1ec7", "1ed1", "1f02"),
        *("1f07", "1f10", "1f14", "1f50", "1f54"),
    ),
    "RTX2080": ("1e81", "1e82", "1e87", "1e90", "1e93", "1ed0", "1ed3"),
    "RTX2080TI": ("1e04", "1e07"),
    "RTX3050": ("2507", "2508", "2582", "2584"),
    "RTX3060": ("2487", "24c7", "2503", "2504", "2544"),
    "RTX3060TI": ("2414", "2486", "2489", "24c9"),
    "RTX3070": ("2484", "2488"),
    "RTX3070TI": ("2207", "2482"),
    "RTX3080": ("2206", "220a", "2216"),
    "RTX3080TI": ("2208",),
    "RTX3090": ("2204",),
    "RTX3090TI": ("2203",),
    "RTX4060": ("2808", "2882"),
    "RTX4060TI": ("2788", "2803", "2805"),
    "RTX4070": ("2709", "2783", "2786"),
    "RTX4070TI": ("2689", "2705", "2782"),
    "RTX4080": ("2702", "2704"),
    "RTX4090": ("2684",),
    "RTX4090D": ("2685",),
    "RTX5050": ("2d83",),
    "RTX5060": ("2d05",),
    "RTX5060TI": ("2d04",),
    "RTX5070": ("2f04",),
    "RTX5070TI": ("2c05",),
    "RTX5080": ("2c02",),
    "RTX5090": ("2b85",),
    "RTX5090D": ("2b87", "2b8c"),
    "TITANRTX": ("1e02",),
}

_ITEM = re.compile(
    r"(?:(?P<count>\d{1,3})\s*[xX*]\s*)?(?P<model>[A-Za-z][A-Za-z0-9 -]*)|(?P<any>\d{1,3})"
)


#: What a product's name says beside its model: vendor, brand, form factor, memory.
_ASIDE = re.compile(
    r"NVIDIA|TESLA|QUADRO|GEFORCE|BLACKWELL|GENERATION|SERVER|WORKSTATION|EDITION|ACTIVE|MAX|Q|SFF|3E|"
    r"NVL|PCIE|SXM[2-6]?|[0-9]+GB|HBM[0-9A-Z]*"
)


def plain(text: str, models: Collection[str]) -> str:
    """The model in a name as NVML has it: ``A100`` for ``NVIDIA A100-SXM4-80GB``, ``RTX6000ADA``; it need not be known.

    Args:
        text: a product or model.
        models: models; the suffix SUPER is dropped where none has it.
    """
    words = re.split(r"[ _-]+", text.strip().upper())
    model = "".join(word for word in words if not _ASIDE.fullmatch(word))
    model = re.sub(r"^RTX(?=A[0-9])|^(NVIDIA|TESLA|QUADRO|GEFORCE)|(SXM[2-6]?|PCIE)$", "", model)
    return model if model in models else model.removesuffix("SUPER")


def parse_count(text: str | int) -> dict[str, int]:
    """Read ``8``, ``8xH100`` or ``4xA100,4xL40S`` into counts by model; ``""`` is any model.

    Raises:
        ValueError: with the accepted forms or the known models.
    """
    if isinstance(text, int):
        if text < 0:
            raise ValueError(f"{text} is not a number of GPUs")
        return {"": text}
    if text.strip().lower() == "none":
        return {"": 0}
    counts: Counter[str] = Counter()
    for item in re.split(r"[,+]", text):
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            raise ValueError(
                f"{item.strip()!r} is not a number of GPUs; write 8, 8xH100 or 4xA100,4xL40S"
            )
        if match["any"]:
            counts[""] += int(match["any"])
            continue
        model = plain(match["model"], MODELS)
        if model not in MODELS:
            near = ", ".join(difflib.get_close_matches(model, MODELS, 3, 0.4)) or "H100, A100, L40S"
            raise ValueError(
                f"unknown GPU model {match['model']!r} (supported models include {near})"
            )
        counts[model] += int(match["count"] or 1)
    return dict(counts)


def name(device_id: str) -> str:
    """``H100`` for ``2330``, ``A16/A2`` for two models with the same id, ``10de:xxxx`` for an unknown id."""
    return (
        "/".join(model for model, ids in MODELS.items() if device_id in ids) or f"10de:{device_id}"
    )


def describe(device_ids: Iterable[str]) -> str:
    """``8xH100``, sorted by model; ``none`` for no GPUs."""
    counts = Counter(name(device_id) for device_id in device_ids)
    return ", ".join(f"{count}x{model}" for model, count in sorted(counts.items())) or "none"


def differences(device_ids: Iterable[str], expected: Mapping[str, int]) -> Iterator[str]:
    """Yield the differences between the GPUs found and those wanted."""
    unclaimed = Counter(device_ids)
    for model, count in expected.items():
        if model:
            model_count = 0
            for device_id in MODELS[model]:
                claimed = min(unclaimed[device_id], count - model_count)
                model_count += claimed
                unclaimed[device_id] -= claimed
            if model_count != count:
                yield f"{count} {model} wanted, {model_count} there"
    unclaimed_count, expected_others = sum(unclaimed.values()), expected.get("", 0)
    if unclaimed_count != expected_others:
        noun = "others" if set(expected) - {""} else "GPUs"
        yield f"{expected_others} {noun} wanted, {unclaimed_count} there"
