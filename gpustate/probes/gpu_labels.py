"""What a node tells that its labels are made of, asked in one go.

DMI and PCI configuration space need root to be read whole; probes run as root.

Sources:
    NVIDIA/k8s-device-plugin v0.20.0: internal/lm/machine-type.go, internal/vgpu/pciutil.go (what is read).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpustate.core.node import Node
from gpustate.core.queries import Answer, Query
from gpustate.errors import ProbeError
from gpustate.formats import labels
from gpustate.formats.labels import VGpu
from gpustate.formats.numbers import whole
from gpustate.probes.excluded_gpus import ExcludedGpusQuery, left
from gpustate.probes.gpu_facts import GpuFacts

_SCRIPT = r"""
m=; [ -r "$SYS/class/dmi/id/product_name" ] && { read -r m <"$SYS/class/dmi/id/product_name" || :; printf 'machine=%s\n' "$m"; }
set --; for d in "$SYS"/bus/pci/devices/*; do
  v=; read -r v 2>/dev/null <"$d/vendor" || continue
  [ "$v" != 0x10de ] || set -- "$@" "$d/config"
done
echo "devices=$#"; [ $# = 0 ] || head -q -c 256 -- "$@" 2>/dev/null | od -An -v -tx1 -w256
:"""
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
                devices = whole(value)
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


def look(node: Node) -> labels.Seen:
    """Ask a node for all of it; asks that do not depend on one another leave together."""
    facts = node.facts()
    nvml = node.query(GpuFacts())
    machine = node.query(MachineQuery())
    held = node.query(ExcludedGpusQuery())
    classes = {gpu.address: gpu.class_id for gpu in facts.gpus}
    return labels.Seen(left(nvml, held), classes, machine.product, machine.vgpus)


__all__ = ["Machine", "MachineQuery", "look"]
