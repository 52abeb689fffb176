"""The plan of a node: for every GPU its MIG mode, kept, destroyed and created instances, and the disruption.

A plan is all or nothing: if one GPU cannot have its desired layout, nothing is planned for the node.

Changing the mode terminates all clients of the GPU. Ampere then needs a GPU reset, and keeps the mode across
reboots. Since Hopper no reset is needed, and the mode is lost when the driver is unloaded. Instances survive
neither. A GPU that cannot be reset (passed through to a virtual machine, or used by nvidia_drm) needs a reboot,
which is only known on the node.

Sources:
    MIG User Guide r620, getting started (enable MIG mode); nvml.h, nvmlDeviceSetMigMode.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpustate.core.change import Disruption
from gpustate.errors import RefusedError
from gpustate.formats.words import listed
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
    """One step; ``data`` has its arguments, and is the step in JSON."""

    do: str
    data: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """The plan of one GPU.

    Args:
        gpu: its current layout.
        entry: desired mode and devices; ``None`` if the configuration does not mention it.
        change: of its instances.
        steps: in order.
        disruption: the highest of its steps.
        why: the reason of the disruption; empty if there is none.
        notes: for the user.
        source: of its profiles.
    """

    gpu: GpuLayout
    entry: Entry | None = None
    change: Change = field(default_factory=Change)
    steps: tuple[Step, ...] = ()
    disruption: Disruption = Disruption.NONE
    why: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The plan of all GPUs of a node.

    Args:
        config: name of the configuration.
        gpus: all of them.
        notes: about missing GPUs and overridden entries of the configuration.
    """

    config: str
    gpus: tuple[GpuPlan, ...]
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return any(gpu.steps for gpu in self.gpus)

    @property
    def disruption(self) -> Disruption:
        """The highest of all GPUs."""
        return max((gpu.disruption for gpu in self.gpus), default=Disruption.NONE)


def plan(config: Config, layout: Layout) -> NodePlan:
    """Plan the change from a layout to a configuration.

    Raises:
        RefusedError: a GPU cannot have its desired layout, or the filters match no GPU; with the reason.
    """
    gpus = tuple(_gpu(config, gpu) for gpu in layout.gpus)
    uncovered = [plan.gpu for plan in gpus if plan.entry is None and plan.gpu.enabled is not None]
    filtered = any(entry.filters for entry in config.entries)
    if uncovered and filtered and not any(plan.entry for plan in gpus):
        raise RefusedError(
            f"no entry of {config.name} matches a GPU of this node "
            f"({', '.join(dict.fromkeys(gpu.model_name for gpu in uncovered))})",
            place=config.place or None,
            fix=_fitting(config, uncovered),
        )
    notes = (*config.warnings, *_absent(config, layout), *_overridden(config, layout))
    return NodePlan(config.name, gpus, (*notes, *_uncovered(config, uncovered)))


def _fitting(config: Config, gpus: Sequence[GpuLayout]) -> str | None:
    """The names of the configuration's file that suit GPUs, those most like its own first."""
    fitting = [name for name, s in config.siblings.items() if all(_fits(s, gpu) for gpu in gpus)]
    if not fitting:
        return None
    near = difflib.get_close_matches(config.name, fitting, len(fitting), 0.0)
    return f"the file has for it: {listed(near, 12)}"


def _fits(config: Config, gpu: GpuLayout) -> bool:
    entry = config.entry_for(gpu.index, gpu.device_id, gpu.subsystem_id)
    geometry = gpu.profiles()
    if entry is None or geometry is None:
        return entry is not None and not entry.devices
    return not why_not(geometry, entry.devices)


def _uncovered(config: Config, gpus: Sequence[GpuLayout]) -> Iterator[str]:
    """Notes on GPUs that can be divided and have no entry, by model."""
    for model in dict.fromkeys(gpu.model_name for gpu in gpus):
        numbers = ", ".join(str(gpu.index) for gpu in gpus if gpu.model_name == model)
        yield f"GPU {numbers} ({model}): no entry of {config.name}: not changed"


