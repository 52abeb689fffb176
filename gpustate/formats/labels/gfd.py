"""All labels of a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpustate.formats.deviceplugin.model import GPU, NO_SHARING, Sharing
from gpustate.formats.labels import mig
from gpustate.formats.labels.names import family, product, sanitise
from gpustate.formats.labels.resource import base_labels
from gpustate.formats.labels.vgpu import VGpu
from gpustate.formats.numbers import parse_uint
from gpustate.formats.nvml_report import Gpu, NvmlFacts

_PREFIX = "nvidia.com/"
_MODES = {"030000": "graphics", "030200": "compute"}


@dataclass(frozen=True, slots=True)
class LabelInput:
    """The input for labels.

    Args:
        nvml: NVML's report.
        classes: PCI class of each GPU by address, six hexadecimal digits.
        machine: the machine's product name from DMI; ``None`` if it cannot be read.
        vgpus: vGPUs among the devices; ``None`` if unknown.
    """

    nvml: NvmlFacts
    classes: Mapping[str, str] = field(default_factory=dict[str, str])
    machine: str | None = None
    vgpus: tuple[VGpu, ...] | None = ()


@dataclass(frozen=True, slots=True)
class Options:
    """GFD's configuration.

    Args:
        mig_strategy: ``none``, ``single`` or ``mixed``.
        sharing: from the device plugin's configuration.
    """

    mig_strategy: str = "none"
    sharing: Sharing = NO_SHARING


@dataclass(frozen=True, slots=True)
class Labels:
    """The result.

    Args:
        values: by label; empty if there is a problem.
        notes: for the user.
        problem: why there are no labels, with the remedy; ``None`` if there are.
    """

    values: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: tuple[str, ...] = ()
    problem: str | None = None


def compute(node: LabelInput, options: Options) -> Labels:
    """Compute the labels; without any GPU only whether there are vGPUs, as GFD does."""
    nvml = node.nvml
    problem = _problem(nvml, options)
    if problem is not None:
        return Labels(problem=problem)
    labels: dict[str, str] = {}
    notes: list[str] = []
    if nvml.gpus:
        labels[_PREFIX + "gpu.machine"] = _machine(node.machine)
        labels |= _versions(nvml)
        capable = any(gpu.mig_current is not None for gpu in nvml.gpus)
        labels[_PREFIX + "mig.capable"] = _word(capable)
        labels[_PREFIX + "mps.capable"] = _word(options.sharing.strategy == "mps")
        labels |= _gpus(nvml.gpus, options.sharing, notes)
        if options.mig_strategy != "none":
            labels[_PREFIX + "mig.strategy"] = options.mig_strategy
            labels |= mig.labels(nvml.gpus, options.mig_strategy, options.sharing, notes)
        labels[_PREFIX + "gpu.mode"] = _mode(nvml.gpus, node.classes)
        labels |= _clique(nvml.gpus, notes)
    labels |= _virtual(node.vgpus)
    return Labels(dict(sorted(labels.items())), tuple(notes))


def _word(fact: bool) -> str:
    return "true" if fact else "false"


def _machine(product: str | None) -> str:
    """``unknown`` only if the name cannot be read; a blank name is an empty label."""
    return "unknown" if product is None else sanitise(product.strip())


def _problem(nvml: NvmlFacts, options: Options) -> str | None:
    if nvml.error is not None:
        text = nvml.error_text or nvml.error_name
        return f"NVML does not respond: {text} ({nvml.error}); run gpustate explain"
    lost = [gpu for gpu in nvml.gpus if gpu.error is not None]
    if lost:
        return f"GPU {lost[0].index} does not respond (NVML error {lost[0].error}); run gpustate explain"
    if not nvml.gpus:
        return None
    if len(nvml.driver_version.split(".")) not in (2, 3):
        return f"the driver's version is {nvml.driver_version!r}, wanted X.Y or X.Y.Z"
    if parse_uint(nvml.cuda_version.partition(".")[0]) is None:
        return "the driver's CUDA version is unknown; install python3 on the node"
    enabled = [gpu for gpu in nvml.gpus if gpu.mig_current]
    if enabled and options.sharing.strategy == "mps":
        return f"GPU {enabled[0].index} has MIG enabled, and MIG devices cannot be shared with MPS"
    return mig.problem(enabled) if options.mig_strategy != "none" else None


def _versions(nvml: NvmlFacts) -> dict[str, str]:
    major, minor, *revisions = nvml.driver_version.split(".")
    revision = revisions[0] if revisions else ""
    cuda_major, _, cuda_minor = nvml.cuda_version.partition(".")
    values = {
        # The first five are deprecated aliases that GFD still writes.
        "cuda.driver.major": major,
        "cuda.driver.minor": minor,
        "cuda.driver.rev": revision,
        "cuda.runtime.major": cuda_major,
        "cuda.runtime.minor": cuda_minor,
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        "cuda.driver-version.full": nvml.driver_version,
        "cuda.runtime-version.major": cuda_major,
        "cuda.runtime-version.minor": cuda_minor,
        "cuda.runtime-version.full": nvml.cuda_version,
    }
    return {_PREFIX + name: value for name, value in values.items()}


def _gpus(gpus: Iterable[Gpu], sharing: Sharing, notes: list[str]) -> dict[str, str]:
    """Labels of whole GPUs; if only some use MIG, those without it are labelled."""
    counts = Counter(gpu.name for gpu in gpus)
    labels: dict[str, str] = {}
    for enabled in (True, False):
        models = Counter(gpu.name for gpu in gpus if bool(gpu.mig_current) == enabled)
        if not models:
            continue
        # GFD uses the last one of an unordered map; here it is the most frequent one, then by name.
        name = min(models, key=lambda model: (-models[model], model))
        gpu = [gpu for gpu in gpus if gpu.name == name and bool(gpu.mig_current) == enabled][-1]
        labels |= base_labels(
            GPU, counts[name], None if enabled else sharing, product_parts=(name,)
        )
        labels |= _described(gpu)
    if len(counts) > 1:
        listed = ", ".join(f"{count} x {name}" for name, count in sorted(counts.items()))
        notes.append(
            f"the node has several GPU models ({listed}); the labels describe only "
            f"{labels[GPU + '.product']}, as there is one label for all"
        )
    return labels


def _described(gpu: Gpu) -> dict[str, str]:
    labels: dict[str, str] = {}
    if gpu.memory_mib:
        labels[GPU + ".memory"] = str(gpu.memory_mib)
    major, _, minor = gpu.compute_capability.partition(".")
    numbers = parse_uint(major), parse_uint(minor)
    if numbers[0] and numbers[1] is not None:
        labels[GPU + ".family"] = family(numbers[0], numbers[1])
        labels[GPU + ".compute.major"] = str(numbers[0])
        labels[GPU + ".compute.minor"] = str(numbers[1])
    return labels


def _mode(gpus: Iterable[Gpu], classes: Mapping[str, str]) -> str:
    device_classes = {classes.get(gpu.pci, "") for gpu in gpus}
    return _MODES.get(device_classes.pop(), "unknown") if len(device_classes) == 1 else "unknown"


def _clique(gpus: Iterable[Gpu], notes: list[str]) -> dict[str, str]:
    attached = {
        (gpu.fabric_cluster, gpu.fabric_clique)
        for gpu in gpus
        if gpu.fabric_state == "completed" and gpu.fabric_status == "success" and gpu.fabric_cluster
    }
    if len(attached) > 1:
        notes.append("the GPUs are in several NVLink domains or cliques: no label gpu.clique")
    if len(attached) != 1:
        return {}
    cluster, clique = attached.pop()
    return {_PREFIX + "gpu.clique": f"{cluster}.{clique or 0}"}


def _virtual(vgpus: tuple[VGpu, ...] | None) -> dict[str, str]:
    if vgpus is None:
        return {}
    labels = {_PREFIX + "vgpu.present": _word(bool(vgpus))}
    for vgpu in vgpus:
        labels[_PREFIX + "vgpu.host-driver-version"] = vgpu.host_driver_version
        labels[_PREFIX + "vgpu.host-driver-branch"] = vgpu.host_driver_branch
    return labels


__all__ = ["LabelInput", "Labels", "Options", "compute", "product"]
