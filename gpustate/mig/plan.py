"""The plan of a node: for every GPU its MIG mode, what stays, what goes, what is made, and the cost.

Nothing is planned unless every GPU can have what is wanted of it: a node is never taken half way to
something it cannot be.

Changing the mode ends every client of the GPU. Ampere then needs a GPU reset, and keeps the mode
over a reboot; from Hopper on there is no reset, and the mode is gone when the driver is unloaded.
Instances never survive either. Where a GPU cannot be reset (passed through to a virtual machine, or
held by nvidia_drm) it takes a reboot; that only the node knows.

Sources:
    MIG User Guide r620, getting started (enable MIG mode); nvml.h, nvmlDeviceSetMigMode.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpustate.core.change import Disruption
from gpustate.errors import RefusedError
from gpustate.mig import change as changes
from gpustate.mig import tables
from gpustate.mig.change import Change
from gpustate.mig.config import Config, Entry
from gpustate.mig.geometry import Geometry
from gpustate.mig.layout import GpuInstance, GpuLayout, Layout, Users
from gpustate.mig.names import device_name
from gpustate.mig.refute import why_not

FORMAT = "gpustate.mig-plan/1"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do; ``data`` has what it needs, and is the step in JSON."""

    do: str
    data: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """What becomes of one GPU.

    Args:
        gpu: as it is.
        wanted: mode and devices; ``None`` when the configuration says nothing of it.
        change: of its instances.
        steps: in order.
        disruption: the worst of it.
        why: what asks for that disruption; empty when there is none.
        notes: what a person should know.
        source: where its profiles are known from.
    """

    gpu: GpuLayout
    wanted: Entry | None = None
    change: Change = field(default_factory=Change)
    steps: tuple[Step, ...] = ()
    disruption: Disruption = Disruption.NONE
    why: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What becomes of all GPUs of a node.

    Args:
        config: name of the configuration.
        gpus: all of them.
        notes: what the configuration says of GPUs that are not there, or says twice.
    """

    config: str
    gpus: tuple[GpuPlan, ...]
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return any(gpu.steps for gpu in self.gpus)

    @property
    def disruption(self) -> Disruption:
        """The worst of all GPUs."""
        return max((gpu.disruption for gpu in self.gpus), default=Disruption.NONE)


def plan(config: Config, layout: Layout) -> NodePlan:
    """Plan the way from a layout to a configuration.

    Raises:
        RefusedError: a GPU cannot be what is wanted of it; with the reason, and nothing is planned.
    """
    gpus = tuple(_gpu(config, gpu) for gpu in layout.gpus)
    notes = (*config.warnings, *_absent(config, layout), *_overruled(config, layout))
    return NodePlan(config.name, gpus, notes)


def _absent(config: Config, layout: Layout) -> Iterator[str]:
    """Numbers of GPUs that entries name, and that nobody has here."""
    there = {gpu.index for gpu in layout.gpus}
    known = f"there are GPUs 0 to {max(there)}" if there else "there is none"
    for entry in config.entries:
        kinds = (f.matches(g.device_id, g.subsystem_id) for f in entry.filters for g in layout.gpus)
        missing = sorted(set(entry.indices or ()) - there)
        if missing and (not entry.filters or any(kinds)):
            place = f"{entry.place}: " if entry.place else ""
            yield f"{place}no GPU {', '.join(map(str, missing))} of devices is here: {known}"


def _overruled(config: Config, layout: Layout) -> Iterator[str]:
    """GPUs of which a later entry says something else than one before it."""
    found: dict[tuple[str, str], list[str]] = {}
    for gpu in layout.gpus:
        who = (gpu.index, gpu.device_id, gpu.subsystem_id)
        said = [entry for entry in config.entries if entry.matches(*who)]
        for one in said[:-1]:
            if (one.enabled, one.devices) != (said[-1].enabled, said[-1].devices):
                found.setdefault((one.place, said[-1].place), []).append(str(gpu.index))
    for (first, last), numbers in found.items():
        yield (
            f"{last or config.name}: says something else of GPU {', '.join(numbers)} than "
            f"{first or 'an entry before it'}; the last one counts"
        )


def _gpu(config: Config, gpu: GpuLayout) -> GpuPlan:
    entry = config.entry_for(gpu.index, gpu.device_id, gpu.subsystem_id)
    if entry is None:
        return GpuPlan(gpu, notes=(f"{config.name} says nothing of it: it is left as it is",))
    if gpu.enabled is None:
        if entry.enabled and entry.indices is not None:
            raise _refused(gpu, entry, "it cannot do MIG", "take its number out of devices")
        return GpuPlan(gpu, entry, notes=("it cannot do MIG: it is left as it is",))
    geometry = _geometry(gpu, entry)
    made = _instances(gpu, entry, geometry)
    steps = (
        *_destroys(made),
        *_mode_steps(gpu, entry.enabled),
        *_creates(made, geometry),
    )
    costs = [*_mode_costs(gpu, entry.enabled), *_instance_costs(made)]
    worst = max((cost for cost, _ in costs), default=Disruption.NONE)
    why = tuple(text for cost, text in costs if cost is worst and worst is not Disruption.NONE)
    return GpuPlan(gpu, entry, made, steps, worst, why, _notes(gpu, steps), geometry.source)


def _geometry(gpu: GpuLayout, entry: Entry) -> Geometry:
    geometry = gpu.profiles()
    if geometry is not None:
        return geometry
    if not entry.devices and not gpu.instances:
        return Geometry(0, 0, (), source="nobody")
    why = tables.UNKNOWN.get(gpu.device_id, ("", "it is in no table"))[1]
    fix = "plan from a layout that has what NVML says of it"
    raise _refused(gpu, entry, f"its profiles are not known ({why})", fix)


def _instances(gpu: GpuLayout, entry: Entry, geometry: Geometry) -> Change:
    """Change of the instances; with the mode they all go."""
    if not entry.enabled:
        return Change(destroyed=gpu.instances)
    if why := why_not(geometry, entry.devices):
        wanted = ", ".join(f"{count} x {name}" for name, count in entry.devices.items())
        raise _refused(gpu, entry, f"cannot have {wanted}: " + "; ".join(why))
    made = changes.plan(geometry, gpu.instances, entry.devices)
    if made is None:  # why_not would have said so
        raise _refused(gpu, entry, "there is no way to what is wanted")
    return made


def _refused(gpu: GpuLayout, entry: Entry, why: str, fix: str | None = None) -> RefusedError:
    return RefusedError(f"{gpu.shown()}: {why}", place=entry.place or None, fix=fix)


def _mode_steps(gpu: GpuLayout, wanted: bool) -> Iterator[Step]:
    resets = gpu.enabled is not wanted and _resets(gpu)
    # What waits for a reset is set already; what waits for a reset and is not wanted is taken back.
    if gpu.pending_mode is not wanted or (gpu.enabled is not wanted and not resets):
        yield Step("set-mode", {"enabled": wanted})
    if resets:
        yield Step("reset")


def _resets(gpu: GpuLayout) -> bool:
    """A change of mode needs a reset: Ampere, and what nobody has said otherwise of."""
    return gpu.architecture in ("ampere", "")


def _mode_costs(gpu: GpuLayout, wanted: bool) -> Iterator[tuple[Disruption, str]]:
    if gpu.enabled is wanted:
        return
    word = "on" if wanted else "off"
    if _resets(gpu):
        reason = "on Ampere" if gpu.architecture else "taken for certain, its architecture unknown"
        waits = ", for which it waits already" if gpu.pending_mode is wanted else ""
        yield Disruption.RESET, f"MIG mode {word}: a GPU reset ({reason}){waits}"
    else:
        yield Disruption.DRAIN, f"MIG mode {word}: nobody may use the GPU, no reset is needed"


def _lost(change: Change) -> Iterator[tuple[str, Users]]:
    """Names and users of the devices and GPU instances that go."""
    for one in change.destroyed:
        named = f"GPU instance {one.id} ({one.profile})"
        yield named, one.users
        for piece in one.compute:
            yield device_name(piece.slices, one.profile) + f" of {named}", piece.users
    for kept in change.kept:
        named = f"GPU instance {kept.instance.id} ({kept.instance.profile})"
        for piece in kept.destroyed:
            yield device_name(piece.slices, kept.instance.profile) + f" of {named}", piece.users


def _instance_costs(change: Change) -> Iterator[tuple[Disruption, str]]:
    for named, users in _lost(change):
        if users is None:
            yield Disruption.DRAIN, f"{named} goes, and nobody looked whether it is in use"
        elif users:
            yield Disruption.DRAIN, f"{named} goes, in use by {', '.join(users)}"


def _is_busy(instance: GpuInstance) -> bool:
    return bool(instance.users) or any(one.users for one in instance.compute)


def _destroys(change: Change) -> Iterator[Step]:
    """What is in use first: when somebody still holds it, nothing else has been lost yet."""
    for kept in change.kept:
        for piece in sorted(kept.destroyed, key=lambda one: (not one.users, one.id)):
            yield _destroy_compute(kept.instance, piece.id, piece.slices, piece.users)
    for one in sorted(change.destroyed, key=lambda one: (not _is_busy(one), one.start)):
        for piece in sorted(one.compute, key=lambda one: (not one.users, one.id)):
            yield _destroy_compute(one, piece.id, piece.slices, piece.users)
        data: dict[str, Any] = {"gpu_instance": one.id, "profile": one.profile}
        data |= {"start": one.start, "users": _plain(one.users)}
        yield Step("destroy-gpu-instance", data)


def _destroy_compute(instance: GpuInstance, number: int, slices: int, users: Users) -> Step:
    data: dict[str, Any] = {"gpu_instance": instance.id, "compute_instance": number}
    data |= {"device": device_name(slices, instance.profile), "users": _plain(users)}
    return Step("destroy-compute-instance", data)


def _plain(users: Users) -> list[str] | None:
    return None if users is None else list(users)


def _creates(change: Change, geometry: Geometry) -> Iterator[Step]:
    for kept in change.kept:
        for span in kept.created:
            instance = kept.instance
            data: dict[str, Any] = {"gpu_instance": instance.id, "at": instance.start}
            yield _create_compute(data, instance.profile, span, geometry)
    for one in change.created:
        profile = geometry.get(one.profile)
        ids = {"nvml_id": profile and profile.nvml_id, "smi_id": profile and profile.smi_id}
        place: dict[str, Any] = {"profile": one.profile, **one.span._asdict()}
        yield Step("create-gpu-instance", {**place, **ids})
        for span in one.compute:
            where = {"gpu_instance": None, "at": one.span.start}
            yield _create_compute(where, one.profile, span, geometry)


def _create_compute(
    where: dict[str, Any], profile_name: str, span: tuple[int, int], geometry: Geometry
) -> Step:
    """``at`` finds the GPU instance that has no number yet: one begins there."""
    start, slices = span
    profile = geometry.get(profile_name)
    kind = profile.compute_profile(slices) if profile else None
    name = device_name(slices, profile_name)
    data = {**where, "device": name, "start": start, "slices": slices}
    return Step("create-compute-instance", {**data, "nvml_id": kind and kind.nvml_id})


def _notes(gpu: GpuLayout, steps: tuple[Step, ...]) -> tuple[str, ...]:
    model = tables.by_device_id().get(gpu.device_id)
    notes = []
    if steps and gpu.geometry is None:
        notes.append("profiles are those of the table; NVML has the last word")
        if model and model.note:
            notes.append(model.note)
    if any(step.do == "reset" for step in steps):
        notes.append("where it cannot be reset, the node has to reboot")
    return tuple(notes)
