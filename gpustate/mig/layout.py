"""The MIG layout of a node's GPUs: modes, GPU instances with placements, and their users.

A layout can be saved (``gpustate.mig-layout/1``, JSON) for planning later, or written by hand. It may contain the
profiles reported by NVML; otherwise the tables are used. ``users`` lists the processes that have an instance open;
null means unknown, which a plan treats as possibly in use.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from gpustate.core.parameter_errors import describe_error
from gpustate.errors import UsageError
from gpustate.formats.pci_gpus import PciGpu
from gpustate.mig import tables
from gpustate.mig.geometry import ComputeProfile, Geometry, Media, Profile, Span
from gpustate.mig.names import NVIDIA, device_name, parse_device_name

FORMAT = "gpustate.mig-layout/1"
#: Layouts of nodes, as ``gpustate node mig show -o json`` prints them.
FORMAT_OF_NODES = "gpustate.mig-nodes/1"
Users = tuple[str, ...] | None

_ID = r"^[0-9a-f]{4}$"
#: More slices than any GPU has, to limit the size of masks.
_MOST_SLICES = 64


def _profile_name(text: str) -> str:
    name = parse_device_name(text)
    if name.profile != text:
        raise ValueError(f"wanted the name of a GPU instance profile, such as {name.profile}")
    return text


Slices = Annotated[int, Field(ge=1, le=_MOST_SLICES, strict=True)]
Start = Annotated[int, Field(ge=0, lt=_MOST_SLICES, strict=True)]
Engines = dict[Literal["NVDEC", "NVENC", "JPEG", "OFA"], Annotated[int, Field(ge=0, strict=True)]]
ProfileName = Annotated[str, AfterValidator(_profile_name)]


class _Part(BaseModel):
    # JSON has no tuples, so only the numbers are strict.
    model_config = ConfigDict(extra="forbid", frozen=True)


class ComputeInstance(_Part):
    """A compute instance.

    Args:
        id: NVML's number inside its GPU instance.
        slices: number of compute slices.
        start: the first one, inside the GPU instance.
        users: processes that have it open.
    """

    id: int = Field(ge=0, strict=True)
    slices: Slices
    start: Start = 0
    users: Users = None

    @property
    def span(self) -> Span:
        """Its placement inside its GPU instance."""
        return Span(self.start, self.slices)


class GpuInstance(_Part):
    """A GPU instance and the compute instances inside.

    Args:
        id: NVML's number.
        profile: name of its profile.
        start: first memory slice.
        users: processes that have it open, besides those of its compute instances.
        compute: its compute instances.
    """

    id: int = Field(ge=0, strict=True)
    profile: ProfileName
    start: Start
    users: Users = ()
    compute: tuple[ComputeInstance, ...] = ()

    def devices(self) -> list[str]:
        """Names of its MIG devices."""
        return [device_name(part.slices, self.profile) for part in self.compute]


class LiveComputeProfile(_Part):
    """A compute instance profile reported by NVML."""

    slices: Slices
    starts: tuple[Start, ...]
    nvml_id: int | None = None


class LiveProfile(_Part):
    """A GPU instance profile reported by NVML; fields as in :class:`geometry.Profile`."""

    name: ProfileName
    slices: Slices
    size: Slices
    starts: tuple[Start, ...]
    most: Annotated[int, Field(ge=0, le=_MOST_SLICES, strict=True)]
    media: Engines = Field(default_factory=Engines)
    compute: tuple[LiveComputeProfile, ...]
    nvml_id: int | None = None
    smi_id: int | None = None


class LiveGeometry(_Part):
    """All profiles of a GPU reported by NVML."""

    memory_slices: Slices
    compute_slices: Slices
    media: Engines = Field(default_factory=Engines)
    profiles: tuple[LiveProfile, ...]


class GpuLayout(_Part):
    """One GPU.

    Args:
        index: in PCI order, from 0.
        device_id: PCI device id, four hexadecimal digits.
        subsystem_id: device and vendor id of the board, eight digits; empty if unknown.
        name, uuid: from NVML; may be empty.
        enabled: current MIG mode; ``None`` on a GPU without MIG.
        pending: MIG mode after the next reset; by default ``enabled``.
        instances: its GPU instances.
        geometry: its profiles from NVML; ``None`` if unknown.
    """

    index: int = Field(ge=0, strict=True)
    device_id: str = Field(pattern=_ID)
    subsystem_id: str = Field(pattern=r"^([0-9a-f]{8})?$", default="")
    name: str = ""
    uuid: str = ""
    enabled: bool | None = Field(strict=True)
    pending: bool | None = Field(strict=True, default=None)
    instances: tuple[GpuInstance, ...] = ()
    geometry: LiveGeometry | None = None

    @property
    def architecture(self) -> str:
        """NVIDIA's name for its generation, lower case; empty if unknown."""
        model = tables.by_device_id().get(self.device_id)
        if model is not None:
            return model.architecture
        return PciGpu("", self.device_id, "030200", None).architecture or ""

    @property
    def pending_mode(self) -> bool | None:
        """MIG mode after the next reset."""
        return self.enabled if self.pending is None else self.pending

    @property
    def model_name(self) -> str:
        """``H100 NVL``, or its PCI ids if unknown."""
        model = tables.by_device_id().get(self.device_id)
        name = self.name.removeprefix("NVIDIA ") or (model.name if model else "")
        return name or f"{NVIDIA}:{self.device_id}"

    def label(self) -> str:
        """``GPU 0 (H100 NVL)``."""
        return f"GPU {self.index} ({self.model_name})"

    def profiles(self) -> Geometry | None:
        """Its profiles from NVML, else from the tables, else ``None``."""
        if self.geometry is not None:
            return _geometry(self.geometry)
        model = tables.by_device_id().get(self.device_id)
        return model.geometry if model else None

    def counts(self) -> dict[str, int]:
        """Number of MIG devices by name, as in mig-parted."""
        counts: dict[str, int] = {}
        for instance in self.instances:
            for name in instance.devices():
                counts[name] = counts.get(name, 0) + 1
        return dict(sorted(counts.items()))


