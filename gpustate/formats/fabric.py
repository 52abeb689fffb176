"""The services a node's NVLink topology needs: none, Fabric Manager, also the subnet manager, or IMEX.

The decision is based on PCI and NVML, not on the model's name: the same H100 exists on a card, on a board
with NVSwitches, and alone in a virtual machine.

Surprising: boards of the B200 generation show no NVSwitch on PCI. Their switches are managed through
functions of ConnectX-7 cards, which differ from the machine's other ConnectX-7 cards only in their
vital product data (``SW_MNG``). A compute tray of GB200 has neither: its switches are in other trays of
the rack and run their own manager, and Fabric Manager on the node finds nothing to do and fails.

Sources:
    NVIDIA Fabric Manager user guide; NVIDIA/gpu-driver-container, ubuntu24.04/nvidia-driver (which
    machine takes which path); NVIDIA supported-gpus.json (device ids); NVIDIA IMEX guide; Azure/AgentBaker#8839 (no Fabric Manager on GB200);
    NVIDIA driver installation guide r615 (names lose the branch with R580; Ubuntu's archive keeps it).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from gpustate.formats import dpkg, gpu_models
from gpustate.formats.drivernames import KNOWN_BRANCHES
from gpustate.formats.nvml_report import NvmlFacts

FABRIC_MANAGER, NVLSM, IMEX = "nvidia-fabricmanager", "nvlsm", "nvidia-imex"
#: The first branch whose Fabric Manager supports the switches of the B200 generation.
NVLINK5_BRANCH = 570
#: The first branch that has IMEX.
IMEX_BRANCH = 550

#: GPUs that exist on boards with NVSwitches: an image for them may need the services.
_SWITCHED = frozenset({"A100", "A800", "H100", "H800", "H20", "H200", "B200", "B300"})
_NVLINK5 = frozenset({"B200", "B300"})
_MULTI_NODE = frozenset({"GB200", "GB300"})
#: GPUs with their own CPU, linked across the nodes of a rack (GB200, GB300): the node has no switches.
_RACK_IDS = frozenset({"2941", "31c2", "31c3"})
#: :func:`summary` of a working fabric.
COMPLETE = "complete"
_NO_FABRIC = frozenset({"", "not supported", "n/a", "[n/a]"})


class Topology(Enum):
    """NVLink topology of a node, by the services it needs."""

    NONE = "none"  # cards, NVLink bridges, directly linked GPUs
    NVSWITCH = "nvswitch"  # NVSwitches on PCI
    NVLINK5 = "nvlink5"  # NVSwitches behind management functions of ConnectX cards
    MULTI_NODE = "multi-node"  # a part of a rack whose switches run their own manager
    ELSEWHERE = "elsewhere"  # switches managed by another machine, as for a virtual machine
    UNKNOWN = "unknown"  # only NVML could tell, and it does not respond

    @property
    def packages(self) -> frozenset[str]:
        """The packages that belong on the node, by their names without a branch."""
        return _PACKAGES.get(self, frozenset())


_PACKAGES: Mapping[Topology, frozenset[str]] = {
    Topology.NVSWITCH: frozenset({FABRIC_MANAGER}),
    Topology.NVLINK5: frozenset({FABRIC_MANAGER, NVLSM}),
    Topology.MULTI_NODE: frozenset({IMEX}),
}


@dataclass(frozen=True, slots=True)
class GpuFabric:
    """One GPU's fabric information from NVML; empty if there is none."""

    state: str = ""  # not started, in progress, completed
    status: str = ""  # once completed: success, or an error
    cluster: str = ""  # UUID of the NVLink domain; empty when all zero
    clique: int | None = None

    @property
    def has_fabric(self) -> bool:
        """Whether the GPU belongs to a fabric, complete or not."""
        return self.state not in _NO_FABRIC

    @property
    def complete(self) -> bool:
        """Whether CUDA can use it."""
        return self.state == "completed" and self.status == "success"


@dataclass(frozen=True, slots=True)
class Sight:
    """The input of :func:`decide`.

    Args:
        gpu_ids: PCI device ids of the GPUs.
        nvswitches: how many NVSwitches are on PCI.
        bridges: how many ConnectX functions manage switches (``SW_MNG``).
        nvml: whether NVML responded; otherwise ``fabrics`` is empty.
        fabrics: of each GPU in NVML.
    """

    gpu_ids: tuple[str, ...] = ()
    nvswitches: int = 0
    bridges: int = 0
    nvml: bool = False
    fabrics: tuple[GpuFabric, ...] = ()

    @property
    def topology(self) -> Topology:
        """The topology."""
        return decide(self)


def fabrics(nvml: NvmlFacts) -> tuple[GpuFabric, ...]:
    """The fabric information of every GPU that responded."""
    return tuple(
        GpuFabric(gpu.fabric_state, gpu.fabric_status, gpu.fabric_cluster, gpu.fabric_clique)
        for gpu in nvml.gpus
        if gpu.error is None
    )


