"""GPUs of a node that are out of use, asked of the node, what is left without them, and what lacks unasked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpustate.core.queries import Answer, Query
from gpustate.formats import keyed, quarantine
from gpustate.formats.nvml_report import NvmlFacts
from gpustate.formats.pci_gpus import PciGpu
from gpustate.formats.quarantine import Quarantine


@dataclass(frozen=True, slots=True)
class ExcludedGpusQuery(Query[Quarantine]):
    """The node's file of GPUs that are out of use, and the node's time."""

    def script(self) -> str:
        return f"{quarantine.SCRIPT}:"

    def parse(self, answer: Answer) -> Quarantine:
        keys = keyed.lists(answer.text)
        seconds = keyed.first(keys, "now")
        return quarantine.read(
            keyed.first(keys, "quarantine"), int(seconds) if seconds.isdecimal() else 0
        )

    def placeholder(self) -> Quarantine:
        return Quarantine()


def drop_excluded(nvml: NvmlFacts, held: Quarantine) -> NvmlFacts:
    """The facts without the GPUs in quarantine.

    A lost GPU may have no name any more. As many as there are entries without a GPU are taken for those.
    """
    nameless = [gpu for gpu in nvml.gpus if not gpu.uuid and not gpu.pci]
    named = [gpu for gpu in nvml.gpus if gpu not in nameless]
    unmatched = [
        entry
        for entry in held.active
        if not any((gpu.uuid and gpu.uuid == entry.uuid) or gpu.pci == entry.pci for gpu in named)
    ]
    lost = nameless if len(nameless) <= len(unmatched) else []
    return replace(
        nvml,
        gpus=tuple(
            gpu for gpu in nvml.gpus if gpu not in lost and not held.holds(gpu.uuid, gpu.pci)
        ),
    )


def unseen(gpus: Iterable[PciGpu], nvml: NvmlFacts, held: Quarantine) -> str | None:
    """Why NVML's list must not be taken for the node's GPUs: one that the driver has on PCI is not in it.

    What would be written of the rest would be the node's new truth, and the damage with it. A GPU in
    quarantine may be away, and one that NVML lists without a name is told of by its own error.
    """
    if nvml.error is not None:
        return None
    driven = [gpu.address for gpu in gpus if gpu.driver == "nvidia"]
    listed = {gpu.pci for gpu in nvml.gpus}
    away = [address for address in driven if address not in listed and not held.holds("", address)]
    if len(away) <= sum(not gpu.pci for gpu in nvml.gpus):
        return None
    return (
        f"NVML sees {len(driven) - len(away)} of the {len(driven)} GPUs that the driver has on PCI, not {', '.join(away)}: "
        "gpustate explain says why; a GPU that is to stay away is put into quarantine"
    )