class Layout(_Part):
    """All GPUs of a node, in PCI order."""

    gpus: tuple[GpuLayout, ...]


def empty(model: tables.Model, count: int) -> Layout:
    """A node with ``count`` GPUs of a model and MIG disabled."""
    gpus = (GpuLayout(index=i, device_id=model.device_ids[0], enabled=False) for i in range(count))
    return Layout(gpus=tuple(gpus))


def as_data(layout: Layout) -> dict[str, object]:
    """Convert a layout into the document that :func:`read` accepts."""
    gpus = layout.model_dump(mode="json")["gpus"]
    return {"format": FORMAT, "gpus": gpus}


def read(text: str, path: str) -> Layout:
    """Read a saved layout, or what ``gpustate node mig show -o json`` printed of one node.

    Raises:
        UsageError: it is not a layout, or is impossible; with the place in the file.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        why = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else ""
        raise UsageError(f"is not JSON ({why or 'nested too deep'})", place=path) from error
    if isinstance(data, dict) and data.get("format") == FORMAT_OF_NODES:
        data = _of_one_node(data.get("nodes"), path)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(
            f"is not a layout ({FORMAT})", place=path, fix="see docs/mig.md for the format"
        )
    try:
        layout = Layout.model_validate({key: data[key] for key in data if key != "format"})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        more = error.error_count() - 1
        raise UsageError(
            f"{where}: {describe_error(dict(first))}" + (f" (and {more} more)" if more else ""),
            place=path,
        ) from error
    check(layout, path)
    return layout


def _of_one_node(nodes: object, path: str) -> object:
    """The layout of the only node of a document."""
    if not isinstance(nodes, list) or len(nodes) != 1 or not isinstance(nodes[0], dict):
        raise UsageError(
            "is not the layout of one node",
            place=path,
            fix="save it with: gpustate node mig show -i INVENTORY -l NODE -o json",
        )
    node: dict[str, object] = nodes[0]
    if "error" in node:
        raise UsageError(f"has no layout: {node['error']}", place=path)
    return {key: value for key, value in node.items() if key != "name"}


def check(layout: Layout, path: str) -> None:
    """Refuse an impossible layout.

    Raises:
        UsageError: with GPU and problem.
    """
    for number, gpu in enumerate(layout.gpus):
        why = _wrong(gpu)
        if number and gpu.index <= layout.gpus[number - 1].index:
            why = f"is entry {number}: entries must be in PCI order"
        if why:
            raise UsageError(f"GPU {gpu.index}: {why}", place=path)


def _wrong(gpu: GpuLayout) -> str | None:
    if not gpu.instances:
        return None
    if not gpu.enabled:
        return "has instances, but MIG is not enabled"
    ids = [instance.id for instance in gpu.instances]
    if len(set(ids)) < len(ids):
        return "two GPU instances have the same id"
    geometry = gpu.profiles()
    if geometry is None:
        reason = tables.UNKNOWN.get(gpu.device_id, ("", "it is not in the tables"))[1]
        return f"the profiles of {gpu.device_id} are unknown ({reason}); add those reported by NVML"
    occupied = 0
    for instance in gpu.instances:
        profile = geometry.get(instance.profile)
        if profile is None:
            return f"{instance.profile} is not a profile of this GPU ({', '.join(geometry.names)})"
        if instance.start not in profile.starts:
            places = ", ".join(map(str, profile.starts))
            return f"{instance.profile} cannot begin at {instance.start}, only at {places}"
        mask = Span(instance.start, profile.size).mask
        if occupied & mask:
            return f"GPU instance {instance.id} overlaps another one"
        occupied |= mask
        if why := _compute_wrong(instance, profile):
            return f"GPU instance {instance.id}: {why}"
    return None


def _compute_wrong(instance: GpuInstance, profile: Profile) -> str | None:
    occupied = 0
    ids = [piece.id for piece in instance.compute]
    if len(set(ids)) < len(ids):
        return "two compute instances have the same id"
    for piece in instance.compute:
        kind = profile.compute_profile(piece.slices)
        if kind is None or piece.start not in kind.starts:
            return f"no compute instance of {piece.slices} slices can begin at {piece.start}"
        if occupied & piece.span.mask:
            return f"compute instance {piece.id} overlaps another one"
        occupied |= piece.span.mask
    return None


def _geometry(live: LiveGeometry) -> Geometry:
    profiles = tuple(
        Profile(
            profile.name,
            profile.slices,
            profile.size,
            profile.starts,
            profile.most,
            _media(profile.media),
            tuple(ComputeProfile(c.slices, c.starts, c.nvml_id) for c in profile.compute),
            profile.nvml_id,
            profile.smi_id,
        )
        for profile in sorted(live.profiles, key=lambda p: (-p.size, -p.slices, p.name))
    )
    return Geometry(live.memory_slices, live.compute_slices, profiles, _media(live.media), "NVML")


def _media(counts: Engines) -> Media:
    return Media(
        counts.get("NVDEC", 0), counts.get("NVENC", 0), counts.get("JPEG", 0), counts.get("OFA", 0)
    )
