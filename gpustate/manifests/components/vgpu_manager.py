"""NVIDIA's vGPU manager: the driver of a host whose GPUs are divided among virtual machines.

Sources:
    NVIDIA/gpu-operator v26.7: assets/state-vgpu-manager, controllers/object_controls.go (TransformVGPUManager).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpustate.errors import PolicyError
from gpustate.manifests import rbac
from gpustate.manifests.components import driver
from gpustate.manifests.components.part import Json, Part
from gpustate.manifests.containers import config_map, host_path, image_of, mount, with_secrets
from gpustate.manifests.pods import Program, daemon_set
from gpustate.manifests.settings import ClusterObjects

NODE_LABEL = "nvidia.com/gpu.deploy.vgpu-manager"
_NAME, _ACCOUNT = "nvidia-vgpu-manager-daemonset", "nvidia-vgpu-manager"
RULES = (
    rbac.rule("", "nodes", "get list patch watch"),
    rbac.rule("", "pods", "get list watch"),
    rbac.rule("", "pods/eviction", "create"),
)
_RULES = (*RULES, rbac.rule("apps", "daemonsets", "get"))
#: Such a node runs no pods with GPUs.
QUIET = {"ENABLE_GPU_POD_EVICTION": "false", "ENABLE_AUTO_DRAIN": "false"}


def _objects(settings: ClusterObjects, image: str) -> Iterator[Json]:
    manager = settings.vgpu_manager
    systems = {one.tag: one for one in driver.systems_of(settings)}
    if len(systems) > 1:
        raise PolicyError(
            f"vgpuManager has one image, and the nodes have {', '.join(systems)}",
            fix="list only the system of the nodes for virtual machines",
        )
    (system,) = systems.values()
    files, volumes = driver.module_files(manager.module_config)
    yield rbac.account(_ACCOUNT, settings.namespace)
    yield from rbac.grant(_ACCOUNT, settings.namespace, _RULES, cluster=True)
    if manager.module_config is not None:
        yield config_map(settings, manager.module_config)
    unload = image_of(settings, manager.manager, "vgpuManager.driverManager")
    program = Program(
        name=_NAME,
        container="nvidia-vgpu-manager-ctr",
        account=_ACCOUNT,
        nodes={NODE_LABEL: "true"},
        command=["nvidia-driver"],
        args=["init"],
        mounts=[
            mount("run-nvidia", "/run/nvidia", mountPropagation="Bidirectional"),
            mount("host-os-release", "/host-etc/os-release"),
            mount("vfio", "/dev/vfio"),
            mount("cgroup", "/sys/fs/cgroup"),
            mount("var-log", "/var/log"),
            mount("dev-log", "/dev/log"),
            mount("firmware-search-path", "/sys/module/firmware_class/parameters/path"),
            mount("nv-firmware", "/lib/firmware"),
            *files,
        ],
        volumes=[
            host_path("run-nvidia", "/run/nvidia", "DirectoryOrCreate"),
            host_path("host-os-release", "/etc/os-release"),
            host_path("cgroup", "/sys/fs/cgroup", "Directory"),
            host_path("vfio", "/dev/vfio", "Directory"),
            host_path("host-root", "/"),
            host_path("host-sys", "/sys", "Directory"),
            host_path("var-log", "/var/log", "Directory"),
            host_path("dev-log", "/dev/log"),
            host_path("firmware-search-path", "/sys/module/firmware_class/parameters/path"),
            host_path("nv-firmware", "/run/nvidia/driver/lib/firmware", "DirectoryOrCreate"),
            *volumes,
        ],
        annotations={"kubectl.kubernetes.io/default-container": "nvidia-vgpu-manager-ctr"},
        security=driver.PRIVILEGED,
        first=[driver.manager_container(manager.manager, unload, QUIET, manager.resources)],
        spec={"hostIPC": True, "terminationGracePeriodSeconds": 120},
        host_pid=True,
        api=True,
        gpus=False,
    )
    merged = with_secrets(manager, manager.manager)
    yield daemon_set(settings, merged, driver.with_system(image, system), program)


PART = Part("vgpuManager", "vgpu_manager", NODE_LABEL, machines=True, build=_objects)
