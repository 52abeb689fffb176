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
from dataclasses import dataclass, field
from typing import Any

from gpustate import shell
from gpustate.core.node import Node
from gpustate.core.planned import PlannedObservation
from gpustate.core.queries import Answer, Query
from gpustate.errors import ProbeError
from gpustate.formats import fabric, fabric_config, systemd
from gpustate.formats.numbers import whole
from gpustate.probes.gpu_facts import GpuFacts

#: Counts in n the ConnectX functions that manage switches; also run by steps.
COUNT_BRIDGES = shell.load("count_bridges", "gpustate.probes")


@dataclass(frozen=True, slots=True)
class BridgesQuery(Query[int]):
    """How many functions of ConnectX cards manage NVSwitches."""

    def script(self) -> str:
        return COUNT_BRIDGES + 'echo "$n"'

    def parse(self, answer: Answer) -> int:
        count = whole(answer.text.strip())
        if count is None:
            raise ProbeError(f"the search for NVSwitch bridges answered {answer.text[:80]!r}")
        return count

    def placeholder(self) -> int:
        return 0


def look(node: Node) -> fabric.Sight:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """A service that a fabric needs in the version of the driver: its package, and what decides."""

    topology: str  # interconnect of the GPUs; a value of Topology
    driver: str | None  # version of the loaded driver; in an image, of the one that is installed
    needed: bool = False  # the topology, or what an image is for, wants it
    package: str | None = None  # name of the installed package
    version: str | None = None  # its full package version
    offered: tuple[tuple[str, str], ...] = ()  # name and version that repositories offer
    driver_packages: Mapping[str, str] = field(default_factory=dict[str, str])
    held: bool = False
    active: bool = False
    enabled: bool = False
    idle: str = ""  # why the service runs nothing: a foreign drop-in
    image: bool = False  # a root to be baked
    manager: str = "apt"

    def fitting(self, stem: str) -> tuple[str, str] | None:
        """The package that has the driver's version: the installed one, else an offered one."""
        installed = ((self.package, self.version),) if self.package and self.version else ()
        packages = (
            fabric.fitting(stem, self.driver, rows, self.driver_packages)
            for rows in (installed, self.offered)
        )
        return next(filter(None, packages), None)

    def unavailable(self, stem: str, reason: str) -> str | None:
        """That there is no driver, or no repository has the package in its version, with the reason why the node needs it."""
        if not self.needed or self.fitting(stem) is not None:
            return None
        if self.driver is None:
            return f"{reason} and no driver is loaded; add the state driver to the policy"
        image = (
            "name the GPUs (--gpu) if those of the image do not need it, or " if self.image else ""
        )
        return (
            f"{reason}, and no repository offers {stem} {self.driver}, the driver's version; {image}"
            "use a repository that has it (NVIDIA's own, or a mirror of it)"
        )


def follower(node: Node, sight: fabric.Sight, stem: str, unit: str) -> dict[str, Any]:
    """The fields of :class:`Follower`, except for the driver of an image."""
    facts, names = node.facts(), fabric.names(stem)
    driver = fabric.loaded_version(node.read_text("/proc/driver/nvidia/version"))
    packages = node.packages(*names, "libcuda1", "libnvidia-compute*")
    candidates = node.candidates(*names)
    service = node.units(unit).get(unit)
    installed = {name: row for name, row in packages.items() if row.installed}
    package = next((row for name, row in installed.items() if name in names), None)
    return {
        "topology": sight.topology.value,
        "driver": driver,
        "needed": fabric.may_need(sight.gpu_ids, stem)
        if facts.image
        else stem in sight.topology.packages,
        "package": package and package.name,
        "version": package and package.version,
        "offered": tuple((name, row.version) for name, rows in candidates.items() for row in rows),
        "driver_packages": {
            name: row.version for name, row in installed.items() if name not in names
        },
        "held": package is not None and package.held,
        "active": service is not None and service.active,
        "enabled": service is not None and service.enabled,
        "idle": systemd.runs_nothing(node.drop_ins(unit), unit),
        "image": facts.image,
        "manager": facts.package_manager,
    }


def pinned(
    settings: Iterable[str], observed: Mapping[str, str | None], known: Mapping[str, str]
) -> dict[str, object]:
    """The parameter ``config`` that restores what some keys were observed to have, as far as a policy may say that."""
    values: dict[str, str | None] = {}
    for key in settings:
        with suppress(ValueError):
            values |= fabric_config.validate({key: observed.get(key)}, known)
    return {"config": values} if values else {}


#: A topology in the words of the compatibility matrix.
_TOPOLOGIES = {"none": "pcie", "nvswitch": "nvswitch", "nvlink5": "nvlink5", "multi-node": "mnnvl"}


def matrix_facts(fact: str, planned: PlannedObservation) -> dict[str, object]:
    """What a state with fields ``topology`` and ``version`` declares to the compatibility matrix.

    Args:
        fact: the matrix's name of that version.
        planned: the state's observation.
    """
    topology = planned.now("topology")
    facts: dict[str, object] = {fact: planned.version("version")}
    if isinstance(topology, str):
        facts["fabric"] = _TOPOLOGIES.get(topology)
    return facts


__all__ = [
    "COUNT_BRIDGES",
    "BridgesQuery",
    "Follower",
    "follower",
    "look",
    "matrix_facts",
    "pinned",
]
