"""The device plugin of KubeVirt: GPUs that are bound to vfio-pci become resources for virtual machines.

Sources:
    NVIDIA/gpu-operator v26.7: assets/state-sandbox-device-plugin, controllers/object_controls.go
    (TransformSandboxDevicePlugin); NVIDIA/kubevirt-gpu-device-plugin d26f2374: pkg/device_plugin (it does not use the API
    server).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpustate.manifests import rbac
from gpustate.manifests.components.part import Json, Part
from gpustate.manifests.containers import host_path, machine_waits, mount, validations, with_secrets
from gpustate.manifests.pods import Program, daemon_set
from gpustate.manifests.settings import ClusterObjects

NODE_LABEL = "nvidia.com/gpu.deploy.sandbox-device-plugin"
_ACCOUNT = "nvidia-sandbox-device-plugin"


def _objects(settings: ClusterObjects, image: str) -> Iterator[Json]:
    yield rbac.account(_ACCOUNT, settings.namespace)
    waits = machine_waits(settings, "vfio-pci", "vgpu-devices")
    program = Program(
        name="nvidia-sandbox-device-plugin-daemonset",
        container="nvidia-sandbox-device-plugin-ctr",
        account=_ACCOUNT,
        nodes={NODE_LABEL: "true"},
        fields={"NODE_NAME": "spec.nodeName", "POD_NAMESPACE": "metadata.namespace"},
        mounts=[
            mount("device-plugin", "/var/lib/kubelet/device-plugins"),
            mount("vfio", "/dev/vfio"),
            mount("cdi-root", "/var/run/cdi"),
        ],
        volumes=[
            host_path("device-plugin", "/var/lib/kubelet/device-plugins"),
            host_path("vfio", "/dev/vfio"),
            host_path("cdi-root", "/var/run/cdi", "DirectoryOrCreate"),
            *([validations()] if waits else []),
        ],
        first=waits,
        gpus=False,
    )
    merged = with_secrets(settings.sandbox_device_plugin, settings.validator)
    yield daemon_set(settings, merged, image, program)


PART = Part(
    "sandboxDevicePlugin",
    "sandbox_device_plugin",
    _objects,
    NODE_LABEL,
    machines=True,
)
