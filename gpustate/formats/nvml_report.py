"""NVML's report on a node's GPUs, as data and JSON.

Errors need different remedies, so they are kept as NVML's own numbers: 9 (module not loaded), 12 (library
missing), 15 (GPU lost), 18 (library and module of different versions) and 127 (neither python3 nor nvidia-smi).

This module also runs on the nodes themselves: standard library only, Python 3.9.

Sources:
    nvml.h: nvmlReturn_t, nvmlFabricState; nvidia-ml-py, pynvml.py, which repeats them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any

TIMEOUT = 10
LIBRARY_NOT_FOUND = 12

#: Names of common NVML errors.
ERROR_NAMES = {
    1: "not initialised",
    2: "invalid argument",
    3: "not supported",
    4: "no permission",
    6: "not found",
    8: "external power cable missing",
    9: "driver not loaded",
    10: "timeout",
    11: "interrupt problem",
    12: "library not found",
    13: "function not found",
    14: "infoROM corrupted",
    15: "GPU is lost",
    16: "GPU requires reset",
    17: "blocked by the operating system",
    18: "driver and library versions differ",
    19: "in use by another client",
    20: "out of memory",
    23: "insufficient resources",
    25: "argument version mismatch",
    28: "GPU not found",
    29: "invalid state",
    127: "neither a complete python3 nor nvidia-smi",
    999: "unknown error",
}


def error_name(code: int) -> str:
    """The name of an NVML error number."""
    return ERROR_NAMES.get(code, "error " + str(code))


@dataclass(frozen=True)
class MigDevice:
    """One MIG device: a compute instance inside a GPU instance."""

    uuid: str
    gpu_instance: int | None = None
    compute_instance: int | None = None
    name: str = ""  # NVML's name, ending in the profile: "... MIG 1g.10gb"
    memory_mib: int | None = None
    multiprocessors: int | None = None
    gi_slices: int | None = None  # slices of the GPU instance
    ci_slices: int | None = None  # and of the compute instance in it
    copy_engines: int | None = None
    decoders: int | None = None
    encoders: int | None = None
    jpeg_engines: int | None = None
    ofa_engines: int | None = None


@dataclass(frozen=True)
class MigInstance:
    """A GPU instance: its placement, and ``(id, slices, start)`` of each compute instance inside."""

    id: int
    profile: str  # 1g.10gb+me
    start: int
    compute: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class MigProfile:
    """A GPU instance profile as NVML describes it.

    ``media`` counts decoders, encoders, JPEG and optical flow engines; ``compute`` has
    ``(slices, NVML's number, starts...)`` of each size of compute instance, and is empty while there is no
    instance of the profile to query.
    """

    name: str
    nvml_id: int
    smi_id: int  # nvidia-smi's number
    slices: int
    size: int
    most: int
    starts: tuple[int, ...]
    media: tuple[int, ...] = ()
    compute: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class GpuHealth:
    """Health of a GPU; ``None`` for unsupported values. Some values change every second."""

    recovery_action: int | None = None  # nvmlDeviceGpuRecoveryAction_t; 0: none
    remapped_correctable: int | None = None
    remapped_uncorrectable: int | None = None
    retired_pages: int | None = None  # before Ampere
    retirement_pending: bool | None = None
    ecc_uncorrectable: int | None = None  # since the driver was loaded
    pcie_generation: int | None = None
    pcie_generation_most: int | None = None  # maximum of GPU and slot
    pcie_width: int | None = None
    pcie_width_most: int | None = None
    clock_reasons: int | None = None  # bits of nvmlClocksEventReason...
    nvlinks: int | None = None  # number of links
    nvlinks_down: tuple[int, ...] = ()
    nvlink_replays: int | None = None
    nvlink_recoveries: int | None = None
    nvlink_crc_errors: int | None = None


@dataclass(frozen=True)
class Gpu:
    """One GPU in NVML; ``None`` or an empty string for unknown values.

    ``error`` is the NVML error of querying this GPU; values read before it are kept.
    """

    index: int
    uuid: str = ""
    pci: str = ""  # in the form of sysfs: 0000:1b:00.0
    minor: int | None = None
    name: str = ""
    serial: str = ""
    memory_mib: int | None = None
    architecture: str = ""  # lower case: hopper
    compute_capability: str = ""  # 9.0
    persistence_mode: bool | None = None
    compute_mode: str = (
        ""  # as nvidia-smi prints it: Default, Exclusive_Process; empty: not queried
    )
    mig_current: bool | None = None  # None: not MIG capable
    mig_pending: bool | None = None
    mig_devices: tuple[MigDevice, ...] = ()
    mig_instances: tuple[MigInstance, ...] = ()
    mig_profiles: tuple[MigProfile, ...] = ()  # reported by one GPU of each model and mode
    device_id: str = ""  # four hexadecimal digits
    subsystem_id: str = ""  # of the board: device and vendor, eight digits
    ecc: bool | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    fabric_state: str = ""  # empty: no fabric; not started, in progress, completed
    fabric_status: str = ""  # once completed: success, or an error
    fabric_cluster: str = ""  # UUID of the NVLink domain; empty when not known or all zero
    fabric_clique: int | None = None  # part of the domain
    health: GpuHealth | None = None  # None: not queried (nvidia-smi instead of NVML)
    error: int | None = None


@dataclass(frozen=True)
class NvmlFacts:
    """NVML's report; ``error`` is ``None`` if NVML works."""

    source: str = "none"  # nvml, nvidia-smi, none
    driver_loaded: bool = False
    library: str = ""  # path of libnvidia-ml.so.1
    driver_version: str = ""
    nvml_version: str = ""
    cuda_version: str = ""  # the newest CUDA this driver can run: 13.0
    confidential: str = ""  # confidential computing: off, on, devtools, ppcie; empty: unknown
    confidential_ready: bool | None = None  # the GPUs accept work; None: unknown, or off
    error: int | None = None
    error_text: str = ""
    gpus: tuple[Gpu, ...] = ()

    @property
    def works(self) -> bool:
        """Whether NVML was initialised and every GPU responded."""
        return self.error is None and all(gpu.error is None for gpu in self.gpus)

    @property
    def error_name(self) -> str:
        """The name of the error; empty if there is none."""
        return "" if self.error is None else error_name(self.error)


def sysfs_address(text: str) -> str:
    """A PCI address in the form of sysfs: NVML prints eight digits of domain, sysfs four or more."""
    domain, colon, device = text.strip().partition(":")
    if not colon or device.count(":") != 1 or "." not in device:
        return text.strip().lower()
    try:
        return f"{int(domain[:9], 16):04x}:{device.lower()}"
    except ValueError:
        return text.strip().lower()


_KINDS: dict[str, tuple[Any, ...]] = {
    "int": (int,),
    "str": (str,),
    "bool": (bool,),
    "float": (int, float),
    "None": (type(None),),
}


def build(cls: Any, data: Any) -> Any:
    """Build a dataclass from plain data; raise ``ValueError`` for a value of a wrong type."""
    for spec in fields(cls):
        if spec.name not in data:
            continue
        value, kind = data[spec.name], str(spec.type)
        if "int, ..." in kind:
            many = value if kind.startswith("tuple[tuple") else (value,)
            fits = all(type(item) is int for row in many for item in row)
        elif kind == "tuple[str, ...]":
            fits = isinstance(value, tuple) and all(isinstance(item, str) for item in value)
        else:
            kinds = [kind_type for word in kind.split(" | ") for kind_type in _KINDS.get(word, ())]
            fits = not kinds or (
                isinstance(value, tuple(kinds)) and (bool in kinds or not isinstance(value, bool))
            )
        if not fits:
            raise ValueError(f"{cls.__name__}.{spec.name} is {str(value)[:60]!r}")
    return cls(**data)


def _parts(cls: Any, rows: Any) -> tuple[Any, ...]:
    """Dataclasses of rows whose lists of numbers become tuples."""

    def tuples(value: Any) -> Any:
        return tuple(tuples(item) for item in value) if isinstance(value, (list, tuple)) else value

    return tuple(build(cls, {key: tuples(row[key]) for key in row}) for row in rows)


def from_json(data: object) -> NvmlFacts:
    """Read what ``nvml_facts`` printed on the node, or part of it; raise ``ValueError`` for anything else."""
    if not isinstance(data, dict):
        raise ValueError("the NVML report is not a JSON object")
    try:
        gpus = []
        for row in data.get("gpus", []):
            migs = tuple(build(MigDevice, mig) for mig in row.get("mig_devices", []))
            pci = sysfs_address(str(row.get("pci", "")))
            layout = {
                "mig_instances": _parts(MigInstance, row.get("mig_instances", [])),
                "mig_profiles": _parts(MigProfile, row.get("mig_profiles", [])),
            }
            gpu = build(Gpu, {**row, **layout, "mig_devices": migs, "pci": pci, "health": None})
            if row.get("health") is not None:
                gpu = replace(gpu, health=_parts(GpuHealth, [row["health"]])[0])
            gpus.append(gpu)
        facts: NvmlFacts = build(NvmlFacts, {**data, "gpus": tuple(gpus)})
    except (TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"the NVML report is invalid ({error})") from None
    return facts


def parse(text: str) -> NvmlFacts:
    """Read the JSON text; raise ``ValueError`` if it is not JSON."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"the NVML report is not JSON: {text[:80]!r}") from None
    return from_json(data)
