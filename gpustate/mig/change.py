"""The smallest change from a GPU's instances to the desired ones.

Priorities, in this order: keep MIG devices in use, keep devices with unknown use, keep GPU instances, keep compute
instances, create few GPU instances. All choices are tried, best first, and the first one that can be completed is
used, so no other plan keeps more. Ties are resolved by instance numbers, so results are deterministic.

GPU instances cannot be moved. New ones get an explicit placement in the plan, so that nothing depends on the order
of creation. A desired compute instance may be in any GPU instance of its profile, as in mig-parted.

Sources:
    NVIDIA/mig-parted#3: keep what is in use (never merged); pkg/mig/config/config.go: how devices of
    one profile share GPU instances there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby, product

from gpustate.mig.fit import pack, place
from gpustate.mig.geometry import Geometry, Profile, Span
from gpustate.mig.layout import ComputeInstance, GpuInstance
from gpustate.mig.refute import by_profile


@dataclass(frozen=True, slots=True)
class KeptInstance:
    """A GPU instance that stays.

    Args:
        instance: the current instance.
        compute: its compute instances that stay.
        created: compute instances to create in it.
    """

    instance: GpuInstance
    compute: tuple[ComputeInstance, ...]
    created: tuple[Span, ...] = ()

    @property
    def destroyed(self) -> tuple[ComputeInstance, ...]:
        """Its compute instances to destroy."""
        return tuple(i for i in self.instance.compute if i not in self.compute)


@dataclass(frozen=True, slots=True)
class Created:
    """A new GPU instance, its placement, and the compute instances to create in it."""

    profile: str
    span: Span
    compute: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """Kept, destroyed and created instances on one GPU; falsy without changes."""

    preserved: tuple[KeptInstance, ...] = ()
    destroyed: tuple[GpuInstance, ...] = ()
    created: tuple[Created, ...] = ()

    def __bool__(self) -> bool:
        touched = any(instance.destroyed or instance.created for instance in self.preserved)
        return bool(self.destroyed or self.created or touched)


def plan(
    geometry: Geometry, instances: Sequence[GpuInstance], desired: Mapping[str, int]
) -> Change | None:
    """Find the smallest change.

    Args:
        geometry: the GPU's profiles.
        instances: current instances with valid profiles and placements.
        desired: number of devices by name; all names must be valid for the GPU.

    Returns:
        ``None`` if the devices do not fit on this GPU.
    """
    ordered = sorted(instances, key=lambda instance: (instance.start, instance.id))
    finder = _Finder(geometry, ordered, by_profile(geometry, desired))
    return finder.best()


#: For each GPU instance: ``None`` to destroy it, else its compute instances that stay.
_Choice = tuple[tuple[int, ...] | None, ...]


class _Finder:
    def __init__(
        self,
        geometry: Geometry,
        instances: Sequence[GpuInstance],
        desired: Mapping[Profile, Mapping[int, int]],
    ) -> None:
        self.geometry = geometry
        self.instances = instances
        self.wanted = {profile.name: Counter(sizes) for profile, sizes in desired.items()}
        self.profiles = {profile.name: profile for profile in desired}
        profiles = (geometry.get(instance.profile) for instance in instances)
        self.names = [profile.name if profile else "" for profile in profiles]

    def best(self) -> Change | None:
        ranked = sorted(
            ((self.worth(choice), choice) for choice in self.choices()),
            key=lambda ranking: ranking[0],
            reverse=True,
        )
        for _, equals in groupby(ranked, key=lambda ranking: ranking[0]):
            completed = [change for _, c in equals if (change := self.complete(c)) is not None]
            if completed:
                return min(completed, key=lambda change: len(change.created))
        return None

    def choices(self) -> Iterator[_Choice]:
        """All choices that keep no more than desired, low numbers first."""
        options = [list(self.options(number)) for number in range(len(self.instances))]
        for choice in product(*options):
            if self.within(choice):
                yield choice

    def options(self, number: int) -> Iterator[tuple[int, ...] | None]:
        """The options for one GPU instance."""
        profile = self.profiles.get(self.names[number])
        if profile is not None:
            compute = self.instances[number].compute
            # Otherwise it would lose and regain the same compute instance.
            full_size = any(instance.slices == profile.slices for instance in compute)
            least = 1 if full_size and set(self.wanted[profile.name]) == {profile.slices} else 0
            for count in range(len(compute), least - 1, -1):
                yield from combinations(range(len(compute)), count)
        yield None

    def within(self, choice: _Choice) -> bool:
        remaining = {name: Counter(sizes) for name, sizes in self.wanted.items()}
        for number, indexes in enumerate(choice):
            for index in indexes or ():
                slices = self.instances[number].compute[index].slices
                remaining[self.names[number]][slices] -= 1
                if remaining[self.names[number]][slices] < 0:
                    return False
        return True

    def worth(self, choice: _Choice) -> tuple[int, int, int, int]:
        busy = unseen = instance_count = pieces = 0
        for number, indexes in enumerate(choice):
            if indexes is None:
                continue
            instance = self.instances[number]
            users = [instance.users, *(instance.compute[index].users for index in indexes)]
            busy += sum(bool(user) for user in users)
            unseen += sum(user is None for user in users)
            instance_count += 1
            pieces += len(indexes)
        return busy, unseen, instance_count, pieces

    def complete(self, choice: _Choice) -> Change | None:
        """Complete a change, if the kept instances leave room for the desired ones."""
        preserved: list[KeptInstance] = []
        new: dict[str, list[list[Span]]] = {}
        for name, profile in self.profiles.items():
            numbers = [
                n for n, keep in enumerate(choice) if keep is not None and self.names[n] == name
            ]
            stay = [self.staying(number, choice[number] or ()) for number in numbers]
            remaining = self.wanted[name].copy()
            remaining.subtract(piece.slices for pieces in stay for piece in pieces)
            bins = [tuple(piece.span for piece in pieces) for pieces in stay]
            shared = pack(profile, bins, remaining, profile.most - len(numbers))
            if shared is None:
                return None
            for number, pieces, added in zip(numbers, stay, shared, strict=False):
                preserved.append(KeptInstance(self.instances[number], pieces, tuple(sorted(added))))
            new[name] = shared[len(numbers) :]
        spans = [(self.name_of(instance), self.span_of(instance)) for instance in preserved]
        laid = place(self.geometry, {n: len(i) for n, i in new.items()}, spans)
        if laid is None:
            return None
        created = [Created(n, s, tuple(sorted(new[n].pop(0)))) for n, s in laid]
        destroyed = [i for i, keep in zip(self.instances, choice, strict=True) if keep is None]
        return Change(
            tuple(sorted(preserved, key=lambda stay: stay.instance.start)),
            tuple(destroyed),
            tuple(sorted(created, key=lambda create: create.span)),
        )

    def staying(self, number: int, indexes: tuple[int, ...]) -> tuple[ComputeInstance, ...]:
        return tuple(self.instances[number].compute[index] for index in indexes)

    def name_of(self, preserved: KeptInstance) -> str:
        profile = self.geometry.get(preserved.instance.profile)
        return profile.name if profile else preserved.instance.profile

    def span_of(self, preserved: KeptInstance) -> Span:
        profile = self.geometry.get(preserved.instance.profile)
        return Span(preserved.instance.start, profile.size if profile else 1)
