"""GPUs of a node that are out of use, asked of the node, and what is left without them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpustate.model.asks import Answer, Ask
from gpustate.text import quarantine
from gpustate.text.nvml_report import NvmlFacts
from gpustate.text.quarantine import Quarantine


@dataclass(frozen=True, slots=True)
class AskQuarantine(Ask[Quarantine]):
    """The node's file of GPUs that are out of use, and the node's time."""

    def script(self) -> str:
        return f"{quarantine.SCRIPT}:"

    def parse(self, answer: Answer) -> Quarantine:
        keys = dict(
            reversed([line.split("=", 1) for line in answer.text.splitlines() if "=" in line])
        )
        now = keys.get("now", "")
        return quarantine.read(keys.get("quarantine", ""), int(now) if now.isdecimal() else 0)

    def stand_in(self) -> Quarantine:
        return Quarantine()


def left(nvml: NvmlFacts, held: Quarantine) -> NvmlFacts:
    """The facts without the GPUs in quarantine.

    A lost GPU may have no name any more. As many as there are entries without a GPU are taken for those.
    """
    nameless = [gpu for gpu in nvml.gpus if not gpu.uuid and not gpu.pci]
    named = [gpu for gpu in nvml.gpus if gpu not in nameless]
    unmatched = [
        one
        for one in held.active
        if not any((gpu.uuid and gpu.uuid == one.uuid) or gpu.pci == one.pci for gpu in named)
    ]
    gone = nameless if len(nameless) <= len(unmatched) else []
    return replace(
        nvml,
        gpus=tuple(
            gpu for gpu in nvml.gpus if gpu not in gone and not held.holds(gpu.uuid, gpu.pci)
        ),
    )
