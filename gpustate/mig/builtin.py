"""mig-parted's built-in configurations, generated from the tables; and writing of files.

``all-<profile>`` is the maximum number of instances of one profile, with a dot instead of the plus in its name.
``all-balanced`` is 2 x 1g, 1 x 2g and, with seven slices, 1 x 3g. ``all-enabled`` and ``all-disabled`` set only the
mode. If a name differs between GPU models, each entry filters its models. A profile that is the same on all models
has no filter, so that a GPU without it is refused and not skipped.

Sources:
    NVIDIA/mig-parted v0.15, deployments/systemd/config-default.yaml, pkg/mig/builder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from gpustate.mig.config import Config, ConfigFile, Entry, read
from gpustate.mig.geometry import Geometry, Profile
from gpustate.mig.layout import GpuLayout, Layout
from gpustate.mig.names import DeviceFilter
from gpustate.mig.tables import MODELS, Model

PATH = "built-in configurations"
_BALANCED = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}


@lru_cache(maxsize=32)
def file_of(text: str | None, path: str = "") -> ConfigFile:
    """The configurations of a file, or without a text the built-in ones; kept, for many nodes have the same.

    Raises:
        PolicyError: with the line.
    """
    return config_file() if text is None else read(text, path)


def config_file(models: Sequence[Model] = MODELS) -> ConfigFile:
    """The built-in configurations of some GPU models; by default of all."""
    configs = {
        "all-disabled": Config("all-disabled", (Entry(False, {}, place=PATH),), PATH),
        "all-enabled": Config("all-enabled", (Entry(True, {}, place=PATH),), PATH),
    }
    by_profile: dict[str, dict[int, list[Model]]] = {}
    for model in models:
        for profile in model.geometry.profiles:
            for name in (profile.name, *profile.also):
                counts = by_profile.setdefault(name, {})
                counts.setdefault(profile.most, []).append(model)
    for profile_name, counts in by_profile.items():
        name = f"all-{profile_name.replace('+', '.')}"
        entries = [
            Entry(True, {profile_name: most}, None, _ids(users) if len(counts) > 1 else (), PATH)
            for most, users in sorted(counts.items(), reverse=True)
        ]
        configs[name] = Config(name, tuple(entries), PATH)
    balanced = tuple(
        Entry(True, devices, None, _ids([model]) if len(models) > 1 else (), PATH)
        for model in models
        if (devices := balance(model.geometry))
    )
    configs["all-balanced"] = Config("all-balanced", balanced, PATH)
    return ConfigFile(PATH, dict(sorted(configs.items())))


def balance(geometry: Geometry) -> dict[str, int]:
    """``all-balanced`` on a GPU; empty if upstream has no formula."""
    formula = _BALANCED.get(geometry.compute_slices, {})
    counts_by_profile: dict[str, int] = {}
    for slices, count in formula.items():
        plain = [p for p in geometry.profiles if p.slices == slices and _is_plain(p)]
        if not plain:
            return {}
        # Of 1g and 1g with double memory, the one with the higher maximum.
        counts_by_profile[max(plain, key=lambda profile: profile.most).name] = count
    return counts_by_profile


def _is_plain(profile: Profile) -> bool:
    return "+" not in profile.name and "-" not in profile.name


def _ids(models: Iterable[Model]) -> tuple[DeviceFilter, ...]:
    return tuple(DeviceFilter(device) for model in models for device in model.device_ids)


def export(layout: Layout, name: str) -> Config:
    """Convert a layout into a configuration, with equal entries merged."""
    groups: list[tuple[bool, dict[str, int], list[GpuLayout]]] = []
    for gpu in layout.gpus:
        enabled_and_counts = bool(gpu.enabled), gpu.counts()
        group = next((g for g in groups if g[:2] == enabled_and_counts), None)
        if group is None:
            groups.append((*enabled_and_counts, [gpu]))
        else:
            group[2].append(gpu)
    entries = [
        Entry(on, devices, None if len(groups) == 1 else tuple(gpu.index for gpu in gpus))
        for on, devices, gpus in groups
    ]
    return Config(name, tuple(entries))


def as_yaml(configs: Iterable[Config]) -> str:
    """Write a mig-parted file."""
    return "\n".join(["version: v1", "mig-configs:", *_lines(configs)]) + "\n"


def _lines(configs: Iterable[Config]) -> Iterator[str]:
    for config in configs:
        yield f"  {json.dumps(config.name)}:"
        for entry in config.entries:
            indices = "all" if entry.indices is None else f"[{', '.join(map(str, entry.indices))}]"
            if entry.filters:
                filters = ", ".join(f'"{device_filter}"' for device_filter in entry.filters)
                yield f"    - device-filter: [{filters}]"
                yield f"      devices: {indices}"
            else:
                yield f"    - devices: {indices}"
            yield f"      mig-enabled: {str(entry.enabled).lower()}"
            if entry.enabled:
                yield "      mig-devices:" + ("" if entry.devices else " {}")
                for name, count in entry.devices.items():
                    yield f'        "{name}": {count}'
