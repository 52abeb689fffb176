"""NVIDIA's VFIO manager: binds the GPUs of a node to ``vfio-pci``, for virtual machines.

Sources:
    NVIDIA/gpu-operator v26.7: assets/state-vfio-manager, controllers/object_controls.go (TransformVFIOManager).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpustate.manifests import rbac
from gpustate.manifests.components import driver
from gpustate.manifests.components.part import Json, Part
from gpustate.manifests.components.vgpu_manager import QUIET, RULES
from gpustate.manifests.containers import host_path, image_of, mount, with_secrets
from gpustate.manifests.pods import Program, daemon_set
from gpustate.manifests.settings import ClusterObjects

NODE_LABEL = "nvidia.com/gpu.deploy.vfio-manager"
_NAME = "nvidia-vfio-manager"
_BIND = "vfio-manage bind --all && while true; do sleep 86400; done"


def _objects(settings: ClusterObjects, image: str) -> Iterator[Json]:
    manager = settings.vfio_manager
    yield rbac.account(_NAME, settings.namespace)
    yield from rbac.grant(_NAME, settings.namespace, RULES, cluster=True)
    unload = image_of(settings, manager.manager, "vfioManager.driverManager")
    stop = ["/bin/sh", "-c", "vfio-manage unbind --all"]
    program = Program(
        name=_NAME,
        container=_NAME,
        account=_NAME,
        nodes={NODE_LABEL: "true"},
        command=["/bin/sh", "-c"],
        args=[_BIND],
        env={"HOST_ROOT": "/host"},
        mounts=[
            mount("host-sys", "/sys"),
            mount("host-lib-modules", "/lib/modules", readOnly=True),
            mount("host-root", "/host"),
        ],
        volumes=[
            host_path("host-sys", "/sys", "Directory"),
            host_path("host-lib-modules", "/lib/modules", "Directory"),
            host_path("run-nvidia", "/run/nvidia", "DirectoryOrCreate"),
            host_path("host-root", "/"),
        ],
        more={
            "resources": {
                "limits": {"memory": "200Mi"},
                "requests": {"cpu": "100m", "memory": "200Mi"},
            },
            "lifecycle": {"preStop": {"exec": {"command": stop}}},
        },
        security=driver.PRIVILEGED,
        selected_by="name",
        first=[driver.manager_container(manager.manager, unload, QUIET, manager.resources)],
        spec={"terminationGracePeriodSeconds": 30},
        api=True,
        gpus=False,
    )
    yield daemon_set(settings, with_secrets(manager, manager.manager), image, program)


PART = Part(
    "vfioManager",
    "vfio_manager",
    NODE_LABEL,
    "vfio",
    machines=True,
    replaces=True,
    build=_objects,
)
