"""Check that an exporter's metrics have every field for every GPU and MIG instance.

The exporter silently omits values that DCGM could not read, and a GPU that hangs is just missing. So every
GPU is checked by its UUID, and a partitioned GPU by each of its GPU instances, which the exporter reports then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gpustate.formats.dcgm import fields
from gpustate.formats.dcgm.counters import Counter
from gpustate.formats.dcgm.exposition import Sample
from gpustate.formats.dcgm.reportable import lacking
from gpustate.formats.nvml_report import Gpu

#: DCGM_INT64_BLANK and DCGM_FP64_BLANK of dcgm_structs.h; the following values encode why a value is missing.
_BLANK_WHOLE = 0x7FFFFFFFFFFFFFF0
_BLANK_FLOAT = 140737488355328.0
#: Names of the label with a GPU's UUID: of GPUs, and of their links.
_UUIDS = ("UUID", "uuid", "gpu_uuid")


@dataclass(frozen=True, slots=True)
class Missing:
    """A missing field.

    Args:
        counter: the line of the counters file.
        gpu: index of the GPU.
        instance: id of the GPU instance; ``None`` if the GPU is not partitioned.
        hint: a hint at the cause, for the message.
    """

    counter: Counter
    gpu: int
    instance: int | None
    hint: str

    @property
    def text(self) -> str:
        """One line."""
        where = "" if self.instance is None else f" GPU instance {self.instance}"
        return f"{self.counter.field.name}: GPU {self.gpu}{where}: {self.hint}"


def find_missing(
    samples: Iterable[Sample], counters: Iterable[Counter], gpus: Iterable[Gpu]
) -> tuple[Missing, ...]:
    """Return the fields that are missing for some GPU in the metrics.

    Fields that a GPU is known not to support are not required, nor are the exporter's own counters, which
    appear only once there is something to count.
    """
    all_gpus = tuple(gpus)
    reported, labels, uuids = _index(samples)
    missing: list[Missing] = []
    for counter in counters:
        name = counter.field.name
        if counter.field.id is None:
            continue
        for gpu in all_gpus:
            if lacking(counter.field, gpu):
                continue
            for instance in _instances(gpu):
                place = (gpu.uuid, instance)
                holds = labels.get(place, set()) if counter.type == "label" else set[str]()
                if name in holds or (name, gpu.uuid, instance) in reported:
                    continue
                hint = _hint(place, labels, uuids)
                missing.append(Missing(counter, gpu.index, instance, hint))
    return tuple(missing)


def summed_up(missing: Iterable[Missing]) -> tuple[str, ...]:
    """One line per field, with its first GPU; a line per GPU would be too long."""
    lines: dict[str, list[Missing]] = {}
    for field in missing:
        lines.setdefault(field.counter.field.name, []).append(field)
    return tuple(
        rows[0].text + (f" (and on {len(rows) - 1} more)" if len(rows) > 1 else "")
        for rows in lines.values()
    )


def _instances(gpu: Gpu) -> list[int | None]:
    if not gpu.mig_current:
        return [None]
    ids = {instance.id for instance in gpu.mig_instances}
    ids |= {device.gpu_instance for device in gpu.mig_devices if device.gpu_instance is not None}
    return [*sorted(ids)] or [None]


def is_value(value: float) -> bool:
    """Whether it is a real value: neither NaN nor one of DCGM's numbers for "unknown", which old exporters export."""
    return not (math.isnan(value) or value >= _BLANK_WHOLE or 0 <= value - _BLANK_FLOAT < 16)


_Place = tuple[str, int | None]


def _index(
    samples: Iterable[Sample],
) -> tuple[set[tuple[str, str, int | None]], dict[_Place, set[str]], set[str]]:
    """Metrics and label names by place, and UUIDs."""
    reported: set[tuple[str, str, int | None]] = set()
    labels: dict[_Place, set[str]] = {}
    uuids: set[str] = set()
    for sample in samples:
        uuid = next((sample.labels[name] for name in _UUIDS if name in sample.labels), "")
        if not uuid or not sample.name.startswith((fields.PREFIX, "DCGM_EXP_")):
            continue
        text = sample.labels.get("GPU_I_ID", "")
        instance = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
        uuids.add(uuid)
        labels.setdefault((uuid, instance), set()).update(
            name for name, value in sample.labels.items() if value
        )
        if is_value(sample.value):
            reported.add((sample.name, uuid, instance))
    return reported, labels, uuids


def _hint(place: _Place, labels: dict[_Place, set[str]], uuids: set[str]) -> str:
    if place in labels:
        return "missing, though other fields are exported: DCGM cannot read it, or the exporter uses another file"
    if place[0] in uuids:
        return "the instance is missing, though its GPU is exported: restart the exporter after MIG changes"
    return "the GPU is missing: check dmesg for Xid errors, then the log of nv-hostengine"
