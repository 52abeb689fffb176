"""What a MIG planner is held against: every final state there is, and a GPU that carries out steps.

Written without the planner's own search: plain enumeration of all ways to lay all wanted instances,
and a simulation that refuses whatever a driver would refuse.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpustate.mig.geometry import Geometry, Profile
from gpustate.mig.layout import ComputeInstance, GpuInstance
from gpustate.mig.names import device_name, parse_device_name

Place = tuple[str, int]  # profile, first memory slice
Piece = tuple[int, int]  # first compute slice, how many
Final = dict[Place, frozenset[Piece]]
Worth = tuple[int, int, int, int, int]


def legal(geometry: Geometry, places: Sequence[Place]) -> bool:
    """Whether GPU instances may lie side by side, counted out slice by slice."""
    slices: list[int] = []
    compute = 0
    engines = [0, 0, 0, 0]
    for name, start in places:
        profile = _profile(geometry, name)
        slices += range(start, start + profile.size)
        compute += profile.slices
        engines = [a + b for a, b in zip(engines, profile.media, strict=True)]
    counts = Counter(name for name, _ in places)
    return (
        len(slices) == len(set(slices))
        and compute <= geometry.compute_slices
        and all(a <= b for a, b in zip(engines, geometry.media, strict=True))
        and all(count <= _profile(geometry, name).most for name, count in counts.items())
    )


def arrangements(geometry: Geometry, counts: Mapping[str, int]) -> set[frozenset[Place]]:
    """Every way to lay so many GPU instances of each profile."""
    items = [name for name, count in counts.items() for _ in range(count)]
    found: set[frozenset[Place]] = {frozenset()}
    for name in items:
        found = {
            laid | {(name, start)}
            for laid in found
            for start in _profile(geometry, name).starts
            if (name, start) not in laid and legal(geometry, [*laid, (name, start)])
        }
    return found


def finals(geometry: Geometry, wanted: Mapping[str, int]) -> Iterator[Final]:
    """Every final state that has the wanted devices and no others."""
    sizes: dict[str, list[int]] = {}
    for text, count in wanted.items():
        name = parse_device_name(text)
        sizes.setdefault(name.profile, []).extend([name.slices] * count)
    names = list(sizes)
    ranges = [range(1, min(_profile(geometry, n).most, len(sizes[n])) + 1) for n in names]

    def numbers(index: int) -> Iterator[dict[str, int]]:
        if index == len(names):
            yield {}
            return
        for count in ranges[index]:
            for rest in numbers(index + 1):
                yield {names[index]: count, **rest}

    for counts in numbers(0):
        for laid in arrangements(geometry, counts):
            yield from _filled(geometry, sorted(laid), sizes)


def _filled(geometry: Geometry, laid: list[Place], sizes: dict[str, list[int]]) -> Iterator[Final]:
    states: set[frozenset[tuple[Place, Piece]]] = {frozenset()}
    for name, pieces in sizes.items():
        kinds = {kind.slices: kind.starts for kind in _profile(geometry, name).compute}
        for slices in pieces:
            states = {
                state | {(place, (start, slices))}
                for state in states
                for place in laid
                if place[0] == name
                for start in kinds.get(slices, ())
                if not any(
                    other == place and max(a, start) < min(a + n, start + slices)
                    for other, (a, n) in state
                )
            }
    for state in states:
        final = {place: frozenset(p for at, p in state if at == place) for place in laid}
        if all(final.values()):
            yield final


def worth(final: Final, instances: Sequence[GpuInstance]) -> Worth:
    """What of the present a final state keeps: in use, not looked at, instances, pieces, few new."""
    busy = unseen = whole = pieces = 0
    for one in instances:
        there = final.get((one.profile, one.start))
        if there is None:
            continue
        stay = [piece for piece in one.compute if (piece.start, piece.slices) in there]
        users = [one.users, *(piece.users for piece in stay)]
        busy += sum(bool(user) for user in users)
        unseen += sum(user is None for user in users)
        whole += 1
        pieces += len(stay)
    return busy, unseen, whole, pieces, whole - len(final)


def best(
    geometry: Geometry, instances: Sequence[GpuInstance], wanted: Mapping[str, int]
) -> Worth | None:
    """The most that any way to what is wanted keeps; ``None`` when there is no way."""
    return max((worth(one, instances) for one in finals(geometry, wanted)), default=None)


class SimulatedGpu:
    """Carries out steps as a driver would, and refuses as one."""

    def __init__(self, geometry: Geometry, instances: Sequence[GpuInstance], enabled: bool) -> None:
        self.geometry = geometry
        self.enabled = enabled
        self.whole: dict[int, Place] = {one.id: (one.profile, one.start) for one in instances}
        self.pieces = {(g.id, c.id): (c.start, c.slices) for g in instances for c in g.compute}
        self.destroyed: list[int] = []

    def carry_out(self, step: Mapping[str, Any]) -> None:
        """Do one step of a plan's JSON."""
        getattr(self, step["do"].replace("-", "_"))(step)

    def set_mode(self, step: Mapping[str, Any]) -> None:
        assert not self.whole, "instances are lost with the mode"
        self.enabled = step["enabled"]

    def reset(self, step: Mapping[str, Any]) -> None:
        assert not self.whole, "a reset takes instances"

    def destroy_compute_instance(self, step: Mapping[str, Any]) -> None:
        del self.pieces[step["gpu_instance"], step["compute_instance"]]

    def destroy_gpu_instance(self, step: Mapping[str, Any]) -> None:
        assert not [one for one in self.pieces if one[0] == step["gpu_instance"]], "in use"
        assert self.whole.pop(step["gpu_instance"]) == (step["profile"], step["start"])
        self.destroyed.append(step["gpu_instance"])

    def create_gpu_instance(self, step: Mapping[str, Any]) -> None:
        assert self.enabled
        assert step["start"] in _profile(self.geometry, step["profile"]).starts
        place = (step["profile"], step["start"])
        assert legal(self.geometry, [*self.whole.values(), place]), "insufficient resources"
        self.whole[max(self.whole, default=0) + 1] = place

    def create_compute_instance(self, step: Mapping[str, Any]) -> None:
        holder = step["gpu_instance"]
        if holder is None:
            holder = next(n for n, (_, start) in self.whole.items() if start == step["at"])
        profile = _profile(self.geometry, self.whole[holder][0])
        starts = {kind.slices: kind.starts for kind in profile.compute}[step["slices"]]
        new = range(step["start"], step["start"] + step["slices"])
        assert step["start"] in starts
        for (owner, _), (start, slices) in self.pieces.items():
            assert owner != holder or not set(new) & set(range(start, start + slices))
        number = max((c for g, c in self.pieces if g == holder), default=-1) + 1
        self.pieces[holder, number] = (step["start"], step["slices"])

    def counts(self) -> dict[str, int]:
        """MIG devices by name."""
        found = Counter(device_name(n, self.whole[g][0]) for (g, _), (_, n) in self.pieces.items())
        return dict(found)

    def instances(self) -> list[GpuInstance]:
        """What it has now, with nobody in it."""
        return [
            GpuInstance(
                id=number,
                profile=name,
                start=start,
                compute=tuple(
                    ComputeInstance(id=c, slices=n, start=a, users=())
                    for (g, c), (a, n) in self.pieces.items()
                    if g == number
                ),
            )
            for number, (name, start) in self.whole.items()
        ]


