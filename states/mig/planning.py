"""From what was seen and what is wanted to a plan of the node's GPUs, and to who is in its way: pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from gpustate import PciGpu
from gpustate.errors import RefusedError
from gpustate.formats.nvml_report import Gpu
from gpustate.mig import live, saved
from gpustate.mig import plan as planner
from gpustate.mig.config import Config
from gpustate.mig.layout import GpuLayout, Layout
from gpustate.mig.plan import GpuPlan, NodePlan
from gpustate.probes.gpu_clients import GpuProcess
from gpustate.states.mig.observed import NEVER_IN_THE_WAY, RESET_CLIENTS, Observed
from gpustate.states.mig.scripts import pieces_text


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, or why there is none."""

    plan: NodePlan = field(default_factory=lambda: NodePlan("", ()))
    refusal: str | None = None
    text: str = ""  # of the layout file, once the plan is carried out


class Planner:
    """Plans for one configuration; equal questions are answered once.

    Args:
        config: what is wanted.
        clients: services that are stopped for a change: they are in nobody's way.
    """

    def __init__(self, config: Config, clients: tuple[str, ...]) -> None:
        self.config = config
        self.clients = frozenset(clients)
        self.query = lru_cache(maxsize=16)(self._compute)

    def of(self, observed: Observed) -> Planned:
        """The plan for a node."""
        return self.query(observed.gpus, observed.excluded, observed.holders)

    def _compute(
        self,
        gpus: tuple[Gpu, ...],
        excluded: tuple[int, ...],
        holders: tuple[GpuProcess, ...] | None,
    ) -> Planned:
        uses = None
        if holders is not None:
            workloads = (holder for holder in holders if holder.unit not in self.clients)
            uses = [use for holder in workloads for use in live.uses_of(holder)]
        try:
            plan = planner.plan(self.config, live.layout(gpus, (), uses, excluded))
        except RefusedError as error:
            return Planned(refusal=str(error))
        return Planned(plan, None, saved.after(plan.gpus, addresses(gpus)))


def certain_refusal(config: Config, gpus: Sequence[PciGpu]) -> str | None:
    """Why GPUs cannot have their layout, by the tables, which no driver changes; ``None`` where they do not say it."""
    layout = [
        GpuLayout(index=number, device_id=gpu.device_id, enabled=False if gpu.mig_capable else None)
        for number, gpu in enumerate(gpus)
    ]
    try:
        planner.plan(
            config, Layout(gpus=tuple(g for g in layout if g.enabled is None or g.profiles()))
        )
    except RefusedError as error:
        return str(error)
    return None


def addresses(gpus: Sequence[Gpu]) -> dict[int, str]:
    """PCI address of each GPU by its number."""
    return {number: gpu.pci for number, gpu in enumerate(gpus)}


def mode_text(gpu: GpuLayout) -> str:
    """``on``, or ``off, on after a reset``."""
    word = "on" if gpu.enabled else "off"
    if gpu.pending_mode is gpu.enabled:
        return word
    return f"{word}, {'on' if gpu.pending_mode else 'off'} after a reset"


def current_layout(
    gpus: Sequence[Gpu], excluded: Sequence[int] = ()
) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Modes and instances of the GPUs that can be divided, by number."""
    try:
        layout = live.layout(gpus, excluded=excluded)
    except RefusedError:
        return {}, {}
    able = [gpu for gpu in layout.gpus if gpu.enabled is not None]
    return (
        {str(gpu.index): mode_text(gpu) for gpu in able},
        {
            str(gpu.index): tuple(
                pieces_text(gi.profile, gi.start, (piece.slices for piece in gi.compute))
                for gi in gpu.instances
            )
            for gpu in able
        },
    )


def becomes(plan: GpuPlan) -> tuple[str, tuple[str, ...]]:
    """Mode and instances of a GPU once its plan is carried out."""
    if plan.entry is None or not plan.entry.enabled:
        return "off", ()
    rows = [
        (
            part.instance.start,
            part.instance.profile,
            [*(piece.slices for piece in part.compute), *(span.size for span in part.created)],
        )
        for part in plan.change.preserved
    ]
    rows += [
        (part.span.start, part.profile, [span.size for span in part.compute])
        for part in plan.change.created
    ]
    return "on", tuple(pieces_text(name, start, slices) for start, name, slices in sorted(rows))


def after(observed: Observed, plan: NodePlan) -> Observed:
    """The observation with modes and instances as planned."""
    modes, instances = dict(observed.modes), dict(observed.instances)
    for gpu in plan.gpus:
        if gpu.steps:
            modes[str(gpu.gpu.index)], instances[str(gpu.gpu.index)] = becomes(gpu)
    return replace(observed, modes=modes, instances=instances)


def resets(plan: NodePlan) -> list[GpuPlan]:
    """GPUs that have to be reset."""
    return [gpu for gpu in plan.gpus if any(step.do == "reset" for step in gpu.steps)]


def changes_mode(gpu: GpuPlan) -> bool:
    """The GPU's mode is not what it will be."""
    return bool(gpu.steps) and gpu.entry is not None and gpu.entry.enabled is not gpu.gpu.enabled


def takes_something(plan: NodePlan) -> bool:
    """An instance goes, or a mode changes: somebody may be in the way."""
    return any(map(_takes_something, plan.gpus))


def _takes_something(gpu: GpuPlan) -> bool:
    going = ("destroy-gpu-instance", "destroy-compute-instance")
    return changes_mode(gpu) or any(step.do in going for step in gpu.steps)


def spared_pods(observed: Observed, plan: NodePlan, clients: tuple[str, ...]) -> frozenset[str]:
    """UIDs of pods whose devices are all on GPUs of which nothing is taken, and that have no other GPU open."""
    changed = {gpu.gpu.index for gpu in plan.gpus if _takes_something(gpu)}
    unaffected = {
        uuid
        for number, gpu in enumerate(observed.gpus)
        if number not in changed
        for uuid in (gpu.uuid, *(device.uuid for device in gpu.mig_devices))
    }
    spared = {pod for pod, uuids in observed.pods.items() if unaffected.issuperset(uuids)}
    return frozenset(spared - {p.pod_uid for p, _ in in_the_way(observed, plan, clients)})


def in_the_way(
    observed: Observed, plan: NodePlan, clients: tuple[str, ...]
) -> Iterator[tuple[GpuProcess, str]]:
    """Processes that nobody stops and that hold what is to change, with what they hold."""
    stopped = {*clients, *NEVER_IN_THE_WAY}
    for gpu in plan.gpus:
        if not gpu.steps:
            continue
        minor = observed.gpus[gpu.gpu.index].minor
        reset = any(step.do == "reset" for step in gpu.steps)
        parts = set(_destroyed(gpu))
        for holder in observed.holders or ():
            if holder.unit in stopped or (not reset and holder.unit in RESET_CLIENTS):
                continue
            if changes_mode(gpu) and minor in holder.gpus:
                yield holder, gpu.gpu.label()
                continue
            for part_minor, instance, compute in holder.parts:
                if part_minor == minor and (instance, compute) in parts:
                    yield holder, f"GPU instance {instance} of {gpu.gpu.label()}"
                    break


def _destroyed(gpu: GpuPlan) -> Iterator[tuple[int, int]]:
    for instance in gpu.change.destroyed:
        yield instance.id, -1
        yield from ((instance.id, piece.id) for piece in instance.compute)
    for part in gpu.change.preserved:
        yield from ((part.instance.id, piece.id) for piece in part.destroyed)
