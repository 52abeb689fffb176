"""The MIG profiles of a GPU and the placements of their instances.

A GPU instance occupies a run of *memory slices* at one of a few starts, and some *compute slices*, of which a GPU
may have one fewer (7 on 8). Inside it, compute instances divide its compute slices. Media engines are counted, not
placed.

The same types are used for the tables and for NVML's report, which takes precedence.

Sources:
    MIG User Guide r620, concepts; nvml.h 13.0, nvmlGpuInstanceProfileInfo_t and ..Placement_t.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Media(NamedTuple):
    """Media engines of an instance."""

    decoders: int = 0
    encoders: int = 0
    jpeg: int = 0
    ofa: int = 0

    def named(self) -> dict[str, int]:
        """Nonzero counts by the names in NVIDIA's tables."""
        words = ("NVDEC", "NVENC", "JPEG", "OFA")
        return {word: count for word, count in zip(words, self, strict=True) if count}


NO_MEDIA = Media()


class Span(NamedTuple):
    """A run of slices."""

    start: int
    size: int

    @property
    def mask(self) -> int:
        """A bit mask of the slices."""
        return ((1 << self.size) - 1) << self.start

    def __str__(self) -> str:
        last = self.start + self.size - 1
        return str(self.start) if self.size == 1 else f"{self.start}-{last}"


@dataclass(frozen=True, slots=True)
class ComputeProfile:
    """Compute instances of one size inside a GPU instance.

    Args:
        slices: number of compute slices from ``start`` on.
        starts: possible starts inside the GPU instance.
        nvml_id: NVML_COMPUTE_INSTANCE_PROFILE_*, which is also nvidia-smi's number.
    """

    slices: int
    starts: tuple[int, ...]
    nvml_id: int | None = None


@dataclass(frozen=True)
class Profile:
    """One GPU instance profile.

    Args:
        name: such as ``1g.10gb+me``.
        slices: compute slices.
        size: memory slices.
        starts: possible starts, in memory slices.
        most: maximum number of instances on one GPU.
        media: engines of an instance.
        compute: possible compute instances.
        nvml_id: NVML_GPU_INSTANCE_PROFILE_*.
        smi_id: the number for ``nvidia-smi mig -cgi``.
        also: names in other driver versions.
    """

    name: str
    slices: int
    size: int
    starts: tuple[int, ...]
    most: int
    media: Media = NO_MEDIA
    compute: tuple[ComputeProfile, ...] = ()
    nvml_id: int | None = None
    smi_id: int | None = None
    also: tuple[str, ...] = ()

    def spans(self) -> Iterator[Span]:
        """All possible placements of an instance."""
        for start in self.starts:
            yield Span(start, self.size)

    def compute_profile(self, slices: int) -> ComputeProfile | None:
        """The compute profile of a size, of two the later one, with more multiprocessors; ``None`` if there is none."""
        return {profile.slices: profile for profile in self.compute}.get(slices)


@dataclass(frozen=True)
class Geometry:
    """All profiles of one GPU.

    Args:
        memory_slices: number of memory slices.
        compute_slices: number of compute slices.
        profiles: largest first.
        media: engines of the GPU; all zero if unknown, and then not checked.
        source: of this data, for messages: a table, or the driver.
    """

    memory_slices: int
    compute_slices: int
    profiles: tuple[Profile, ...]
    media: Media = NO_MEDIA
    source: str = "NVML"

    @cached_property
    def _by_name(self) -> dict[str, Profile]:
        named = {alias: profile for profile in self.profiles for alias in profile.also}
        return named | {profile.name: profile for profile in self.profiles}

    def get(self, name: str) -> Profile | None:
        """The profile of a name, including names of earlier drivers."""
        return self._by_name.get(name)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the profiles, in their order."""
        return tuple(profile.name for profile in self.profiles)

    @cached_property
    def crowding(self) -> dict[Span, int]:
        """How many placements of all profiles a span blocks; few leave more room for others."""
        places = {span for profile in self.profiles for span in profile.spans()}
        every = [s for p in self.profiles for s in p.spans()]
        return {s: sum(bool(s.mask & n.mask) for n in every) for s in places}
