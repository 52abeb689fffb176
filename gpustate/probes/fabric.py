"""What a node shows of its NVLink fabric, asked in one go.

Vital product data is read slowly, word by word from the card: it is asked for only where GPUs of the
B200 generation, or none, are on PCI.

Sources:
    NVIDIA/gpu-driver-container, ubuntu24.04/nvidia-driver, and bottlerocket-os/bottlerocket-core-kit
    (``SW_MNG`` in the vital product data of a ConnectX function); kernel sysfs-bus-pci ABI: vpd.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from gpustate import shell
from gpustate.core.node import Node
from gpustate.core.planned import PlannedObservation
from gpustate.core.queries import Answer, Query
from gpustate.errors import ProbeError
from gpustate.formats import fabric, fabric_config
from gpustate.formats.numbers import parse_uint
from gpustate.probes.gpu_facts import GpuFacts

#: Counts in n the ConnectX functions that manage switches; also run by steps.
COUNT_BRIDGES = shell.load("count_bridges", "gpustate.probes")


@dataclass(frozen=True, slots=True)
class BridgesQuery(Query[int]):
    """How many functions of ConnectX cards manage NVSwitches."""

    def script(self) -> str:
        return COUNT_BRIDGES + 'echo "$n"'

    def parse(self, answer: Answer) -> int:
        count = parse_uint(answer.text.strip())
        if count is None:
            raise ProbeError(f"the search for NVSwitch bridges answered {answer.text[:80]!r}")
        return count

    def placeholder(self) -> int:
        return 0


def observe(node: Node) -> fabric.Sight:
    """Ask a node for all that decides; the asks leave together."""
    facts = node.facts()
    bridges = node.query(BridgesQuery())
    nvml = node.query(GpuFacts())
    return fabric.Sight(
        gpu_ids=tuple(gpu.device_id for gpu in facts.gpus),
        nvswitches=sum(device.is_nvswitch for device in facts.pci),
        bridges=bridges,
        nvml=nvml.error is None and bool(nvml.gpus),
        fabrics=fabric.fabrics(nvml),
    )


def pinned(
    settings: Iterable[str], observed: Mapping[str, str | None], kinds: Mapping[str, str]
) -> dict[str, object]:
    """The parameter ``config`` that restores what some keys were observed to have, as far as a policy may say that."""
    values: dict[str, str | None] = {}
    for key in settings:
        with suppress(ValueError):
            values |= fabric_config.validate({key: observed.get(key)}, kinds)
    return {"config": values} if values else {}


#: A topology in the words of the compatibility matrix.
_TOPOLOGIES = {"none": "pcie", "nvswitch": "nvswitch", "nvlink5": "nvlink5", "multi-node": "mnnvl"}


def matrix_facts(fact: str, planned: PlannedObservation) -> dict[str, object]:
    """What a state with fields ``topology`` and ``version`` declares to the compatibility matrix.

    Args:
        fact: the matrix's name of that version.
        planned: the state's observation.
    """
    topology = planned.current("topology")
    facts: dict[str, object] = {fact: planned.version("version")}
    if isinstance(topology, str):
        facts["fabric"] = _TOPOLOGIES.get(topology)
    return facts


__all__ = ["COUNT_BRIDGES", "BridgesQuery", "matrix_facts", "observe", "pinned"]
