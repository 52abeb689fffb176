"""``sandboxWorkloads``: nodes whose GPUs go to virtual machines get only the states ``vfio`` and ``kata``.

A node's workload is set by its label ``nvidia.com/gpu.workload.config``, of a Node next to the file, or by
``defaultWorkload``. As with the Operator, nodes for virtual machines get no driver and no toolkit.

Surprising: of the confidential computing manager, only a mode that the file itself sets is used (the chart's
default is ``on`` for every node), and only for the host. NVIDIA's tools set the mode of the GPUs, and reset
them.

Sources:
    NVIDIA/gpu-operator v26.7: controllers/state_manager.go (labels by workload; the label is read only with
    ``sandboxWorkloads.enabled``), api/nvidia/v1/clusterpolicy_types.go (``IsEnabled``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gpustate.core.where import NOWHERE
from gpustate.errors import PolicyError
from gpustate.formats.words import quote
from gpustate.gpu_operator import nodelabels
from gpustate.gpu_operator.desired import DesiredState, Source
from gpustate.gpu_operator.helm import is_null
from gpustate.gpu_operator.nodelabels import Label

CONTAINER, PASSTHROUGH, VGPU = "container", "vm-passthrough", "vm-vgpu"
#: Sections for nodes that run containers.
_OF_CONTAINERS = (
    *("driver.", "toolkit.", "cdi.", "gfd.", "mig.", "migManager.", "devicePlugin.", "dcgm."),
    *("dcgmExporter.", "gds.", "gdrcopy.", "validator.", "operator.runtimeClass"),
)
_KUBEVIRT, _KATA = ("sandboxDevicePlugin.",), ("kataSandboxDevicePlugin.", "ccManager.")
_OF_MACHINES = (
    *("sandboxWorkloads.", "vfioManager.", "vgpuManager.", "vgpuDeviceManager."),
    *(*_KUBEVIRT, *_KATA),
)


def with_machines(
    source: Source, containers: Callable[[], Iterable[DesiredState]]
) -> tuple[DesiredState, ...]:
    """The states of all nodes, including those for virtual machines.

    Args:
        source: the document.
        containers: builds the stack of a node for containers.

    Raises:
        PolicyError: an unsupported default.
    """
    enabled = source.spec.get("sandboxWorkloads", "enabled")
    if enabled is None or not enabled.value:
        idle = tuple(s.path for s in source.settings if not s.has_effect)
        source.note_unused("sandboxWorkloads.enabled is not true", *_OF_MACHINES, exempt=idle)
        _noted(source, *_OF_MACHINES)
        return tuple(containers())
    _note_other_mode(source)
    default = source.spec.get("sandboxWorkloads", "defaultWorkload")
    workload = CONTAINER if default is None else default.value
    if workload == VGPU and not source.in_containers("vgpuManager"):
        raise PolicyError(
            f"sandboxWorkloads.defaultWorkload {workload!r} is unsupported: the Operator installs no "
            "driver on such nodes, and this policy would",
            place=source.place(default or enabled),
            fix=f"wanted {CONTAINER!r} or {PASSTHROUGH!r}, or vgpuManager in containers",
        )
    labels = tuple(_labels(source, workload))
    if workload != CONTAINER and not any(label.value == CONTAINER for label in labels):
        source.note_unused(f"sandboxWorkloads.defaultWorkload is {workload}", *_OF_CONTAINERS)
        machines = _machine_states(source) if workload == PASSTHROUGH else ()
        return (DesiredState("preflight"), *machines)
    return _mixed(source, workload, labels, tuple(containers()))


def _labels(source: Source, workload: str) -> Iterator[Label]:
    """Labels that set another workload than the default."""
    source.store.workloads = True
    for label in nodelabels.of_nodes(source.store.nodes, nodelabels.WORKLOAD):
        if label.value not in (CONTAINER, PASSTHROUGH, VGPU):
            source.notes.append(
                f"{label.place}: label {nodelabels.WORKLOAD} is {quote(label.value)}, which the Operator "
                f"treats as the default, {workload}"
            )
        elif label.value != workload:
            yield label


def _mixed(
    source: Source, workload: str, labels: tuple[Label, ...], containers: tuple[DesiredState, ...]
) -> tuple[DesiredState, ...]:
    """Both stacks, each on its nodes."""
    machines = tuple(_machine_states(source)) if workload == PASSTHROUGH or labels else ()
    stack = tuple(state for state in containers if state.state != "preflight")
    free = tuple(state for state in stack if "only" not in state.parameters)
    for state in free if workload != CONTAINER else ():
        state.set("only", NOWHERE)
    for state in machines if workload != PASSTHROUGH else ():
        state.set("only", NOWHERE)
    for label in labels:
        present, absent = {CONTAINER: (free, machines), PASSTHROUGH: (machines, stack)}.get(
            label.value, ((), (*stack, *machines))
        )
        for state in present:
            source.for_node(label, state.state, only=None)
        for state in absent:
            source.for_node(label, state.state, only=NOWHERE)
        if label.value == VGPU and not source.in_containers("vgpuManager"):
            source.notes.append(
                f"{label.place}: not carried out: label {nodelabels.WORKLOAD} {VGPU} of Node "
                f"{quote(label.node)}: host vGPUs are unsupported; this node is not changed"
            )
    return (*containers, *machines)


def _machine_states(source: Source) -> Iterator[DesiredState]:
    of_chart = source.kind == "helm" and not is_null(source.spec, "vfioManager.enabled")
    spec, place = source.spec, source.place(source.spec.get("sandboxWorkloads") or source.spec)
    passes_gpus = False
    if source.enabled("vfioManager", otherwise=of_chart):
        passes_gpus = True
    if passes_gpus and not source.in_containers("vfioManager"):
        state = DesiredState("vfio")
        state.set("devices", ["gpus"], place)
        yield state
    mode = spec.get("sandboxWorkloads", "mode")
    if mode is not None and mode.value == "kata":
        passes_gpus = True
        state = DesiredState("kata")
        state.set("runtime", _runtime(source), source.place(mode))
        yield state
    if not passes_gpus:
        source.notes.append(
            f"{place}: vfioManager.enabled is not true: GPUs are not passed to virtual machines"
        )


def _note_other_mode(source: Source) -> None:
    """Note the settings of components that run in another mode."""
    mode = source.spec.get("sandboxWorkloads", "mode")
    kata = mode is not None and mode.value == "kata"
    idle = tuple(s.path for s in source.settings if not s.has_effect)
    unused, word = (_KUBEVIRT, "kubevirt") if kata else (_KATA, "kata")
    source.note_unused(f"sandboxWorkloads.mode is not {word}", *unused, exempt=idle)
    _noted(source, *unused)


def _noted(source: Source, *sections: str) -> None:
    """Settings of these sections need no further note."""
    source.noted.update(
        s.path for s in source.settings if s.field.objects and s.path.startswith(sections)
    )


def _runtime(source: Source) -> str:
    """``confidential`` if the file itself sets the mode."""
    mode = source.spec.get("ccManager", "defaultMode")
    if not source.enabled("ccManager", otherwise=False):
        source.note_unused("ccManager.enabled is not true", "ccManager.")
        return "kata"
    if mode is None or mode.value == "off":
        return "kata"
    source.notes.append(
        f"{source.place(mode)}: ccManager.defaultMode: the host is prepared; the mode of the GPUs is set only "
        "with --cluster-objects, or with NVIDIA's gpu-admin-tools"
    )
    return "confidential"
