"""What a node tells of its GPUs for Slurm: near which cores they are, links, files of MIG devices.

Sources:
    kernel, sysfs-devices-system-cpu and sysfs-bus-pci (local_cpulist, numa_node);
    NVIDIA driver, /proc/driver/nvidia/capabilities: minors of the MIG access files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpustate import shell
from gpustate.core.node import Node
from gpustate.core.queries import Answer, Query
from gpustate.formats import slurm
from gpustate.formats.numbers import parse_uint
from gpustate.formats.nvml_report import Gpu, NvmlFacts
from gpustate.formats.slurm import Cpu, MigFiles, SlurmGpu
from gpustate.probes.excluded_gpus import ExcludedGpusQuery, drop_excluded, unseen
from gpustate.probes.gpu_facts import GpuFacts

_SCRIPT = shell.load("slurm_gpus", "gpustate.probes")
#: Defines ``configless UNIT``: whether slurmd gets its files from slurmctld.
CONFIGLESS = shell.load("slurm_configless", "gpustate.probes")
_CAP = re.compile(r"gpu(\d+)/mig/gi(\d+)/(?:ci(\d+)/)?access (\d+)")


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are.

    Args:
        host: the node's own name.
        cpus: those online.
        near: CPUs near a PCI device, as the kernel lists them, by address.
        caps: minor of ``nvidia-cap`` by GPU minor, GPU instance and compute instance (``None``: of the
            GPU instance itself).
        topology: what ``nvidia-smi topo -m`` prints; empty where it prints nothing.
    """

    host: str = ""
    cpus: tuple[Cpu, ...] = ()
    near: Mapping[str, str] = field(default_factory=dict[str, str])
    caps: Mapping[tuple[int, int, int | None], int] = field(
        default_factory=dict[tuple[int, int, "int | None"], int]
    )
    topology: str = ""


@dataclass(frozen=True, slots=True)
class SlurmPlacesQuery(Query[Places]):
    """Everything of :class:`Places`.

    Args:
        for_slurmd: the topology is wanted only where slurmd is installed; nvidia-smi wakes every GPU for it.
    """

    for_slurmd: bool = False

    def script(self) -> str:
        condition = "command -v slurmd >/dev/null && " if self.for_slurmd else ""
        return shell.fill(_SCRIPT, WANTED=condition)

    def parse(self, answer: Answer) -> Places:
        head, _, topology = answer.text.partition("\ntopo\n")
        host, cpus = "", list[Cpu]()
        near: dict[str, str] = {}
        caps: dict[tuple[int, int, int | None], int] = {}
        for line in head.splitlines():
            key, _, value = line.partition("=")
            if key == "host":
                host = value
            elif key == "cpu":
                numbers = [parse_uint(word) for word in value.split()]
                if len(numbers) == 4 and None not in numbers:
                    cpus.append(Cpu(*(number or 0 for number in numbers)))
            elif key == "near":
                address, _, cpulist = value.partition(" ")
                near[address] = cpulist
            elif key == "cap" and (match := _CAP.fullmatch(value)):
                instance = None if match[3] is None else int(match[3])
                caps[int(match[1]), int(match[2]), instance] = int(match[4])
        return Places(host.partition(".")[0], tuple(cpus), near, caps, topology)

    def placeholder(self) -> Places:
        return Places()


_SLURMD_CHECK = "command -v slurmd >/dev/null && echo slurmd; :"


@dataclass(frozen=True, slots=True)
class DesiredGres:
    """What Slurm's files should say of a node.

    Args:
        host: the node's name in Slurm.
        gpus: there are some.
        slurmd: it is installed.
        lines: for ``gres.conf``.
        gres: the node's ``Gres=`` in ``slurm.conf``.
        words: its ``Feature=``.
        names: of the devices in ``lines``, as dcgm-exporter has them.
        problem: why they cannot be told.
    """

    host: str = ""
    gpus: bool = False
    slurmd: bool = False
    lines: tuple[str, ...] = ()
    gres: str = ""
    words: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def node_line(self) -> str:
        """For ``slurm.conf``; empty without GPUs."""
        return slurm.node_line(self.host, self.gres, self.words) if self.lines else ""