def decide(sight: Sight) -> Topology:
    """Determine the topology; the table in docs/fabric.md has the rules, and each row is a test."""
    parts = sight.fabrics
    if _RACK_IDS & set(sight.gpu_ids):
        if not sight.nvml:
            return Topology.UNKNOWN
        # Four of them on one board are linked directly, without a fabric in NVML.
        return Topology.MULTI_NODE if any(part.has_fabric for part in parts) else Topology.NONE
    if sight.nvswitches:
        return Topology.NVSWITCH
    if sight.bridges:
        return Topology.NVLINK5
    if any(part.cluster for part in parts):
        return Topology.MULTI_NODE
    if sight.gpu_ids and any(part.has_fabric for part in parts):
        return Topology.ELSEWHERE
    return Topology.NONE


def may_need(gpu_ids: Iterable[str], package: str) -> bool:
    """Whether an image for these GPUs, or for any when none is named, may need a package."""
    models = _models(gpu_ids)
    by_package = {FABRIC_MANAGER: _SWITCHED, NVLSM: _NVLINK5, IMEX: _MULTI_NODE}
    if not models:
        return package == FABRIC_MANAGER
    return bool(models & by_package[package])


def _models(gpu_ids: Iterable[str]) -> frozenset[str]:
    return frozenset(name for gpu_id in gpu_ids for name in gpu_models.name(gpu_id).split("/"))


def summary(parts: Sequence[GpuFabric]) -> str:
    """``complete``, or the state of the fabric, such as ``in progress on 8 of 8 GPUs``.

    Empty if no GPU reports one, as before Hopper.
    """
    reporting = [part for part in parts if part.has_fabric]
    if not reporting:
        return ""
    words = Counter(
        p.state if p.state != "completed" else f"completed with {p.status or 'no status'}"
        for p in reporting
        if not p.complete
    )
    states = (f"{w} on {c} of {len(reporting)} GPUs" for w, c in sorted(words.items()))
    return ", ".join(states) or COMPLETE


def domain(parts: Sequence[GpuFabric]) -> str:
    """``CLUSTER-UUID.CLIQUE`` of the NVLink domain; empty if the GPUs have none or differ."""
    domains = {
        f"{part.cluster.lower()}.{part.clique}"
        for part in parts
        if part.complete and part.cluster and part.clique is not None
    }
    unanimous = len(domains) == 1 and all(part.complete for part in parts if part.has_fabric)
    return next(iter(domains)) if unanimous else ""


# --- packages ------------------------------------------------------------------------------------


#: Revisions of Ubuntu's archive: ``-0ubuntu0.24.04.1``.
_ARCHIVE = re.compile(r"-0ubuntu0\.")
#: Before branch 580 the rpm package has another name.
_RPM_NAMES = {FABRIC_MANAGER: ("nvidia-fabric-manager",)}


def names(stem: str) -> tuple[str, ...]:
    """All names of a package: without branch, with each supported branch, and the old rpm name."""
    return (stem, *(f"{stem}-{branch}" for branch in KNOWN_BRANCHES), *_RPM_NAMES.get(stem, ()))


def fitting(
    stem: str,
    driver: str | None,
    offered: Iterable[tuple[str, str]],
    driver_packages: Mapping[str, str],
) -> tuple[str, str] | None:
    """The package with the driver's version and origin.

    NVIDIA's repositories and Ubuntu's archive have different names and revisions for the same branch, which must
    not be mixed. The archive's fits the ``-server`` packages only. Up to 570 both have the same name, and NVIDIA's
    has another revision than its driver.

    Args:
        stem: name without a branch.
        driver: version of the driver, as ``580.65.06``.
        offered: names and full versions, best first.
        driver_packages: the driver's installed packages, name to full version.

    Returns:
        Name and full version; ``None`` if no repository has it.
    """
    revisions = set(driver_packages.values())
    archive = any(name.endswith("-server") for name in driver_packages)
    suits = [
        (name, version)
        for name, version in offered
        if driver is not None
        and dpkg.upstream_version(version) == driver
        and name in (stem, f"{stem}-{driver.partition('.')[0]}", *_RPM_NAMES.get(stem, ()))
    ]

    def rank(package: tuple[str, str]) -> tuple[bool, bool, bool]:
        name, version = package
        by_name = (name != stem) == (archive or branch(driver) < 580)
        by_origin = bool(_ARCHIVE.search(version)) == archive
        return version not in revisions, not by_origin, not by_name

    return min(suits, key=rank, default=None)


def needs_server_build(stem: str, name: str, version: str) -> bool:
    """Whether a package is of Ubuntu's archive: it depends on the driver's ``-server`` packages.

    The archive's first packages for a release have revisions such as NVIDIA's, whose names lose the branch with 580.
    """
    with_branch = name != stem and branch(version) >= 580 and "ubuntu" in version
    return bool(_ARCHIVE.search(version)) or with_branch


def branch(driver: str | None) -> int:
    """``580`` for ``580.65.06``; 0 for what is not a version."""
    head = (driver or "").partition(".")[0]
    return int(head) if head.isdecimal() and head.isascii() and len(head) < 6 else 0


def loaded_version(text: str | None) -> str | None:
    """Driver version in /proc/driver/nvidia/version; ``None`` where no driver is loaded."""
    for word in (text or "").partition("\n")[0].split():
        parts = word.split(".")
        if len(parts) >= 2 and all(part.isdigit() for part in parts) and len(parts[0]) >= 3:
            return word
    return None