def random_instances(
    geometry: Geometry, rng: random.Random, *, split: bool = True, most: int = 7
) -> list[GpuInstance]:
    """Some legal GPU instances at random, with compute instances and users.

    Small profiles are drawn more often: many small instances that stand in the way of a large one
    are where it matters what is kept.
    """
    laid: list[Place] = []
    weights = [1 / profile.slices for profile in geometry.profiles]
    for profile in rng.choices(geometry.profiles, weights, k=rng.randint(0, 9)):
        place = (profile.name, rng.choice(profile.starts))
        if len(laid) < most and legal(geometry, [*laid, place]):
            laid.append(place)
    numbers = rng.sample(range(20), len(laid))
    return [
        GpuInstance(
            id=number,
            profile=name,
            start=start,
            users=rng.choice([(), (), (), ("agent",)]),
            compute=_pieces(_profile(geometry, name), rng, split),
        )
        for number, (name, start) in zip(numbers, laid, strict=True)
    ]


def random_wanted(
    geometry: Geometry, instances: Sequence[GpuInstance], rng: random.Random, most: int = 7
) -> dict[str, int]:
    """Devices that one GPU can have, near to those it has: few go, and something large comes."""
    wanted = Counter(counts_of(instances))
    for name in list(wanted.elements()):
        if rng.random() < 0.4 or wanted.total() > most:
            wanted[name] -= 1
    for profile in rng.choices(geometry.profiles, k=rng.randint(0, 3)):
        piece = rng.choice(profile.compute).slices if rng.random() < 0.3 else profile.slices
        wanted[device_name(piece, profile.name)] += 1
    wanted = +wanted
    while wanted and next(finals(geometry, wanted), None) is None:
        wanted[rng.choice(sorted(wanted.elements()))] -= 1
        wanted = +wanted
    return dict(wanted)


def _pieces(profile: Profile, rng: random.Random, split: bool) -> tuple[ComputeInstance, ...]:
    users = [(), (), None, ("pod",), ("job", "pod")]
    if not split or rng.random() < 0.6:
        return (ComputeInstance(id=0, slices=profile.slices, users=rng.choice(users)),)
    made: list[ComputeInstance] = []
    taken: set[int] = set()
    for number in range(rng.randint(0, 4)):
        kind = rng.choice(profile.compute)
        start = rng.choice(kind.starts)
        slices = set(range(start, start + kind.slices))
        if not slices & taken:
            taken |= slices
            made.append(
                ComputeInstance(id=number, slices=kind.slices, start=start, users=rng.choice(users))
            )
    return tuple(made)


def counts_of(instances: Sequence[GpuInstance]) -> dict[str, int]:
    """Devices by name."""
    return dict(Counter(name for one in instances for name in one.devices()))


def _profile(geometry: Geometry, name: str) -> Profile:
    profile = geometry.get(name)
    assert profile is not None, name
    return profile
