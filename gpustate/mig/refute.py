"""Explain why devices do not fit on a GPU.

First the countable reasons: unknown profiles, too many instances of one, too few compute slices, engines or memory
slices. Otherwise placements conflict. Then instances are dropped as long as the rest still does not fit. All
remaining ones are needed for the conflict, and every arrangement of them leaves no placement for the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpustate.mig.fit import pack, place, shortage
from gpustate.mig.geometry import Geometry, Profile, Span
from gpustate.mig.names import device_name, parse_device_name, profile_slices

#: The number of arrangements to list.
LISTED = 3


def unknown(geometry: Geometry, names: Mapping[str, int]) -> str | None:
    """Report a device that the GPU does not support, with alternatives; ``None`` if there is none."""
    for name in names:
        device = parse_device_name(name)
        profile = geometry.get(device.profile)
        if profile is None:
            begins = f"{profile_slices(device.profile)}g."
            alike = [n for n in geometry.names if n.startswith(begins)] or geometry.names
            return f"{name} is not a profile of this GPU, it has {', '.join(alike)}"
        if profile.compute_profile(device.slices) is None:
            sizes = ", ".join(device_name(p.slices, profile.name) for p in profile.compute)
            return f"{name} is not a compute instance of {profile.name}; it has {sizes}"
    return None


def fewest(geometry: Geometry, names: Mapping[str, int]) -> dict[str, int] | str:
    """The minimum number of GPU instances by profile, or why the devices do not fit."""
    needed: dict[str, int] = {}
    for profile, pieces in by_profile(geometry, names).items():
        packed = pack(profile, (), pieces, sum(pieces.values()))
        if packed is None:  # every piece fits into an empty GPU instance
            return f"{profile.name}: its compute instances do not fit"
        needed[profile.name] = len(packed)
    return needed


def by_profile(geometry: Geometry, names: Mapping[str, int]) -> dict[Profile, dict[int, int]]:
    """Number of desired compute instances by GPU instance profile and size."""
    sizes_by_profile: dict[Profile, dict[int, int]] = {}
    for name, count in names.items():
        device = parse_device_name(name)
        profile = geometry.get(device.profile)
        if profile is not None and count:
            sizes = sizes_by_profile.setdefault(profile, {})
            sizes[device.slices] = sizes.get(device.slices, 0) + count
    return sizes_by_profile


def why_not(geometry: Geometry, names: Mapping[str, int]) -> list[str]:
    """Return why devices do not fit on one GPU; empty if they do.

    Args:
        geometry: the GPU's profiles.
        names: number of devices by name, in the form of :func:`gpustate.mig.names.parse_device_name`.
    """
    if problem := unknown(geometry, names):
        return [problem]
    needed = fewest(geometry, names)
    if isinstance(needed, str):
        return [needed]
    if problem := shortage(geometry, needed):
        return [problem]
    if place(geometry, needed) is not None:
        return []
    return list(_conflict(geometry, needed))


def _conflict(geometry: Geometry, needed: Mapping[str, int]) -> Iterator[str]:
    core = {name: count for name, count in needed.items() if count}
    for name in sorted(core, key=lambda name: (profile_slices(name), name)):
        while core[name] and place(geometry, {**core, name: core[name] - 1}) is None:
            core[name] -= 1
    core = {name: count for name, count in core.items() if count}
    profiles = [p for p in geometry.profiles if p.name in core]
    combination = " + ".join(f"{core[p.name]} x {p.name}" for p in profiles)
    yield f"{combination} do not fit together in any arrangement"
    last = min(profiles, key=lambda p: (p.size, -len(p.starts)))
    without_smallest = {**core, last.name: core[last.name] - 1}
    ways = sorted(set(_arrangements(geometry, without_smallest)))
    for way in ways[:LISTED]:
        laid = ", ".join(f"{name} at {span}" for name, span in way)
        yield f"with {laid}: no room for {_places(last)}"
    if len(ways) > LISTED:
        yield f"the same holds for the {len(ways) - LISTED} other arrangements"


def _arrangements(
    geometry: Geometry, counts: Mapping[str, int]
) -> Iterator[tuple[tuple[str, Span], ...]]:
    """All arrangements of instances, each at least once."""
    items = [p for p in geometry.profiles for _ in range(counts.get(p.name, 0))]

    def go(
        number: int, occupied: int, laid: tuple[tuple[str, Span], ...]
    ) -> Iterator[tuple[tuple[str, Span], ...]]:
        if number == len(items):
            yield tuple(sorted(laid, key=lambda named_span: named_span[1]))
            return
        profile = items[number]
        after = laid[-1][1].start if laid and laid[-1][0] == profile.name else -1
        for span in profile.spans():
            if span.start > after and not occupied & span.mask:
                yield from go(number + 1, occupied | span.mask, (*laid, (profile.name, span)))

    return go(0, 0, ())


def _places(profile: Profile) -> str:
    if len(profile.starts) == 1:
        return f"{profile.name}, whose only placement is {Span(profile.starts[0], profile.size)}"
    spans = ", ".join(str(span) for span in profile.spans())
    return f"{profile.name}, whose placements are {spans}"
