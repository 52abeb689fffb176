"""NVIDIA's vGPU device manager: creates vGPUs by the label ``nvidia.com/vgpu.config`` of a Node.

Sources:
    NVIDIA/gpu-operator v26.7: assets/state-vgpu-device-manager, controllers/object_controls.go
    (TransformVGPUDeviceManager); NVIDIA/vgpu-device-manager v0.4: cmd (its requests).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpustate.manifests import rbac
from gpustate.manifests.components.part import Json, Part
from gpustate.manifests.containers import (
    config_map,
    host_path,
    image_of,
    mount,
    validations,
    validations_mount,
    wait_for,
    with_secrets,
)
from gpustate.manifests.pods import Program, daemon_set
from gpustate.manifests.settings import ClusterObjects, Files

NODE_LABEL = "nvidia.com/gpu.deploy.vgpu-device-manager"
_NAME = "nvidia-vgpu-device-manager"
_PODS = (rbac.rule("", "pods", "get list watch"),)
_NODES = (rbac.rule("", "nodes", "get list watch update"),)


def _objects(settings: ClusterObjects, image: str) -> Iterator[Json]:
    manager = settings.vgpu_device_manager
    yield rbac.account(_NAME, settings.namespace)
    yield from rbac.grant(_NAME, settings.namespace, _PODS, cluster=False)
    yield from rbac.grant(_NAME, settings.namespace, _NODES, cluster=True)
    if manager.data is not None:
        yield config_map(settings, Files(manager.config, manager.data))
    into = "HostToContainer"
    program = Program(
        name=_NAME,
        container=_NAME,
        account=_NAME,
        nodes={NODE_LABEL: "true"},
        env={"CONFIG_FILE": "/vgpu-config/config.yaml", "DEFAULT_VGPU_CONFIG": manager.default},
        fields={"NAMESPACE": "metadata.namespace", "NODE_NAME": "spec.nodeName"},
        mounts=[
            mount("vgpu-config", "/vgpu-config"),
            mount("host-sys", "/sys"),
            mount("host-root", "/host", mountPropagation=into),
            mount("driver-install-dir", "/driver-root", mountPropagation=into),
        ],
        volumes=[
            {"name": "vgpu-config", "configMap": {"name": manager.config}},
            host_path("host-sys", "/sys", "Directory"),
            host_path("host-root", "/"),
            host_path("driver-install-dir", "/run/nvidia/driver", "DirectoryOrCreate"),
            validations(),
        ],
        first=[_wait(settings)],
        api=True,
        gpus=False,
    )
    yield daemon_set(settings, with_secrets(manager, settings.validator), image, program)


def _wait(settings: ClusterObjects) -> Json:
    validator = settings.validator
    return {
        "name": "vgpu-manager-validation",
        "image": image_of(settings, validator, "validator"),
        "imagePullPolicy": validator.image_pull_policy,
        "command": ["sh", "-c"],
        "args": [wait_for("vgpu-manager-ready", "host-vgpu-manager-ready")],
        "securityContext": {"privileged": True, "runAsUser": 0},
        "volumeMounts": [validations_mount("Bidirectional")],
        "resources": dict(validator.resources),
    }


PART = Part(
    "vgpuDeviceManager",
    "vgpu_device_manager",
    NODE_LABEL,
    machines=True,
    build=_objects,
)
