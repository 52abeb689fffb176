"""Whether an exporter's answer has every wanted field of every GPU and MIG instance.

The exporter leaves out what DCGM could not read, without a word, and a GPU that hangs is simply no
longer in the answer; so presence is proven for each GPU by its UUID, and for a divided GPU for each
of its GPU instances, which is what the exporter then reports.
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

#: DCGM_INT64_BLANK and DCGM_FP64_BLANK of dcgm_structs.h; the next ones say why a value is missing.
_BLANK_WHOLE = 0x7FFFFFFFFFFFFFF0
_BLANK_FLOAT = 140737488355328.0
#: Names of the label that has a GPU's UUID: of GPUs, and of their links.
_UUIDS = ("UUID", "uuid", "gpu_uuid")


@dataclass(frozen=True, slots=True)
class Missing:
    """A wanted field that is not there.

    Args:
        counter: the line of the counters file.
        gpu: index of the GPU.
        instance: id of the GPU instance; ``None``: the GPU is not divided.
        seen: what is there in its place, for the message.
    """

    counter: Counter
    gpu: int
    instance: int | None
    seen: str

    @property
    def text(self) -> str:
        """One line."""
        where = "" if self.instance is None else f" GPU instance {self.instance}"
        return f"{self.counter.field.name}: GPU {self.gpu}{where}: {self.seen}"


def missing(
    samples: Iterable[Sample], counters: Iterable[Counter], gpus: Iterable[Gpu]
) -> tuple[Missing, ...]:
    """Return every wanted field that some GPU does not have in the answer.

    Fields that a GPU is known not to be able to report are not asked of it, nor the exporter's own
    counters, which are there only once there is something to count.
    """
    asked = tuple(gpus)
    there, labels, uuids = _index(samples)
    found: list[Missing] = []
    for counter in counters:
        name = counter.field.name
        if counter.field.id is None:
            continue
        for gpu in asked:
            if lacking(counter.field, gpu):
                continue
            for instance in _instances(gpu):
                place = (gpu.uuid, instance)
                holds = labels.get(place, set()) if counter.type == "label" else set[str]()
                if name in holds or (name, gpu.uuid, instance) in there:
                    continue
                seen = _seen(place, labels, uuids)
                found.append(Missing(counter, gpu.index, instance, seen))
    return tuple(found)


def summed_up(found: Iterable[Missing]) -> tuple[str, ...]:
    """One line a field, with its first GPU: one for each GPU too would be a book."""
    lines: dict[str, list[Missing]] = {}
    for one in found:
        lines.setdefault(one.counter.field.name, []).append(one)
    return tuple(
        rows[0].text + (f" (and on {len(rows) - 1} more)" if len(rows) > 1 else "")
        for rows in lines.values()
    )


def _instances(gpu: Gpu) -> list[int | None]:
    if not gpu.mig_current:
        return [None]
    ids = {one.id for one in gpu.mig_instances}
    ids |= {one.gpu_instance for one in gpu.mig_devices if one.gpu_instance is not None}
    return [*sorted(ids)] or [None]


def says_something(value: float) -> bool:
    """Neither NaN nor one of the numbers that DCGM writes for "not known": older exporters pass them on."""
    return not (math.isnan(value) or value >= _BLANK_WHOLE or 0 <= value - _BLANK_FLOAT < 16)


_Place = tuple[str, int | None]


def _index(
    samples: Iterable[Sample],
) -> tuple[set[tuple[str, str, int | None]], dict[_Place, set[str]], set[str]]:
    """Metrics of each place, names of labels at each place, and UUIDs."""
    there: set[tuple[str, str, int | None]] = set()
    labels: dict[_Place, set[str]] = {}
    uuids: set[str] = set()
    for sample in samples:
        uuid = next((sample.labels[name] for name in _UUIDS if name in sample.labels), "")
        if not uuid or not sample.name.startswith((fields.PREFIX, "DCGM_EXP_")):
            continue
        told = sample.labels.get("GPU_I_ID", "")
        instance = int(told) if told.isascii() and told.isdecimal() and len(told) < 10 else None
        uuids.add(uuid)
        labels.setdefault((uuid, instance), set()).update(
            name for name, value in sample.labels.items() if value
        )
        if says_something(sample.value):
            there.add((sample.name, uuid, instance))
    return there, labels, uuids


def _seen(place: _Place, labels: dict[_Place, set[str]], uuids: set[str]) -> str:
    if place in labels:
        return "not in the answer, others of it are: DCGM cannot read it, or the exporter has another file"
    if place[0] in uuids:
        return (
            "the GPU is in the answer, this instance is not: restart the exporter after MIG changes"
        )
    return "the GPU is not in the answer: look for Xid lines in dmesg, then at nv-hostengine's log"
