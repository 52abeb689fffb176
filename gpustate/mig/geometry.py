"""What can be made of a GPU: its profiles, and where their instances may lie.

A GPU instance takes a run of *memory slices* that begins at one of few places, and some *compute
slices*, of which a GPU may have one fewer (7 on 8). Inside it, compute instances share out its
compute slices. Media engines are counted, not placed.

The same types hold the tables and what NVML says of the GPU at hand; the latter wins wherever it is.

Sources:
    MIG User Guide r620, concepts; nvml.h 13.0, nvmlGpuInstanceProfileInfo_t and ..Placement_t.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Media(NamedTuple):
    """Engines that belong to an instance alone."""

    decoders: int = 0
    encoders: int = 0
    jpeg: int = 0
    ofa: int = 0

    def named(self) -> dict[str, int]:
        """Counts by the name NVIDIA's tables have; engines that are not there are left out."""
        words = ("NVDEC", "NVENC", "JPEG", "OFA")
        return {word: count for word, count in zip(words, self, strict=True) if count}


NO_MEDIA = Media()


class Span(NamedTuple):
    """A run of slices."""

    start: int
    size: int

    @property
    def mask(self) -> int:
        """One bit a slice."""
        return ((1 << self.size) - 1) << self.start

    def __str__(self) -> str:
        last = self.start + self.size - 1
        return str(self.start) if self.size == 1 else f"{self.start}-{last}"


@dataclass(frozen=True, slots=True)
class ComputeProfile:
    """Compute instances of one size inside a GPU instance.

    Args:
        slices: compute slices, also how many it takes from ``start`` on.
        starts: where they may begin, counted inside the GPU instance.
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
        starts: memory slices at which an instance may begin.
        most: instances of it on one GPU at a time.
        media: engines an instance owns.
        compute: compute instances it can hold.
        nvml_id: NVML_GPU_INSTANCE_PROFILE_*.
        smi_id: the number ``nvidia-smi mig -cgi`` takes.
        also: names that other drivers give it.
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
        """Every place an instance may have."""
        for start in self.starts:
            yield Span(start, self.size)

    def compute_profile(self, slices: int) -> ComputeProfile | None:
        """The compute profile of a size; ``None`` where there is none."""
        return next((one for one in self.compute if one.slices == slices), None)


@dataclass(frozen=True)
class Geometry:
    """All profiles of one GPU.

    Args:
        memory_slices: how many there are to lie on.
        compute_slices: how many there are to share out.
        profiles: largest first.
        media: engines of the whole GPU; all zero where they are not known, and then not counted.
        source: where this is from, for people: a table, or the driver.
    """

    memory_slices: int
    compute_slices: int
    profiles: tuple[Profile, ...]
    media: Media = NO_MEDIA
    source: str = "NVML"

    @cached_property
    def _by_name(self) -> dict[str, Profile]:
        named = {other: profile for profile in self.profiles for other in profile.also}
        return named | {profile.name: profile for profile in self.profiles}

    def get(self, name: str) -> Profile | None:
        """The profile of a name, also of one that an earlier driver gave it."""
        return self._by_name.get(name)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the profiles, in their order."""
        return tuple(profile.name for profile in self.profiles)

    @cached_property
    def crowding(self) -> dict[Span, int]:
        """How many places of any profile a span removes; few is good for what comes later."""
        places = {span for profile in self.profiles for span in profile.spans()}
        every = [span for profile in self.profiles for span in profile.spans()]
        return {one: sum(bool(one.mask & other.mask) for other in every) for one in places}
