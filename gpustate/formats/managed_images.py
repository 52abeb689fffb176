"""Images of clouds and vendors that bring a driver, or an agent that installs one: how they are recognised, and what is done there.

Three kinds: where the root cannot be changed, or has no supported package manager, a node is refused. Where an agent of the
image installs the driver again by itself, the state ``driver`` is refused, and everything else works beside it. Where the
driver is only preinstalled, it is adopted or replaced like any other.

Surprising: such images answer as the distribution they are made of (``ID=ubuntu``, ``ID=amzn``). A file of theirs tells.

Sources, read on 2026-11-24:
    Bottlerocket: os-release of 1.47.0 (aws-k8s-1.34). bottlerocket-os documentation: read-only root, no shell, no package manager.
    Amazon EKS: awslabs/amazon-eks-ami, templates/al2023/provisioners/install-nvidia-driver.sh (commit 03dc33a6) and
    runtime/gpu: modules archived in /var/lib/dkms-archive, loaded by nvidia-kmod-load.service, versionlock of kernel*.
    Amazon ECS: aws/amazon-ecs-ami, scripts/enable-ecs-agent-gpu-support-al2023.sh: /etc/ecs/nvidia-kmod-load.sh.
    AKS: Azure/AgentBaker, parts/linux/cloud-init/artifacts: cse_config_gpu.sh runs an image aks-gpu-cuda(-lts), which installs
    with NVIDIA's .run installer at provisioning; os-release of Azure Linux 3.0 (ID=azurelinux) and CBL-Mariner (ID=mariner).
    GKE: GoogleCloudPlatform/container-engine-accelerators, nvidia-driver-installer/cos and /ubuntu: DaemonSets that install into
    /home/kubernetes/bin/nvidia; Container-Optimized OS: ID=cos.
    Azure HPC: Azure/azhpc-images, ubuntu/common/install_nvidiagpudriver.sh (commit 04246bca): .run installer with --dkms;
    /opt/azurehpc/component_versions.txt.
    DGX OS: /etc/dgx-release of DGX OS 5.1, 7.2.3 and 7.5.0 as published in issues and forums.
    Lambda Stack: lambdal/lambda-stack-dockerfiles: packages of archive.lambdalabs.com with pin 1001, lambda-stack-cuda.
    Red Hat CoreOS: os-release of 4.13 (ID=rhcos). Talos: siderolabs/extensions, nvidia-open-gpu-kernel-modules-lts. Flatcar:
    flatcar/sysext-bakery (ID=flatcar). Ubuntu Core: snapcore/snapd, cmd/libsnap-confine-private/classic.c (ID=ubuntu-core).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ManagedImage:
    """An image of a cloud or a vendor.

    Args:
        code: names it in ``preflight.other_systems``.
        name: for people.
        os_ids: ``ID`` of os-release.
        marker: file or folder that only this image has; empty if its ``ID`` tells.
        refusal: why gpustate does not work there, and the next move; empty if it does.
        driver_refusal: why its driver must not be changed, and the next move; empty if it may be.
        note: what is left alone or adopted.
    """

    code: str
    name: str
    os_ids: tuple[str, ...]
    marker: str = ""
    refusal: str = ""
    driver_refusal: str = ""
    note: str = ""


IMAGES = (
    ManagedImage(
        "bottlerocket",
        "Bottlerocket",
        ("bottlerocket",),
        refusal="its root is read-only and has no package manager; use the variant that has the driver "
        "(aws-k8s-VERSION-nvidia), and take the node out of the policy",
    ),
    ManagedImage(
        "cos",
        "Container-Optimized OS",
        ("cos",),
        refusal="its root is read-only and has no package manager; let GKE install the driver (gpu-driver-version=default) "
        "and take the node out of the policy, or use Ubuntu for the node pool",
    ),
    ManagedImage(
        "azurelinux",
        "Azure Linux",
        ("azurelinux", "mariner"),
        refusal="its packages come with tdnf, which is unsupported, and AKS installs its driver (cuda-open, or NVIDIA's .run "
        "installer) when it provisions a node; take the node out of the policy, or use Ubuntu for the node pool",
    ),
    ManagedImage(
        "rhcos",
        "Red Hat Enterprise Linux CoreOS",
        ("rhcos",),
        refusal="its root is an rpm-ostree image that the Machine Config Operator owns; use the GPU Operator there, and take "
        "the node out of the policy",
    ),
    ManagedImage(
        "talos",
        "Talos Linux",
        ("talos",),
        refusal="it has no shell and no package manager; add the system extension nvidia-open-gpu-kernel-modules to its "
        "image, and take the node out of the policy",
    ),
    ManagedImage(
        "flatcar",
        "Flatcar Container Linux",
        ("flatcar",),
        refusal="/usr is read-only and there is no package manager; use its NVIDIA system extension, and take the node out of "
        "the policy",
    ),
    ManagedImage(
        "ubuntu-core",
        "Ubuntu Core",
        ("ubuntu-core",),
        refusal="everything there is a snap, and there is no apt; use Ubuntu Server, or take the node out of the policy",
    ),
    ManagedImage(
        "eks",
        "Amazon EKS optimized image with NVIDIA's driver",
        ("amzn",),
        "/etc/eks/nvidia-kmod-load.sh",
        driver_refusal="nvidia-kmod-load.service loads modules from /var/lib/dkms-archive at every boot, so another driver "
        "would not survive one; remove the state driver and let the image's release choose the driver",
        note="nodeadm writes containerd's configuration, and dnf's versionlock holds kernel and driver: both are left alone",
    ),
    ManagedImage(
        "ecs",
        "Amazon ECS optimized image with NVIDIA's driver",
        ("amzn",),
        "/etc/ecs/nvidia-kmod-load.sh",
        driver_refusal="nvidia-kmod-load.service chooses and loads the modules at every boot, so another driver would not "
        "survive one; remove the state driver and let the image's release choose the driver",
        note="dnf's versionlock holds kernel and driver, and is left alone",
    ),
    ManagedImage(
        "gke",
        "GKE node",
        ("ubuntu",),
        "/home/kubernetes/bin",
        driver_refusal="GKE's DaemonSet installs a driver into /home/kubernetes/bin/nvidia; create the node pool with "
        "gpu-driver-version=disabled and set preflight.other_systems: [gke], or remove the state driver",
        note="GKE writes containerd's configuration at every boot of a new node",
    ),
    ManagedImage(
        "aks",
        "AKS node",
        ("ubuntu",),
        "/opt/azure/containers",
        driver_refusal="AKS installs a driver with NVIDIA's .run installer when it provisions a node; create the node pool "
        "with --gpu-driver none and set preflight.other_systems: [aks], or remove the state driver",
        note="AKS writes /etc/containerd/config.toml when it provisions a node, and a node image upgrade replaces the node",
    ),
    ManagedImage(
        "dgx-os",
        "DGX OS",
        ("ubuntu",),
        "/etc/dgx-release",
        note="its driver is adopted: without branch and version what is installed stays; upgrades of DGX OS bring kernel "
        "(linux-nvidia) and driver together, so upgrade the release as a whole and then set the branch",
    ),
    ManagedImage(
        "azure-hpc",
        "Azure HPC image",
        ("ubuntu", "almalinux"),
        "/opt/azurehpc/component_versions.txt",
        note="its driver was installed with NVIDIA's .run installer: set driver.leftovers: uninstall to replace it with "
        "packages, or remove the state driver",
    ),
    ManagedImage(
        "lambda-stack",
        "Lambda Stack",
        ("ubuntu",),
        "/var/lib/dpkg/info/lambda-stack-cuda.list",
        note="its packages come from archive.lambdalabs.com, pinned at 1001: remove lambda-stack-cuda and that pin before "
        "the driver comes from another repository, or remove the state driver",
    ),
)
#: What is looked for on a node.
MARKERS = tuple(image.marker for image in IMAGES if image.marker)


def recognise(os_id: str, markers: Collection[str]) -> ManagedImage | None:
    """The image of a node, by ``ID`` of os-release and those of :data:`MARKERS` that are there."""
    fitting = (image for image in IMAGES if os_id in image.os_ids)
    return next((image for image in fitting if not image.marker or image.marker in markers), None)
