"""``sandboxWorkloads``: nodes whose GPUs go to virtual machines get the states ``vfio`` and ``kata`` alone.

What a node is for says its label ``nvidia.com/gpu.workload.config``, of a Node beside the file, else
``defaultWorkload``. As under the Operator no driver and no toolkit is put on a node for virtual machines.

Surprising: of the confidential computing manager only a mode that the file itself writes counts (the chart
has ``on`` for every node), and only the host's side of it: the GPUs' own mode is set by NVIDIA's tools, which
reset them.

Sources:
    NVIDIA/gpu-operator v26.7: controllers/state_manager.go (labels by workload; the label is read only with
    ``sandboxWorkloads.enabled``), api/nvidia/v1/clusterpolicy_types.go (``IsEnabled``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gpustate.errors import PolicyError
from gpustate.formats.words import shown
from gpustate.gpu_operator import nodelabels
from gpustate.gpu_operator.asked import Source, Wanted
from gpustate.gpu_operator.helm import is_null
from gpustate.gpu_operator.nodelabels import Label
from gpustate.gpu_operator.operands import NOWHERE

CONTAINER, PASSTHROUGH, VGPU = "container", "vm-passthrough", "vm-vgpu"
#: Sections of what only nodes for containers get.
_OF_CONTAINERS = (
    *("driver.", "toolkit.", "cdi.", "gfd.", "mig.", "migManager.", "devicePlugin.", "dcgm."),
    *("dcgmExporter.", "gds.", "gdrcopy.", "validator.", "operator.runtimeClass"),
)
_OF_MACHINES = ("sandboxWorkloads.", "vfioManager.", "ccManager.")


def with_machines(source: Source, containers: Callable[[], Iterable[Wanted]]) -> tuple[Wanted, ...]:
    """The states of all nodes, those for virtual machines among them.

    Args:
        source: the document.
        containers: makes the stack of a node for containers.

    Raises:
        PolicyError: a default that has no state.
    """
    enabled = source.spec.get("sandboxWorkloads", "enabled")
    if enabled is None or not enabled.value:
        silent = tuple(s.path for s in source.settings if not s.asks_for_something)
        source.not_used("sandboxWorkloads.enabled is not true", *_OF_MACHINES, but=silent)
        return tuple(containers())
    default = source.spec.get("sandboxWorkloads", "defaultWorkload")
    workload = CONTAINER if default is None else default.value
    if workload == VGPU:
        raise PolicyError(
            f"sandboxWorkloads.defaultWorkload {workload!r} has no state yet: the Operator "
            "keeps the driver off such nodes, this policy would install it",
            place=source.place(default or enabled),
            fix=f"wanted {CONTAINER!r} or {PASSTHROUGH!r}",
        )
    labels = tuple(_labels(source, workload))
    if workload == PASSTHROUGH and not any(one.value == CONTAINER for one in labels):
        source.not_used(f"sandboxWorkloads.defaultWorkload is {PASSTHROUGH}", *_OF_CONTAINERS)
        return (Wanted("preflight"), *_machine_states(source))
    return _mixed(source, workload, labels, tuple(containers()))


def _labels(source: Source, workload: str) -> Iterator[Label]:
    """Labels of nodes that are for something other than the default."""
    source.shelf.workloads = True
    for label in nodelabels.of_nodes(source.shelf.nodes, nodelabels.WORKLOAD):
        if label.value not in (CONTAINER, PASSTHROUGH, VGPU):
            source.notes.append(
                f"{label.place}: label {nodelabels.WORKLOAD} is {shown(label.value)}, which the Operator "
                f"takes for the default, {workload}"
            )
        elif label.value != workload:
            yield label


def _mixed(
    source: Source, workload: str, labels: tuple[Label, ...], containers: tuple[Wanted, ...]
) -> tuple[Wanted, ...]:
    """Both stacks, each where it belongs."""
    machines = tuple(_machine_states(source)) if workload == PASSTHROUGH or labels else ()
    stack = tuple(one for one in containers if one.state != "preflight")
    free = tuple(one for one in stack if "only" not in one.parameters)
    for one in free if workload == PASSTHROUGH else machines:
        one.give("only", NOWHERE)
    for label in labels:
        here, gone = {CONTAINER: (free, machines), PASSTHROUGH: (machines, stack)}.get(
            label.value, ((), (*stack, *machines))
        )
        for one in here:
            source.for_node(label, one.state, only=None)
        for one in gone:
            source.for_node(label, one.state, only=NOWHERE)
        if label.value == VGPU:
            source.notes.append(
                f"{label.place}: not carried out: label {nodelabels.WORKLOAD} {VGPU} of Node "
                f"{shown(label.node)}: vGPUs of a host have no state; nothing is set up there"
            )
    return (*containers, *machines)


def _machine_states(source: Source) -> Iterator[Wanted]:
    of_chart = source.kind == "helm" and not is_null(source.spec, "vfioManager.enabled")
    spec, place = source.spec, source.place(source.spec.get("sandboxWorkloads") or source.spec)
    there = False
    if source.enabled("vfioManager", otherwise=of_chart):
        there = True
        state = Wanted("vfio")
        state.give("devices", ["gpus"], place)
        yield state
    mode = spec.get("sandboxWorkloads", "mode")
    if mode is not None and mode.value == "kata":
        there = True
        state = Wanted("kata")
        state.give("runtime", _runtime(source), source.place(mode))
        yield state
    else:
        silent = tuple(s.path for s in source.settings if not s.asks_for_something)
        source.not_used("sandboxWorkloads.mode is not kata", "ccManager.", but=silent)
    if not there:
        source.notes.append(
            f"{place}: vfioManager.enabled is not true: nothing hands GPUs to virtual machines"
        )


def _runtime(source: Source) -> str:
    """``confidential`` where the file itself asks for the mode."""
    mode = source.spec.get("ccManager", "defaultMode")
    if not source.enabled("ccManager", otherwise=False):
        source.not_used("ccManager.enabled is not true", "ccManager.")
        return "kata"
    if mode is None or mode.value == "off":
        return "kata"
    source.notes.append(
        f"{source.place(mode)}: ccManager.defaultMode: the host is made ready; the GPUs' own mode is not "
        "changed, NVIDIA's own tools (gpu-admin-tools) set it"
    )
    return "confidential"
