"""Find the fields that GPUs do not support, and why.

Only definite knowledge counts: if neither NVML nor a table has data on a GPU, its fields are accepted.

Sources:
    those of :mod:`gpustate.formats.dcgm.fields`; NVIDIA's data sheets of the boards without NVLink;
    NVIDIA GPU memory error management: row remapping replaces page retirement since
    Ampere; NVIDIA/DCGM 4.6.0 tree, dcgm_fields.h: NVLink 5 has separate error counters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpustate.formats import gpu_models
from gpustate.formats.dcgm import fields
from gpustate.formats.dcgm.counters import Counter
from gpustate.formats.numbers import parse_uint
from gpustate.formats.nvml_report import Gpu

_WITHOUT_NVLINK = ("T4", "A10", "A10G", "A16", "A2", "L4", "L40", "L40S", "RTX6000ADA")
_VOLTA, _AMPERE, _HOPPER, _BLACKWELL = 7, 8, 9, 10


@dataclass(frozen=True, slots=True)
class Unfit:
    """A field that some GPUs do not support.

    Args:
        counter: the line of the counters file.
        gpus: indexes of the GPUs.
        because: the missing feature.
    """

    counter: Counter
    gpus: tuple[int, ...]
    because: str

    def text(self, place: str) -> str:
        """One line with place, field, GPUs and reason."""
        gpus = ", ".join(map(str, self.gpus))
        return f"{place}:{self.counter.line}: {self.counter.field.name}: GPU {gpus}: {self.because}"


def unfit(counters: Iterable[Counter], gpus: Iterable[Gpu]) -> tuple[Unfit, ...]:
    """Return the fields that GPUs do not support, in the order of the file."""
    all_gpus = tuple(gpus)
    unsupported: list[Unfit] = []
    for counter in counters:
        reasons: dict[str, list[int]] = {}
        for gpu in all_gpus:
            reason = lacking(counter.field, gpu)
            if reason:
                reasons.setdefault(reason, []).append(gpu.index)
        unsupported += [Unfit(counter, tuple(indexes), why) for why, indexes in reasons.items()]
    return tuple(unsupported)


def lacking(field: fields.Field, gpu: Gpu) -> str:
    """Return the feature that a GPU lacks for a field; empty if none is known to be missing."""
    major = parse_uint(gpu.compute_capability.partition(".")[0]) or 0
    if field.feature == fields.PROFILING:
        return _profiling(gpu, major)
    if field.feature == fields.ECC:
        if gpu.ecc is False:
            return "ECC is off; enable it with nvidia-smi -e 1 and a GPU reset"
        return "" if gpu.ecc or not major else "it has no ECC memory"
    if field.feature == fields.ROW_REMAP:
        reported = gpu.remap_failed is not None
        return "" if reported or not major else "row remapping needs Ampere or newer"
    if field.feature == fields.PAGE_RETIREMENT and major >= _AMPERE:
        return "it uses row remapping instead of page retirement; use the fields of remapped rows"
    if field.feature in (fields.NVLINK, fields.NVLINK_TO_4):
        return _nvlink(field, gpu, major)
    if field.feature == fields.FABRIC and major and not gpu.fabric_state:
        older = "needs Hopper or newer" if major < _HOPPER else "is in no NVLink fabric"
        return f"it {older}"
    if field.feature == fields.WHOLE_GPU and gpu.mig_current:
        return "NVML does not report it in MIG mode; use DCGM_FI_PROF_GR_ENGINE_ACTIVE"
    return ""


def _profiling(gpu: Gpu, major: int) -> str:
    if major and major < _VOLTA:
        return "profiling fields need Volta or newer"
    if "GeForce" in gpu.name:
        return "profiling fields need a data-centre GPU"
    return ""


def _nvlink(field: fields.Field, gpu: Gpu, major: int) -> str:
    model = gpu_models.name(gpu.device_id) if gpu.device_id else ""
    if model and all(variant in _WITHOUT_NVLINK for variant in model.split("/")):
        return f"{model} has no NVLink"
    if field.feature == fields.NVLINK_TO_4 and major >= _BLACKWELL:
        return "NVLink 5 has other error fields (DCGM_FI_DEV_NVLINK_COUNT_...)"
    return ""