def _absent(config: Config, layout: Layout) -> Iterator[str]:
    """Notes on GPU numbers in entries that do not exist."""
    indices = {gpu.index for gpu in layout.gpus}
    extent = f"the node has GPUs 0 to {max(indices)}" if indices else "the node has none"
    for entry in config.entries:
        kinds = (f.matches(g.device_id, g.subsystem_id) for f in entry.filters for g in layout.gpus)
        missing = sorted(set(entry.indices or ()) - indices)
        if missing and (not entry.filters or any(kinds)):
            place = f"{entry.place}: " if entry.place else ""
            yield f"{place}GPU {', '.join(map(str, missing))} of devices does not exist: {extent}"


def _overridden(config: Config, layout: Layout) -> Iterator[str]:
    """Notes on GPUs for which a later entry overrides an earlier one."""
    overrides: dict[tuple[str, str], list[str]] = {}
    for gpu in layout.gpus:
        identity = (gpu.index, gpu.device_id, gpu.subsystem_id)
        matching = [entry for entry in config.entries if entry.matches(*identity)]
        for entry in matching[:-1]:
            if (entry.enabled, entry.devices) != (matching[-1].enabled, matching[-1].devices):
                overrides.setdefault((entry.place, matching[-1].place), []).append(str(gpu.index))
    for (first, last), numbers in overrides.items():
        yield (
            f"{last or config.name}: overrides {first or 'an earlier entry'} for GPU {', '.join(numbers)}"
        )


def _gpu(config: Config, gpu: GpuLayout) -> GpuPlan:
    entry = config.entry_for(gpu.index, gpu.device_id, gpu.subsystem_id)
    if entry is None:
        return GpuPlan(gpu, notes=(f"not in {config.name}: not changed",))
    if gpu.enabled is None:
        if entry.enabled and entry.indices is not None:
            raise _refused(gpu, entry, "it does not support MIG", "remove its number from devices")
        return GpuPlan(gpu, entry, notes=("it does not support MIG: not changed",))
    geometry = _geometry(gpu, entry)
    change = _instances(gpu, entry, geometry)
    steps = (*_destroys(change), *_mode_steps(gpu, entry.enabled), *_creates(change, geometry))
    costs = [*_mode_costs(gpu, entry.enabled), *_instance_costs(change)]
    worst = max((cost for cost, _ in costs), default=Disruption.NONE)
    why = tuple(text for cost, text in costs if cost is worst and worst is not Disruption.NONE)
    return GpuPlan(gpu, entry, change, steps, worst, why, _notes(gpu, steps), geometry.source)


def _geometry(gpu: GpuLayout, entry: Entry) -> Geometry:
    geometry = gpu.profiles()
    if geometry is not None:
        return geometry
    if not entry.devices and not gpu.instances:
        return Geometry(0, 0, (), source="")
    why = tables.UNKNOWN.get(gpu.device_id, ("", "it is not in the tables"))[1]
    fix = "plan from a layout with the profiles reported by NVML"
    raise _refused(gpu, entry, f"its profiles are unknown ({why})", fix)


def _instances(gpu: GpuLayout, entry: Entry, geometry: Geometry) -> Change:
    """The change of instances; a mode change destroys all of them."""
    if not entry.enabled:
        return Change(destroyed=gpu.instances)
    if why := why_not(geometry, entry.devices):
        devices = ", ".join(f"{count} x {name}" for name, count in entry.devices.items())
        raise _refused(gpu, entry, f"cannot have {devices}: " + "; ".join(why))
    change = changes.plan(geometry, gpu.instances, entry.devices)
    if change is None:  # why_not would have said so
        raise _refused(gpu, entry, "no sequence of changes leads to the desired layout")
    return change


def _refused(gpu: GpuLayout, entry: Entry, why: str, fix: str | None = None) -> RefusedError:
    return RefusedError(f"{gpu.label()}: {why}", place=entry.place or None, fix=fix)


def _mode_steps(gpu: GpuLayout, desired_mode: bool) -> Iterator[Step]:
    resets = gpu.enabled is not desired_mode and _resets(gpu)
    # A pending mode is already set; an unwanted pending mode is reverted.
    if gpu.pending_mode is not desired_mode or (gpu.enabled is not desired_mode and not resets):
        yield Step("set-mode", {"enabled": desired_mode})
    if resets:
        yield Step("reset")


