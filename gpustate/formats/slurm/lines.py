"""Lines of ``gres.conf``, and of ``slurm.conf`` for a node."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpustate.formats.labels.names import family
from gpustate.formats.numbers import parse_uint
from gpustate.formats.nvml_report import NvmlFacts

_MAKER = re.compile(r"^(?:NVIDIA|Tesla|Quadro|GeForce)\s+", re.IGNORECASE)
_VERSIONED = re.compile(r"driver\d{3}|cuda\d+\.\d+|cc\d+\.\d|gpumem\d+g")
_UNFIT = re.compile(r"[^a-z0-9_.]+")


@dataclass(frozen=True, slots=True)
class MigFiles:
    """One MIG device: its profile, the device nodes that a job needs, and the number of its GPU instance."""

    profile: str
    files: tuple[str, ...]
    instance: int = 0


@dataclass(frozen=True, slots=True)
class SlurmGpu:
    """One GPU.

    Args:
        minor: the X of ``/dev/nvidiaX``; it need not be the GPU's place in PCI order.
        type_name: as jobs request it: ``h100``.
        cores: Slurm's numbers of the local cores; empty for any.
        links: NVLinks to each GPU in PCI order; empty if there are none.
        migs: its MIG devices; ``None`` if MIG is disabled.
        index: NVML's, and DCGM's.
    """

    minor: int
    type_name: str
    cores: str = ""
    links: tuple[int, ...] = ()
    migs: tuple[MigFiles, ...] | None = None
    index: int = 0

    @property
    def dcgm_names(self) -> tuple[str, ...]:
        """How dcgm-exporter's files of jobs name it, or its MIG devices: ``0``, ``0.7``."""
        if self.migs is None:
            return (str(self.index),)
        return tuple(f"{self.index}.{mig.instance}" for mig in self.migs)


def type_name(name: str) -> str:
    """``h100`` for ``NVIDIA H100 80GB HBM3``, ``rtx_pro_6000`` for the RTX PRO 6000."""
    model, before = name.strip(), ""
    while model != before:
        model, before = _MAKER.sub("", model), model
    words: list[str] = []
    for word in model.split():
        words.append(word.partition("-")[0])
        if any(letter.isdigit() for letter in word):
            break
    return _UNFIT.sub("_", "_".join(words).lower()).strip("_") or "gpu"


def gres_lines(gpus: Sequence[SlurmGpu], *, shards: int = 0) -> list[str]:
    """One line per device, GPUs in PCI order as Slurm numbers them.

    Args:
        gpus: in PCI order.
        shards: jobs that may share a GPU; 0: GPUs are not shared.
    """
    lines: list[str] = []
    for gpu in gpus:
        near = f" Cores={gpu.cores}" if gpu.cores else ""
        if gpu.migs is not None:
            for mig in gpu.migs:
                kind = f"{gpu.type_name}_{mig.profile}"
                lines.append(f"Name=gpu Type={kind} MultipleFiles={','.join(mig.files)}{near}")
            continue
        linked = f" Links={','.join(map(str, gpu.links))}" if gpu.links else ""
        lines.append(f"Name=gpu Type={gpu.type_name} File=/dev/nvidia{gpu.minor}{near}{linked}")
    if shards:
        lines += [
            f"Name=shard Count={shards} File=/dev/nvidia{gpu.minor}"
            for gpu in gpus
            if gpu.migs is None
        ]
    return lines


def gres_value(gpus: Iterable[SlurmGpu], *, shards: int = 0) -> str:
    """The value of ``Gres=`` in ``slurm.conf``: ``gpu:h100:8``."""
    counts: Counter[str] = Counter()
    whole_gpus = 0
    for gpu in gpus:
        if gpu.migs is None:
            counts[gpu.type_name] += 1
            whole_gpus += 1
        else:
            counts.update(f"{gpu.type_name}_{mig.profile}" for mig in gpu.migs)
    parts = [f"gpu:{kind}:{count}" for kind, count in sorted(counts.items())]
    if shards and whole_gpus:
        parts.append(f"shard:{shards * whole_gpus}")
    return ",".join(parts)


def gpu_types(gres: str) -> set[str]:
    """The types of GPUs in a value of ``Gres=``: ``h100`` of ``gpu:h100:8``."""
    return set(re.findall(r"gpu:([^:,()]+):\d", gres))


def features(nvml: NvmlFacts) -> tuple[str, ...]:
    """Features for ``--constraint`` of jobs; of all GPUs if they differ."""
    words: list[str] = ["gpu"] if nvml.gpus else []
    for gpu in nvml.gpus:
        words.append(type_name(gpu.name))
        major, _, minor = gpu.compute_capability.partition(".")
        numbers = parse_uint(major), parse_uint(minor)
        if numbers[0] and numbers[1] is not None:
            words.append(family(numbers[0], numbers[1]).replace("-", "_"))
            words.append(f"cc{numbers[0]}.{numbers[1]}")
        if gpu.memory_mib:
            words.append(f"gpumem{round(gpu.memory_mib / 1024)}g")
        if gpu.mig_current:
            words.append("mig")
        if gpu.fabric_state == "completed":
            words.append("nvlink_fabric")
    if nvml.gpus and nvml.driver_version:
        words.append(f"driver{nvml.driver_version.partition('.')[0]}")
    if nvml.gpus and nvml.cuda_version:
        words.append(f"cuda{nvml.cuda_version}")
    return tuple(dict.fromkeys(words))


def with_features(configured: str, right: Sequence[str]) -> tuple[str, ...]:
    """The right features of a node, and what else is configured but for versions and sizes of such as these."""
    foreign = (word for word in configured.split(",") if word and not _VERSIONED.fullmatch(word))
    return tuple(dict.fromkeys((*right, *foreign)))


def node_line(node: str, gres: str, words: Sequence[str]) -> str:
    """The ``NodeName`` line that ``slurm.conf`` needs for the node, without its CPUs and memory."""
    parts = [f"NodeName={node}"]
    if gres:
        parts.append(f"Gres={gres}")
    if words:
        parts.append(f"Feature={','.join(words)}")
    return " ".join(parts)
