"""The current layout of a node from its driver, and its users.

GPUs are numbered in PCI order as in mig-parted, not in NVML's order. Profiles come from NVML (one GPU represents all
of its model), else from the tables. For the A30 NVML's counts are wrong, so the table's are used.

Sources:
    NVIDIA/mig-parted v0.15, pkg/mig/discovery (A30), cmd/nvidia-mig-parted/assert (numbering).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpustate.errors import RefusedError
from gpustate.formats.nvml_report import Gpu, MigInstance, MigProfile, NvmlFacts
from gpustate.formats.pci_gpus import PciGpu
from gpustate.mig import tables
from gpustate.mig.geometry import Media
from gpustate.mig.layout import (
    ComputeInstance,
    Engines,
    GpuInstance,
    GpuLayout,
    Layout,
    LiveComputeProfile,
    LiveGeometry,
    LiveProfile,
    Users,
    check,
)
from gpustate.probes.gpu_clients import GpuProcess

_A30 = "20b7"


@dataclass(frozen=True, slots=True)
class Use:
    """A process that has a part of a GPU open.

    Args:
        minor: of the GPU's device node.
        instance: number of the GPU instance; ``None`` for the GPU itself.
        compute: number of the compute instance; ``None`` for the GPU instance itself.
        user: description of the process.
    """

    minor: int
    instance: int | None
    compute: int | None
    user: str


def uses_of(process: GpuProcess) -> Iterator[Use]:
    """The parts that a process has open."""
    for minor, instance, compute in process.parts:
        yield Use(minor, instance, None if compute < 0 else compute, process.description)


def in_order(facts: NvmlFacts, pci: Iterable[PciGpu] = ()) -> tuple[Gpu, ...]:
    """GPUs in PCI order; a lost one, which NVML cannot name, has the address that only the driver still has."""
    listed = {g.pci for g in facts.gpus}
    away = (g.address for g in pci if g.driver == "nvidia" and g.address not in listed)
    gpus = [g if g.pci else replace(g, pci=next(away, "")) for g in facts.gpus]
    return tuple(sorted(gpus, key=lambda gpu: gpu.pci))


def layout(
    gpus: Sequence[Gpu],
    pci: Iterable[PciGpu] = (),
    uses: Iterable[Use] | None = None,
    excluded: Collection[int] = (),
) -> Layout:
    """Build a layout from NVML and PCI; GPUs that do not respond are not in it.

    Args:
        gpus: in PCI order.
        pci: the GPUs on PCI, for data missing in NVML.
        uses: open parts; ``None`` if unknown.
        excluded: numbers of GPUs to leave out.

    Raises:
        RefusedError: the data of a GPU are inconsistent.
    """
    ids = {pci_gpu.address: pci_gpu.device_id for pci_gpu in pci}
    layouts = []
    for number, gpu in enumerate(gpus):
        if gpu.error is not None or number in excluded:
            continue
        device_id = gpu.device_id or ids.get(gpu.pci, "0000")
        gpu_uses = None if uses is None else [use for use in uses if use.minor == gpu.minor]
        layouts.append(
            GpuLayout(
                index=number,
                device_id=device_id,
                subsystem_id=gpu.subsystem_id,
                name=gpu.name,
                uuid=gpu.uuid,
                enabled=gpu.mig_current,
                pending=gpu.mig_pending,
                instances=tuple(_instance(i, gpu_uses) for i in gpu.mig_instances),
                geometry=_geometry(gpu, gpus, device_id),
            )
        )
    node_layout = Layout(gpus=tuple(layouts))
    try:
        check(node_layout, "NVML")
    except Exception as error:
        raise RefusedError(f"NVML reports inconsistent MIG instances: {error}") from error
    return node_layout


def _instance(instance: MigInstance, uses: Sequence[Use] | None) -> GpuInstance:
    def users(compute: int | None) -> Users:
        if uses is None:
            return None
        user_names = [u.user for u in uses if (u.instance, u.compute) == (instance.id, compute)]
        return tuple(dict.fromkeys(user_names))

    inside = tuple(
        ComputeInstance(id=number, slices=slices, start=start, users=users(number))
        for number, slices, start in instance.compute
    )
    listed = {user for piece in inside for user in piece.users or ()}
    # A user of a compute instance has its GPU instance open as well: listed once.
    own_users = tuple(user for user in users(None) or () if user not in listed)
    return GpuInstance(
        id=instance.id,
        profile=instance.profile,
        start=instance.start,
        users=own_users,
        compute=inside,
    )


def _geometry(gpu: Gpu, gpus: Sequence[Gpu], device_id: str) -> LiveGeometry | None:
    alike = [c for c in gpus if c.mig_profiles and c.device_id == gpu.device_id]
    # NVML reports less of a GPU without MIG mode, and nothing before R550.
    alike.sort(key=lambda candidate: (candidate.mig_current is not gpu.mig_current, candidate.pci))
    if not alike or not gpu.device_id:
        return None
    profiles = alike[0].mig_profiles
    media = Media(*(max(each) for each in zip(*(_media(p) for p in profiles), strict=True)))
    return LiveGeometry(
        memory_slices=max(max(profile.starts) + profile.size for profile in profiles),
        compute_slices=max(profile.slices for profile in profiles),
        media=_engines(media),
        profiles=tuple(_profile(profile, device_id) for profile in profiles),
    )


def _media(profile: MigProfile) -> Media:
    return Media(*profile.media) if len(profile.media) == 4 else Media()


def _engines(media: Media) -> Engines:
    counts: Engines = {
        "NVDEC": media.decoders,
        "NVENC": media.encoders,
        "JPEG": media.jpeg,
        "OFA": media.ofa,
    }
    return {word: count for word, count in counts.items() if count}


def _profile(profile: MigProfile, device_id: str) -> LiveProfile:
    model = tables.by_device_id().get(device_id)
    listed = model.geometry.get(profile.name) if model else None
    most = listed.most if listed is not None and device_id == _A30 else profile.most
    compute = tuple(
        LiveComputeProfile(slices=slices, starts=tuple(starts), nvml_id=number)
        for slices, number, *starts in profile.compute
    ) or tuple(
        LiveComputeProfile(slices=kind.slices, starts=kind.starts, nvml_id=kind.nvml_id)
        for kind in (listed.compute if listed else tables.compute_profiles(profile.slices))
    )
    return LiveProfile(
        name=profile.name,
        slices=profile.slices,
        size=profile.size,
        starts=profile.starts,
        most=most,
        media=_engines(_media(profile)),
        compute=compute,
        nvml_id=profile.nvml_id,
        smi_id=profile.smi_id,
    )
