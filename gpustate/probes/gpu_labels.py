"""What a node tells that its labels are made of, asked in one go.

DMI and PCI configuration space need root to be read whole; probes run as root.

Sources:
    NVIDIA/k8s-device-plugin v0.20.0: internal/lm/machine-type.go, internal/vgpu/pciutil.go (what is read).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpustate import shell
from gpustate.core.node import Node
from gpustate.core.queries import Answer, Query
from gpustate.errors import ProbeError
from gpustate.formats import labels
from gpustate.formats.deviceplugin.model import Sharing
from gpustate.formats.labels import VGpu
from gpustate.formats.numbers import parse_uint
from gpustate.probes.excluded_gpus import ExcludedGpusQuery, drop_excluded, unseen
from gpustate.probes.gpu_facts import GpuFacts

_SCRIPT = shell.load("gpu_labels", "gpustate.probes")
#: Root reads at least so much of every device's configuration space.
_CONFIG = 256


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine around the GPUs.

    Args:
        product: as DMI has it; ``None`` where it cannot be read.
        vgpus: the vGPUs among NVIDIA's devices; ``None`` where one cannot be judged.
    """

    product: str | None = None
    vgpus: tuple[VGpu, ...] | None = ()


@dataclass(frozen=True, slots=True)
class MachineQuery(Query[Machine]):
    """Everything of :class:`Machine`."""

    def script(self) -> str:
        return _SCRIPT

    def parse(self, answer: Answer) -> Machine:
        product: str | None = None
        devices: int | None = None
        configs = b""
        for line in answer.text.splitlines():
            key, equals, value = line.partition("=")
            if key == "machine":
                product = value
            elif key == "devices":
                devices = parse_uint(value)
            elif not equals and devices is not None:
                try:
                    configs += bytes.fromhex(line)
                except ValueError:
                    raise ProbeError(f"PCI configuration space reads {line[:80]!r}") from None
        if devices is None:
            raise ProbeError("the machine's devices were not counted")
        # Where one gave less, none can be told from the next.
        if len(configs) != _CONFIG * devices:
            return Machine(product, None)
        starts = range(0, len(configs), _CONFIG)
        return Machine(product, labels.vgpus(configs[at : at + _CONFIG] for at in starts))

    def placeholder(self) -> Machine:
        return Machine()


def observe(node: Node) -> labels.LabelInput:
    """Ask a node for all of it; asks that do not depend on one another leave together."""
    facts = node.facts()
    nvml = node.query(GpuFacts())
    machine = node.query(MachineQuery())
    held = node.query(ExcludedGpusQuery())
    classes = {gpu.address: gpu.class_id for gpu in facts.gpus}
    return labels.LabelInput(drop_excluded(nvml, held), classes, machine.product, machine.vgpus)


#: Where NFD reads feature files, and ours among them.
FOLDER = "/etc/kubernetes/node-feature-discovery/features.d"
PATH = f"{FOLDER}/gpustate"


@dataclass(frozen=True, slots=True)
class DesiredLabels:
    """What the feature file should say.

    Args:
        text: ``None``: no GPUs, nothing to say.
        problem: why there is no text.
        notes: what is left out, and what a person should know.
    """

    text: str | None = None
    problem: str | None = None
    notes: tuple[str, ...] = ()


def desired_labels(node: Node, strategy: str, sharing: Sharing) -> DesiredLabels:
    """Query a node, and compute its labels.

    Args:
        node: with GPUs or without.
        strategy: ``none``, ``single`` or ``mixed``, for MIG devices.
        sharing: as the device plugin's configuration has it.
    """
    facts = node.facts()
    observed = observe(node)
    problem = unseen(facts.gpus, node.query(GpuFacts()), node.query(ExcludedGpusQuery()))
    if not (facts.gpus or observed.nvml.gpus):
        return DesiredLabels()
    if problem is not None:
        return DesiredLabels(problem=problem)
    result = labels.compute(observed, labels.Options(strategy, sharing))
    if result.problem is not None:
        return DesiredLabels(problem=result.problem)
    unfit = labels.unfit(result.values)
    left_in = {name: value for name, value in result.values.items() if name not in unfit}
    notes = [f"{name} is left out: {why}" for name, why in unfit.items()]
    return DesiredLabels(labels.as_text(left_in), notes=(*result.notes, *notes))


def find_rival(files: Mapping[str, str]) -> str | None:
    """Another feature file with a label that only GFD writes; ``None`` where there is none."""
    for path, text in files.items():
        hidden = path.rpartition("/")[2].startswith(".")
        if path != PATH and not hidden and "nvidia.com/gpu.product" in labels.parse(text):
            return path
    return None


def rival_reason(path: str) -> str:
    """Why the file is not written beside another writer's, and the next move."""
    return (
        f"{path} has labels of GPU feature discovery: two writers would take turns; stop "
        "gpu-feature-discovery on this node and remove the file, or leave this state out"
    )


__all__ = [
    "FOLDER",
    "PATH",
    "DesiredLabels",
    "Machine",
    "MachineQuery",
    "desired_labels",
    "find_rival",
    "observe",
    "rival_reason",
]
