"""The systems of nodes with GPUs, by the labels of node feature discovery: images of driver containers are for one.

Sources:
    NVIDIA/gpu-operator v26.7: internal/state/nodepool.go, controllers/state_manager.go (hasNFDLabels, gpuNodeLabels).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpustate.manifests.settings import System

_FEATURE = "feature.node.kubernetes.io/"
KERNEL = f"{_FEATURE}kernel-version.full"
NAME, VERSION, MAJOR = (
    f"{_FEATURE}system-os_release.{name}" for name in ("ID", "VERSION_ID", "VERSION_ID.major")
)
PRESENT = "nvidia.com/gpu.present"
_GPU = (PRESENT, *(f"{_FEATURE}pci-{name}.present" for name in ("10de", "0302_10de", "0300_10de")))


def has_gpus(labels: Mapping[str, str]) -> bool:
    """Whether the labels of a Node say that it has GPUs."""
    return any(labels.get(name) == "true" for name in _GPU)


def system_of(labels: Mapping[str, str]) -> System | None:
    """The system of a Node; ``None`` without the labels of node feature discovery."""
    name, version = labels.get(NAME, ""), labels.get(VERSION, "")
    return System(name, version, labels.get(KERNEL, "")) if name and version else None


def systems_of(nodes: Iterable[Mapping[str, str]]) -> Iterator[System]:
    """The systems of Nodes with GPUs, by their labels, each once."""
    systems = {
        system: None for labels in nodes if has_gpus(labels) and (system := system_of(labels))
    }
    yield from sorted(systems, key=lambda system: (system.name, system.version, system.kernel))
