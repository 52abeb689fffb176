"""What a node tells that its labels are made of, asked in one go.

DMI and PCI configuration space need root to be read whole; probes run as root.

Sources:
    NVIDIA/k8s-device-plugin v0.20.0: internal/lm/machine-type.go, internal/vgpu/pciutil.go (what is read).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpustate.errors import ProbeError
from gpustate.model.asks import Answer, Ask
from gpustate.model.gpu_facts import GpuFacts
from gpustate.model.node import Node
from gpustate.model.quarantine import AskQuarantine, left
from gpustate.text import labels
from gpustate.text.labels import VGpu

_SCRIPT = r"""
m=; [ -r "$SYS/class/dmi/id/product_name" ] && { read -r m <"$SYS/class/dmi/id/product_name" || :; printf 'machine=%s\n' "$m"; }
for d in "$SYS"/bus/pci/devices/*; do
  v=; read -r v 2>/dev/null <"$d/vendor" || continue
  [ "$v" = 0x10de ] || continue
  printf 'config=%s\n' "$(od -An -v -tx1 -N256 "$d/config" 2>/dev/null | tr -d ' \n')"
done
:"""


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
class AskMachine(Ask[Machine]):
    """Everything of :class:`Machine`."""

    def script(self) -> str:
        return _SCRIPT

    def parse(self, answer: Answer) -> Machine:
        product: str | None = None
        configs: list[bytes] = []
        for line in answer.text.splitlines():
            key, _, value = line.partition("=")
            if key == "machine":
                product = value
            elif key == "config":
                try:
                    configs.append(bytes.fromhex(value))
                except ValueError:
                    raise ProbeError(f"PCI configuration space reads {value[:80]!r}") from None
        return Machine(product, labels.vgpus(configs))

    def stand_in(self) -> Machine:
        return Machine()


def look(node: Node) -> labels.Seen:
    """Ask a node for all of it; asks that do not depend on one another leave together."""
    facts = node.facts()
    nvml = node.ask(GpuFacts())
    machine = node.ask(AskMachine())
    held = node.ask(AskQuarantine())
    classes = {gpu.address: gpu.class_id for gpu in facts.gpus}
    return labels.Seen(left(nvml, held), classes, machine.product, machine.vgpus)


__all__ = ["AskMachine", "Machine", "look"]
