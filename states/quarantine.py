"""GPUs that are out of use are written down on the node, each with its reason and its end.

One GPU of eight that has to be replaced is no reason to stop the other seven. While it is in quarantine,
``validate`` and ``explain`` do not fail for it and run nothing on it, labels and Slurm's lines do not
count it, the CDI specification does not have it, and every plan names it. The command ``gpustate node quarantine`` writes into the same file; what it
wrote stays until its end, whatever the inventory says.

Surprising: nothing here stops a program from using the GPU. NVIDIA's device plugin knows no such list, so on
Kubernetes the scheduler has to be kept from it by other means. And an end that
has passed is a change of the next plan, not a silent return: the GPU has to prove itself again.

Sources:
    NVIDIA/k8s-device-plugin v0.20.0, api/config/v1: no list of GPUs to leave out.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from gpustate import Disruption, Node, Plan, State, Step, diff, ops
from gpustate.core.parameter_errors import pattern
from gpustate.formats import quarantine
from gpustate.formats.numbers import parse_uint
from gpustate.formats.quarantine import Entry, Quarantine
from gpustate.probes.excluded_gpus import ExcludedGpusQuery
from gpustate.probes.gpu_facts import GpuFacts

INVENTORY = "inventory"
_GPU = pattern(
    r"^(GPU-[0-9a-f-]{36}|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])$",
    "the UUID of a GPU, or its PCI address such as 0000:1b:00.0",
)


class QuarantinedGpu(BaseModel):
    """One GPU of a node: ``gpu`` is its UUID or PCI address, ``until`` an ISO date or time (UTC)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    gpu: Annotated[str, _GPU]
    reason: Annotated[str, Field(min_length=1, max_length=300)]
    until: str

    @field_validator("until")
    @classmethod
    def _a_time(cls, value: str) -> str:
        seconds(value)
        return value

    @field_validator("reason")
    @classmethod
    def _printable(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("is not a line of text")
        return value


def seconds(text: str) -> int:
    """Seconds since 1970 of an ISO date or time; UTC where it does not say.

    Raises:
        ValueError: it is none.
    """
    try:
        moment = datetime.fromisoformat(text)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text[:60]!r} is not a time; write 2027-01-31 or 2027-01-31T12:00Z"
        ) from None


@dataclass(frozen=True, slots=True)
class Observed:
    """What is written down, and which GPUs there are."""

    gpus: tuple[str, ...]  # which, until when, why and by whom
    file: str = ""  # owner and mode of the file, where they are not as written
    kept: tuple[Entry, ...] = ()  # the entries as they are
    now: int = 0  # the node's time
    known: tuple[tuple[str, str], ...] = ()  # UUID and address of each GPU
    whole: bool = True  # every GPU answers, so one that is not known is not there
    image: bool = False


