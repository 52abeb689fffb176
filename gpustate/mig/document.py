"""A plan as a document (``gpustate.mig-plan/1``, schema in ``gpustate/plan/schema``) and as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpustate.mig.layout import Layout
from gpustate.mig.plan import FORMAT, GpuPlan, NodePlan, Step


def as_data(plan: NodePlan) -> dict[str, Any]:
    """Turn a plan into plain JSON data."""
    return {
        "format": FORMAT,
        "config": plan.config,
        "changes": bool(plan),
        "disruption": plan.disruption.word,
        "gpus": [_gpu(gpu_plan) for gpu_plan in plan.gpus],
        **({"notes": list(plan.notes)} if plan.notes else {}),
    }


def _gpu(plan: GpuPlan) -> dict[str, Any]:
    gpu, entry = plan.gpu, plan.entry
    return {
        "index": gpu.index,
        "name": gpu.name,
        "uuid": gpu.uuid,
        "device_id": gpu.device_id,
        "profiles_from": plan.source,
        "mode": {
            "current": gpu.enabled,
            "pending": gpu.pending_mode,
            "wanted": None if entry is None else entry.enabled,
        },
        "devices": {
            "current": gpu.counts(),
            "wanted": None if entry is None else dict(entry.devices),
        },
        "disruption": plan.disruption.word,
        "why": list(plan.why),
        "kept": [
            {
                "gpu_instance": stay.instance.id,
                "profile": stay.instance.profile,
                "start": stay.instance.start,
                "compute_instances": [piece.id for piece in stay.compute],
            }
            for stay in plan.change.preserved
        ],
        "steps": [{"do": step.do, **step.data} for step in plan.steps],
        "notes": list(plan.notes),
    }


def as_text(plan: NodePlan) -> str:
    """Format a plan as text."""
    return "".join(f"{line}\n" for line in _lines(plan))


def change_lines(plan: NodePlan) -> tuple[str, ...]:
    """Changes of each GPU as in :func:`as_text`, equal for identical nodes.

    Instance ids, which differ between nodes, are left out. The disruption is shown separately.
    """
    fates: dict[tuple[str, ...], list[str]] = {}
    for gpu in plan.gpus:
        if gpu.steps:
            fate = (f"({gpu.gpu.model_name})", *_parts(gpu, numbers=False))
            fates.setdefault(fate, []).append(str(gpu.gpu.index))
    lines: list[str] = []
    for (model, *parts), numbers in fates.items():
        lines += [f"GPU {', '.join(numbers)} {model}:", *(f"    {line}" for line in parts)]
    return tuple(lines)


def layout_text(layout: Layout) -> str:
    """The layout of GPUs as text."""
    lines: list[str] = []
    for gpu in layout.gpus:
        if gpu.enabled is None:
            lines.append(f"{gpu.label()}: does not support MIG")
            continue
        mode = "on" if gpu.enabled else "off"
        if gpu.pending_mode is not gpu.enabled:
            mode += f", {'on' if gpu.pending_mode else 'off'} after a reset"
        lines.append(f"{gpu.label()}: MIG {mode}")
        for instance in gpu.instances:
            inside = ", ".join(instance.devices()) or "no compute instance"
            users = [
                *(instance.users or ()),
                *(user for part in instance.compute for user in part.users or ()),
            ]
            used = f"  in use by {'; '.join(dict.fromkeys(users))}" if users else ""
            lines.append(
                f"    {instance.profile} at {instance.start} (GPU instance {instance.id}: {inside}){used}"
            )
    return "".join(f"  {line}\n" for line in lines)


def _lines(plan: NodePlan) -> Iterator[str]:
    # GPUs with the same changes are listed together.
    fates: dict[tuple[str, ...], list[GpuPlan]] = {}
    for gpu in plan.gpus:
        fates.setdefault((gpu.gpu.model_name, *_outcome(gpu)), []).append(gpu)
    for (model, first, *details), gpus in fates.items():
        numbers = ", ".join(str(gpu.gpu.index) for gpu in gpus)
        yield f"GPU {numbers} ({model}): {first}"
        yield from (f"    {line}" for line in details)
    yield from (f"note: {note}" for note in plan.notes)
    kept_count = sum(len(gpu.change.preserved) for gpu in plan.gpus)
    words = [step.do for gpu in plan.gpus for step in gpu.steps]
    destroyed, created = (words.count("destroy-gpu-instance"), words.count("create-gpu-instance"))
    yield (
        f"{plan.config}: GPU instances kept={kept_count} destroyed={destroyed} created={created} "
        f"disruption={plan.disruption.word}"
    )


def _outcome(plan: GpuPlan) -> Iterator[str]:
    """One summary line, then the details."""
    if not plan.steps:
        yield plan.notes[0] if plan.notes else "nothing to do"
        return
    yield f"disruption: {plan.disruption.word}" if plan.disruption else "no disruption"
    yield from (f"! {text}" for text in plan.why)
    yield from _parts(plan, numbers=True)
    yield from (f"note: {text}" for text in plan.notes)


def _parts(plan: GpuPlan, *, numbers: bool) -> Iterator[str]:
    """Kept, destroyed and created instances; ``numbers``: with instance ids."""
    for stay in plan.change.preserved:
        devices = ", ".join(sorted(stay.instance.devices())) or "empty"
        number = f"GPU instance {stay.instance.id}: " if numbers else ""
        yield f"= {stay.instance.profile} at {stay.instance.start} ({number}{devices})"
    going = {instance.id for instance in plan.change.destroyed}
    for step in plan.steps:
        if not _is_implied(step, going):
            line = _step(step)
            yield line if numbers or not line.startswith("-") else line.rpartition(" (")[0]


def _is_implied(step: Step, going: set[int]) -> bool:
    """Whether a step concerns the only compute instance of a GPU instance that is listed itself."""
    if not step.do.endswith("-compute-instance") or "c." in step.data["device"]:
        return False
    number = step.data["gpu_instance"]
    return number is None or number in going


def _step(step: Step) -> str:
    data = step.data
    match step.do:
        case "set-mode":
            return f"~ MIG mode {'on' if data['enabled'] else 'off'}"
        case "reset":
            return "~ GPU reset"
        case "create-gpu-instance":
            return f"+ {data['profile']} at {data['start']}"
        case "create-compute-instance":
            return f"+   {data['device']} at {data['start']} of the instance at {data['at']}"
        case "destroy-gpu-instance":
            return f"- {data['profile']} at {data['start']} (GPU instance {data['gpu_instance']})"
        case _:
            piece, gpu_instance = data["compute_instance"], data["gpu_instance"]
            return f"-   {data['device']} (compute instance {piece} of GPU instance {gpu_instance})"
