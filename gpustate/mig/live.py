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
        who: description of the process.
    """

    minor: int
    instance: int | None
    compute: int | None
    who: str


def uses_of(process: GpuProcess) -> Iterator[Use]:
    """The parts that a process has open."""
    for minor, instance, compute in process.parts:
        yield Use(minor, instance, None if compute < 0 else compute, process.who)


def in_order(facts: NvmlFacts, pci: Iterable[PciGpu] = ()) -> tuple[Gpu, ...]:
    """GPUs in PCI order; a lost one, which NVML cannot name, has the address that only the driver still has."""
    listed = {gpu.pci for gpu in facts.gpus}
    away = (one.address for one in pci if one.driver == "nvidia" and one.address not in listed)
    gpus = [gpu if gpu.pci else replace(gpu, pci=next(away, "")) for gpu in facts.gpus]
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
    ids = {one.address: one.device_id for one in pci}
    found = []
    for number, gpu in enumerate(gpus):
        if gpu.error is not None or number in excluded:
            continue
        device_id = gpu.device_id or ids.get(gpu.pci, "0000")
        mine = None if uses is None else [use for use in uses if use.minor == gpu.minor]
        found.append(
            GpuLayout(
                index=number,
                device_id=device_id,
                subsystem_id=gpu.subsystem_id,
                name=gpu.name,
                uuid=gpu.uuid,
                enabled=gpu.mig_current,
                pending=gpu.mig_pending,
                instances=tuple(_instance(one, mine) for one in gpu.mig_instances),
                geometry=_geometry(gpu, gpus, device_id),
            )
        )
    made = Layout(gpus=tuple(found))
    try:
        check(made, "NVML")
    except Exception as error:
        raise RefusedError(f"NVML reports inconsistent MIG instances: {error}") from error
    return made


def _instance(one: MigInstance, uses: Sequence[Use] | None) -> GpuInstance:
    def users(compute: int | None) -> Users:
        if uses is None:
            return None
        mine = [use.who for use in uses if (use.instance, use.compute) == (one.id, compute)]
        return tuple(dict.fromkeys(mine))

    inside = tuple(
        ComputeInstance(id=number, slices=slices, start=start, users=users(number))
        for number, slices, start in one.compute
    )
    listed = {who for piece in inside for who in piece.users or ()}
    # A user of a compute instance has its GPU instance open as well: listed once.
    own = tuple(who for who in users(None) or () if who not in listed)
    return GpuInstance(id=one.id, profile=one.profile, start=one.start, users=own, compute=inside)


def _geometry(gpu: Gpu, gpus: Sequence[Gpu], device_id: str) -> LiveGeometry | None:
    alike = [one for one in gpus if one.mig_profiles and one.device_id == gpu.device_id]
    # NVML reports less of a GPU without MIG mode, and nothing before R550.
    alike.sort(key=lambda one: (one.mig_current is not gpu.mig_current, one.pci))
    if not alike or not gpu.device_id:
        return None
    profiles = alike[0].mig_profiles
    media = Media(*(max(each) for each in zip(*(_media(one) for one in profiles), strict=True)))
    return LiveGeometry(
        memory_slices=max(max(one.starts) + one.size for one in profiles),
        compute_slices=max(one.slices for one in profiles),
        media=_engines(media),
        profiles=tuple(_profile(one, device_id) for one in profiles),
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


def _profile(one: MigProfile, device_id: str) -> LiveProfile:
    model = tables.by_device_id().get(device_id)
    known = model.geometry.get(one.name) if model else None
    most = known.most if known is not None and device_id == _A30 else one.most
    compute = tuple(
        LiveComputeProfile(slices=slices, starts=tuple(starts), nvml_id=number)
        for slices, number, *starts in one.compute
    ) or tuple(
        LiveComputeProfile(slices=kind.slices, starts=kind.starts, nvml_id=kind.nvml_id)
        for kind in (known.compute if known else tables.compute_profiles(one.slices))
    )
    return LiveProfile(
        name=one.name,
        slices=one.slices,
        size=one.size,
        starts=one.starts,
        most=most,
        media=_engines(_media(one)),
        compute=compute,
        nvml_id=one.nvml_id,
        smi_id=one.smi_id,
    )