class GpusQuarantined(State[Observed]):
    """GPUs that are out of use are named on the node, with reason and end.

    Args:
        gpus: the GPUs of a node that are out of use, each with ``gpu`` (UUID or PCI address),
            ``reason`` and ``until``; given by node or group in the inventory.

    Disruption:
        ``NONE``: programs that use such a GPU are not stopped.
    """

    name: ClassVar[str] = "quarantine"
    labels: ClassVar[Mapping[str, str]] = {
        "gpus": "excluded GPUs",
        "file": "record of excluded GPUs",
    }
    after: ClassVar[tuple[str, ...]] = ("driver", "mig")
    known_after: ClassVar[tuple[str, ...]] = ("driver",)
    worst: ClassVar[Disruption] = Disruption.NONE
    stable: ClassVar[tuple[str, ...] | None] = ("gpus", "file")

    gpus: Annotated[tuple[QuarantinedGpu, ...], Field(strict=False)] = ()

    @field_validator("gpus")
    @classmethod
    def _once(cls, value: tuple[QuarantinedGpu, ...]) -> tuple[QuarantinedGpu, ...]:
        names = [gpu.gpu for gpu in value]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} is listed twice; remove one of the two")
        return value

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        nvml = node.query(GpuFacts())
        held = node.query(ExcludedGpusQuery())
        stats = node.stats(f"$G/{quarantine.FILE}").values()
        clock = node.shell("date +%s").stdout if self.gpus else ""
        time_s = held.node_time or parse_uint(clock.strip()) or 0
        lines = (held.problem,) if held.problem else _lines(held.entries, time_s)
        return Observed(
            gpus=lines,
            file="; ".join(problem for stat in stats if (problem := stat.otherwise(private=True))),
            kept=held.entries,
            now=time_s,
            known=tuple((gpu.uuid, gpu.pci) for gpu in nvml.gpus if gpu.uuid or gpu.pci),
            whole=nvml.works,
            image=facts.image,
        )

    def _entries(self, observed: Observed) -> tuple[Entry, ...]:
        """Entries of commands that go on, and the inventory's; an end that has passed is left out."""
        entries = [e for e in observed.kept if e.by != INVENTORY and e.until > observed.now]
        if self.absent or observed.image:
            return tuple(entries)
        for gpu in self.gpus:
            until = seconds(gpu.until)
            if until > observed.now:
                entries.append(self._entry(gpu, until, observed))
        return tuple(entries)

    def _entry(self, gpu: QuarantinedGpu, until: int, observed: Observed) -> Entry:
        before = next((e for e in observed.kept if gpu.gpu in (e.uuid, e.pci)), None)
        uuid, pci = next((pair for pair in observed.known if gpu.gpu in pair), ("", ""))
        if before is not None:  # a GPU that is lost has no UUID any more
            uuid, pci = uuid or before.uuid, pci or before.pci
        if gpu.gpu.startswith("GPU-"):
            uuid = gpu.gpu
        else:
            pci = gpu.gpu
        same = before is not None and before.by == INVENTORY
        since = before.since if before is not None and same else observed.now
        return Entry(uuid, pci, gpu.reason, until, since, INVENTORY)

    def desired(self, observed: Observed) -> Observed:
        return replace(observed, gpus=_lines(self._entries(observed), observed.now), file="")

    def refuse(self, observed: Observed) -> str | None:
        if self.absent or observed.image or not (observed.whole and observed.known):
            return None
        present = {name for pair in observed.known for name in pair}
        present |= {name for entry in observed.kept for name in (entry.uuid, entry.pci)}
        for gpu in self.gpus:
            if gpu.gpu not in present and seconds(gpu.until) > observed.now:
                names = ", ".join(uuid or pci for uuid, pci in observed.known)
                return f"no GPU {gpu.gpu} on this node; its GPUs are {names}"
        return None

    def plan(self, observed: Observed) -> Plan:
        lines = [f"GPU in quarantine: {entry.text}" for entry in self._entries(observed)]
        over = [
            gpu for gpu in self.gpus if not self.absent and 0 < seconds(gpu.until) <= observed.now
        ]
        lines += [
            f"the quarantine of {gpu.gpu} in the inventory ended at {gpu.until}; remove it"
            for gpu in over
        ]
        return replace(diff(observed, self.desired(observed)), warnings=tuple(lines))

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if plan.fields & {"gpus", "file"}:
            yield write(self._entries(observed))

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        """Nothing: an image has no GPUs."""
        return iter(())


def write(entries: tuple[Entry, ...]) -> Step:
    """Write the file, or remove it where there is nothing to say."""
    path = f'"$G/{quarantine.FILE}"'
    if not entries:
        return ops.Run(
            f'rm -f {path}; forget_original {path}; sync "$G"; effect removed',
            "end the quarantine of GPUs",
            timeout=30,
        )
    data = base64.encodebytes(quarantine.as_text(entries).encode()).decode("ascii")
    text = f"base64 -d <<'END' | put {path} 0600 root:root\n{data}END\nforget_original {path}"
    return ops.Run(text, "record which GPUs are in quarantine", timeout=30)


def _lines(entries: tuple[Entry, ...], time_s: int) -> tuple[str, ...]:
    held = Quarantine(entries, time_s)
    return tuple(sorted(e.text + ("" if e in held.active else ", ended") for e in entries))
