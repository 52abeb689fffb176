"""Find placements for GPU instances next to existing ones, and for compute instances inside.

The search is exact: it tries all arrangements, except equivalent ones (another order of instances of one profile,
an occupation seen before). A GPU has at most a dozen slices, so it takes microseconds to a few milliseconds. It
returns the first arrangement, and tries placements that block the fewest others first: 1g goes to the slice that
no 2g can use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from gpustate.mig.geometry import ComputeProfile, Geometry, Media, Profile, Span

#: Compute instances of one GPU instance, as sizes and starts.
Pieces = tuple[Span, ...]


def shortage(geometry: Geometry, counts: Mapping[str, int]) -> str | None:
    """The resource that is insufficient for some instances, regardless of placement; ``None`` if none is."""
    requested = [(_profile(geometry, name), count) for name, count in counts.items() if count]
    for profile, count in requested:
        if count > profile.most:
            return f"{count} x {profile.name} requested, but a GPU has at most {profile.most}"
    available = {"compute slices": geometry.compute_slices, "memory slices": geometry.memory_slices}
    demands = {
        "compute slices": [(profile.slices, profile, count) for profile, count in requested],
        "memory slices": [(profile.size, profile, count) for profile, count in requested],
    }
    if any(geometry.media):
        for number, word in enumerate(Media(1, 1, 1, 1).named()):
            available[f"{word} engines"] = geometry.media[number]
            demands[f"{word} engines"] = [(p.media[number], p, count) for p, count in requested]
    for resource, most in available.items():
        total = sum(each * count for each, _, count in demands[resource])
        if total > most:
            parts = [f"{p.name}: {count} x {each}" for each, p, count in demands[resource] if each]
            return f"{total} {resource} requested, but the GPU has {most} ({', '.join(parts)})"
    return None


def place(
    geometry: Geometry, desired: Mapping[str, int], preserved: Sequence[tuple[str, Span]] = ()
) -> list[tuple[str, Span]] | None:
    """Find places for new GPU instances.

    Args:
        geometry: the GPU's profiles.
        desired: number of new instances by profile.
        preserved: existing instances that stay.

    Returns:
        Profile and placement of each new instance, largest first; ``None`` if they do not fit.
    """
    total = {name: count for name, count in desired.items() if count}
    for name, _ in preserved:
        total[name] = total.get(name, 0) + 1
    if shortage(geometry, total) is not None:
        return None
    profiles = sorted(
        (_profile(geometry, name) for name, count in desired.items() if count),
        key=lambda profile: (-profile.size, len(profile.starts), profile.name),
    )
    items = [profile for profile in profiles for _ in range(desired[profile.name])]
    occupied = 0
    for _, span in preserved:
        occupied |= span.mask
    spans = _search(geometry, items, occupied)
    return None if spans is None else [(p.name, s) for p, s in zip(items, spans, strict=True)]


def _search(geometry: Geometry, items: Sequence[Profile], occupied: int) -> list[Span] | None:
    """Places of ``items`` in order; equal neighbours take their spans in one order only."""
    order = {
        profile.name: sorted(profile.spans(), key=lambda span: (geometry.crowding[span], span))
        for profile in items
    }
    same = [False, *(a.name == b.name for a, b in pairwise(items))]
    dead: set[tuple[int, int, int]] = set()

    def go(number: int, occupied_mask: int, first: int) -> list[Span] | None:
        if number == len(items):
            return []
        begin = first if same[number] else 0
        if (number, occupied_mask, begin) in dead:
            return None
        spans = order[items[number].name]
        for choice in range(begin, len(spans)):
            if occupied_mask & spans[choice].mask:
                continue
            following = go(number + 1, occupied_mask | spans[choice].mask, choice + 1)
            if following is not None:
                return [spans[choice], *following]
        dead.add((number, occupied_mask, begin))
        return None

    return go(0, occupied, 0)


def pack(
    profile: Profile, bins: Sequence[Pieces], desired: Mapping[int, int], most_new: int
) -> list[list[Span]] | None:
    """Distribute compute instances over GPU instances of one profile, with the fewest new ones.

    Args:
        profile: of the GPU instances.
        bins: for each kept GPU instance, its kept compute instances.
        desired: number of additional compute instances by size.
        most_new: maximum number of new GPU instances.

    Returns:
        The compute instances to create in each GPU instance, first in kept ones, then in new ones; each has at
        least one in the end. ``None`` if they do not fit.
    """
    kinds: list[ComputeProfile] = []
    for slices in sorted(desired, reverse=True):
        kind = profile.compute_profile(slices)
        if kind is None and desired[slices]:
            return None
        kinds += [kind] * desired[slices] if kind is not None else []
    for new in range(min(most_new, len(kinds)) + 1):
        masks = [_mask(pieces) for pieces in bins] + [0] * new
        created: list[list[Span]] = [[] for _ in masks]
        if _share(kinds, masks, created, 0):
            return created
    return None


def _share(
    kinds: Sequence[ComputeProfile], masks: list[int], created: list[list[Span]], number: int
) -> bool:
    hungry = sum(mask == 0 for mask in masks)
    if number == len(kinds):
        return hungry == 0
    if hungry > len(kinds) - number:
        return False
    tried: set[int] = set()
    for where, mask in enumerate(masks):
        if mask in tried:
            continue  # equal GPU instances are equivalent
        tried.add(mask)
        for start in kinds[number].starts:
            span = Span(start, kinds[number].slices)
            if mask & span.mask:
                continue
            masks[where] = mask | span.mask
            created[where].append(span)
            if _share(kinds, masks, created, number + 1):
                return True
            created[where].pop()
            masks[where] = mask
    return False


def _mask(pieces: Pieces) -> int:
    mask = 0
    for span in pieces:
        mask |= span.mask
    return mask


def _profile(geometry: Geometry, name: str) -> Profile:
    profile = geometry.get(name)
    if profile is None:
        raise KeyError(name)
    return profile