def desired_gres(
    node: Node,
    *,
    name: str = "",
    shards: int = 0,
    features: Sequence[str] = (),
    for_slurmd: bool = True,
) -> DesiredGres:
    """Query a node, and describe its GPUs.

    Args:
        node: with GPUs or without.
        name: in Slurm; empty: its host name.
        shards: jobs that may share one GPU.
        features: further words for ``Feature=``.
        for_slurmd: NVLinks are wanted only where slurmd is installed.
    """
    facts = node.facts()
    slurmd_check = node.shell(_SLURMD_CHECK)
    every, held = node.query(GpuFacts()), node.query(ExcludedGpusQuery())
    nvml = drop_excluded(every, held)
    places = node.query(SlurmPlacesQuery(for_slurmd))
    observed = DesiredGres(
        host=name or places.host,
        gpus=bool(facts.gpus or nvml.gpus),
        slurmd="slurmd" in slurmd_check.stdout.split(),
    )
    if facts.image or not observed.gpus:
        return observed
    if not nvml.works:
        broken = nvml.error_text or nvml.error_name or "a GPU does not answer"
        return replace(observed, problem=f"NVML: {broken}; see: gpustate explain")
    slurm_gpus, problem = gpus(nvml, places)
    words = (*slurm.features(nvml), *features)
    return replace(
        observed,
        lines=tuple(slurm.gres_lines(slurm_gpus, shards=shards)),
        gres=slurm.gres_value(slurm_gpus, shards=shards),
        words=tuple(dict.fromkeys(words)),
        names=tuple(name for gpu in slurm_gpus for name in gpu.dcgm_names),
        problem=problem or unseen(facts.gpus, every, held),
    )


def node_text(line: str, include: str = "") -> str:
    """The file with the node's line, or with what slurm.conf is to include."""
    how = "In slurm.conf: Include gpustate-node.conf" if include else "For slurm.conf"
    return f"# Written by gpustate. {how}\n{include or line + chr(10)}"


def job_scripts(folder: str, names: Sequence[str]) -> tuple[str, str]:
    """Prolog and Epilog, which name the job of each GPU in a file of ``folder``."""
    prolog = shell.load("slurm_prolog", "gpustate.probes", FOLDER=folder, GPUS=" ".join(names))
    epilog = shell.load("slurm_epilog", "gpustate.probes", FOLDER=folder)
    head = "#!/bin/sh\n# Written by gpustate (state slurm-gres), for dcgm-exporter.\n"
    return head + prolog, head + epilog


def gpus(nvml: NvmlFacts, places: Places) -> tuple[tuple[SlurmGpu, ...], str | None]:
    """Describe the GPUs in PCI order, or say why that cannot be done."""
    ordered = sorted(nvml.gpus, key=lambda gpu: gpu.pci)
    linked = slurm.links(places.topology, len(ordered))
    slurm_gpus: list[SlurmGpu] = []
    for index, gpu in enumerate(ordered):
        if gpu.minor is None:
            return (), (
                f"GPU {gpu.index}: nvidia-smi alone does not tell which /dev/nvidiaX it is; install a "
                "complete python3 on the node"
            )
        migs: tuple[MigFiles, ...] | None = None
        if gpu.mig_current:
            named, why = _migs(gpu, gpu.minor, places)
            if why is not None:
                return (), why
            migs = named
        cores = slurm.core_numbers(places.cpus, slurm.expand(places.near.get(gpu.pci, "")))
        row = linked[index] if linked and migs is None else ()
        kind = slurm.type_name(gpu.name)
        slurm_gpus.append(SlurmGpu(gpu.minor, kind, cores, row, migs, gpu.index))
    return tuple(slurm_gpus), None


def _migs(gpu: Gpu, minor: int, places: Places) -> tuple[tuple[MigFiles, ...], str | None]:
    mig_files: list[MigFiles] = []
    for mig in gpu.mig_devices:
        profile = mig.name.split()[-1].replace("+", ".") if mig.name.split() else ""
        instance = mig.gpu_instance or 0
        caps = [
            places.caps.get((minor, instance, compute))
            for compute in (None, mig.compute_instance or 0)
        ]
        if not profile or mig.gpu_instance is None or None in caps:
            return (), (
                f"GPU {gpu.index}: the MIG device {mig.uuid} has no access files below "
                f"/proc/driver/nvidia/capabilities/gpu{minor}; see: nvidia-modprobe -f"
            )
        files = (f"/dev/nvidia{minor}", *(f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in caps))
        mig_files.append(MigFiles(profile, files, instance))
    return tuple(mig_files), None