def _resets(gpu: GpuLayout) -> bool:
    """Whether a mode change needs a reset: on Ampere, and on unknown architectures."""
    return gpu.architecture in ("ampere", "")


def _mode_costs(gpu: GpuLayout, desired_mode: bool) -> Iterator[tuple[Disruption, str]]:
    if gpu.enabled is desired_mode:
        return
    word = "on" if desired_mode else "off"
    if _resets(gpu):
        reason = "on Ampere" if gpu.architecture else "assumed, because its architecture is unknown"
        waits = ", already pending" if gpu.pending_mode is desired_mode else ""
        yield Disruption.RESET, f"MIG mode {word}: a GPU reset ({reason}){waits}"
    else:
        yield Disruption.DRAIN, f"MIG mode {word}: the GPU must not be in use, no reset is needed"


def _lost(change: Change) -> Iterator[tuple[str, Users]]:
    """Names and users of the devices and GPU instances to destroy."""
    for instance in change.destroyed:
        named = f"GPU instance {instance.id} ({instance.profile})"
        yield named, instance.users
        for piece in instance.compute:
            yield device_name(piece.slices, instance.profile) + f" of {named}", piece.users
    for stay in change.preserved:
        named = f"GPU instance {stay.instance.id} ({stay.instance.profile})"
        for piece in stay.destroyed:
            yield device_name(piece.slices, stay.instance.profile) + f" of {named}", piece.users


def _instance_costs(change: Change) -> Iterator[tuple[Disruption, str]]:
    for named, users in _lost(change):
        if users is None:
            yield Disruption.DRAIN, f"{named} is destroyed, and its use is unknown"
        elif users:
            yield Disruption.DRAIN, f"{named} is destroyed, and used by {', '.join(users)}"


def _is_busy(instance: GpuInstance) -> bool:
    return bool(instance.users) or any(piece.users for piece in instance.compute)


def _destroys(change: Change) -> Iterator[Step]:
    """Destroy instances in use first: if one is still in use, nothing else is lost yet."""
    for stay in change.preserved:
        for piece in sorted(stay.destroyed, key=lambda i: (not i.users, i.id)):
            yield _destroy_compute(stay.instance, piece.id, piece.slices, piece.users)
    for instance in sorted(change.destroyed, key=lambda i: (not _is_busy(i), i.start)):
        for piece in sorted(instance.compute, key=lambda i: (not i.users, i.id)):
            yield _destroy_compute(instance, piece.id, piece.slices, piece.users)
        data: dict[str, Any] = {"gpu_instance": instance.id, "profile": instance.profile}
        data |= {"start": instance.start, "users": _plain(instance.users)}
        yield Step("destroy-gpu-instance", data)


def _destroy_compute(instance: GpuInstance, number: int, slices: int, users: Users) -> Step:
    data: dict[str, Any] = {"gpu_instance": instance.id, "compute_instance": number}
    data |= {"device": device_name(slices, instance.profile), "users": _plain(users)}
    return Step("destroy-compute-instance", data)


def _plain(users: Users) -> list[str] | None:
    return None if users is None else list(users)


def _creates(change: Change, geometry: Geometry) -> Iterator[Step]:
    for stay in change.preserved:
        for span in stay.created:
            instance = stay.instance
            data: dict[str, Any] = {"gpu_instance": instance.id, "at": instance.start}
            yield _create_compute(data, instance.profile, span, geometry)
    for creation in change.created:
        profile = geometry.get(creation.profile)
        ids = {"nvml_id": profile and profile.nvml_id, "smi_id": profile and profile.smi_id}
        place: dict[str, Any] = {"profile": creation.profile, **creation.span._asdict()}
        yield Step("create-gpu-instance", {**place, **ids})
        for span in creation.compute:
            where = {"gpu_instance": None, "at": creation.span.start}
            yield _create_compute(where, creation.profile, span, geometry)


def _create_compute(
    where: dict[str, Any], profile_name: str, span: tuple[int, int], geometry: Geometry
) -> Step:
    """``at`` identifies a GPU instance without a number by its start."""
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
        notes.append("profiles come from the tables; NVML's take precedence")
        if model and model.note:
            notes.append(model.note)
    if any(step.do == "reset" for step in steps):
        notes.append("if it cannot be reset, the node must be rebooted")
    return tuple(notes)
