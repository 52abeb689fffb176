"""Names an inventory gives to GPUs, and the PCI device ids that stand for them.

A name covers every board of a model: an H100 may be SXM, PCIe or NVL. One id may carry two names
(A2 and A16 differ only in their subsystem).

Sources:
    NVIDIA/open-gpu-kernel-modules, README.md: list of compatible GPUs; pci.ids for the V100.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

#: Lower-case device ids by model.
MODELS: Mapping[str, tuple[str, ...]] = {
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
    "RTXPRO6000": ("2bb1", "2bb4", "2bb5"),
}

_ITEM = re.compile(
    r"(?:(?P<count>\d{1,3})\s*[xX*]\s*)?(?P<model>[A-Za-z][A-Za-z0-9 -]*)|(?P<any>\d{1,3})"
)


def parse_count(text: str | int) -> dict[str, int]:
    """Read ``8``, ``8xH100`` or ``4xA100,4xL40S`` into counts by model; ``""`` is any model.

    Raises:
        ValueError: with the accepted forms or the known models.
    """
    if isinstance(text, int):
        if text < 0:
            raise ValueError(f"{text} is no number of GPUs")
        return {"": text}
    if text.strip().lower() == "none":
        return {"": 0}
    counts: Counter[str] = Counter()
    for item in re.split(r"[,+]", text):
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            raise ValueError(
                f"{item.strip()!r} is no number of GPUs; write 8, 8xH100 or 4xA100,4xL40S"
            )
        if match["any"]:
            counts[""] += int(match["any"])
            continue
        model = re.sub(r"[ -]", "", match["model"].upper()).removeprefix("NVIDIA")
        if model not in MODELS:
            raise ValueError(
                f"{match['model']!r} is no known GPU model (one of {', '.join(MODELS)})"
            )
        counts[model] += int(match["count"] or 1)
    return dict(counts)


def name(device_id: str) -> str:
    """``H100`` for ``2330``, ``A16/A2`` where both have the id, ``10de:xxxx`` where none has."""
    return (
        "/".join(model for model, ids in MODELS.items() if device_id in ids) or f"10de:{device_id}"
    )


def describe(device_ids: Iterable[str]) -> str:
    """``8xH100``, sorted by model; ``none`` for no GPUs."""
    counts = Counter(name(device_id) for device_id in device_ids)
    return ", ".join(f"{count}x{model}" for model, count in sorted(counts.items())) or "none"


def differences(device_ids: Iterable[str], wanted: Mapping[str, int]) -> Iterator[str]:
    """Say where the GPUs that are there differ from those wanted; nothing when they do not."""
    unclaimed = Counter(device_ids)
    for model, count in wanted.items():
        if model:
            found = 0
            for device_id in MODELS[model]:
                taken = min(unclaimed[device_id], count - found)
                found += taken
                unclaimed[device_id] -= taken
            if found != count:
                yield f"{count} {model} wanted, {found} there"
    rest, others = sum(unclaimed.values()), wanted.get("", 0)
    if rest != others:
        what = "others" if set(wanted) - {""} else "GPUs"
        yield f"{others} {what} wanted, {rest} there"
