"""The device plugin of Kata Containers: GPUs that are bound to vfio-pci become resources for pods in virtual machines.

It runs GPU feature discovery once, as a pod of its own with a GPU, and removes that pod.

Sources:
    NVIDIA/gpu-operator v26.7: assets/state-kata-device-plugin, controllers/object_controls.go (TransformKataDevicePlugin);
    NVIDIA/sandbox-device-plugin edb816e5: pkg/device_plugin/gfd.go (its requests, and what that pod runs).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpustate.manifests import rbac
from gpustate.manifests.components.part import Json, Part
from gpustate.manifests.containers import host_path, machine_waits, mount, validations, with_secrets
from gpustate.manifests.pods import Program, daemon_set
from gpustate.manifests.settings import ClusterObjects

NODE_LABEL = "nvidia.com/gpu.deploy.kata-sandbox-device-plugin"
_ACCOUNT = "nvidia-kata-sandbox-device-plugin"
_RULES = (
    rbac.rule("", "pods", "get create delete"),
    rbac.rule("nfd.k8s-sigs.io", "nodefeatures", "get create update"),
)
_NODES = (rbac.rule("", "nodes", "get"),)


def _objects(settings: ClusterObjects, image: str) -> Iterator[Json]:
    yield rbac.account(_ACCOUNT, settings.namespace)
    yield from rbac.grant(_ACCOUNT, settings.namespace, _RULES, cluster=False)
    yield from rbac.grant(_ACCOUNT, settings.namespace, _NODES, cluster=True)
    waits = machine_waits(settings, "vfio-pci")
    program = Program(
        name="nvidia-kata-sandbox-device-plugin-daemonset",
        container="nvidia-kata-sandbox-device-plugin-ctr",
        account=_ACCOUNT,
        nodes={NODE_LABEL: "true"},
        fields={
            "NODE_NAME": "spec.nodeName",
            "POD_NAMESPACE": "metadata.namespace",
            "POD_SERVICE_ACCOUNT": "spec.serviceAccountName",
        },
        mounts=[
            mount("device-plugin", "/var/lib/kubelet/device-plugins"),
            mount("cdi-root", "/var/run/cdi"),
        ],
        volumes=[
            host_path("device-plugin", "/var/lib/kubelet/device-plugins"),
            host_path("cdi-root", "/var/run/cdi", "DirectoryOrCreate"),
            *([validations()] if waits else []),
        ],
        api=True,
        first=waits,
        gpus=False,
    )
    merged = with_secrets(settings.kata_device_plugin, settings.validator)
    yield daemon_set(settings, merged, image, program)


PART = Part(
    "kataSandboxDevicePlugin",
    "kata_device_plugin",
    _objects,
    NODE_LABEL,
    machines=True,
)
