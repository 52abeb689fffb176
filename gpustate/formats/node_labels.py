"""Labels of a Node that follow from its machine, as the kubelet and node feature discovery write them."""

from __future__ import annotations

#: Kubernetes' names for what the kernel calls the machine.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def of_machine(
    hostname: str, machine: str, system: tuple[str, str], kernel: str, family: str | None, gpu: bool
) -> dict[str, str | None]:
    """The labels of a machine; ``None``: it lacks that one.

    Args:
        hostname: of it.
        machine: ``x86_64``, ``aarch64``.
        system: ID and VERSION_ID of os-release.
        kernel: release of the one that runs.
        family: architecture of its GPUs; ``None``: unknown, or there are none.
        gpu: it has NVIDIA's GPUs.
    """
    present = "true" if gpu else None
    return {
        "kubernetes.io/hostname": hostname,
        "kubernetes.io/os": "linux",
        "nvidia.com/gpu.present": present,
        "feature.node.kubernetes.io/pci-10de.present": present,
        "nvidia.com/gpu.family": family,
        "kubernetes.io/arch": _ARCHITECTURES.get(machine),
        "feature.node.kubernetes.io/system-os_release.ID": system[0],
        "feature.node.kubernetes.io/system-os_release.VERSION_ID": system[1],
        "feature.node.kubernetes.io/kernel-version.full": kernel,
    }
