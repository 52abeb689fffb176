"""NVIDIA's MIG manager: partitions the GPUs of a node by the label ``nvidia.com/mig.config``.

Sources:
    NVIDIA/gpu-operator v26.7: assets/state-mig-manager, controllers/object_controls.go (TransformMIGManager);
    NVIDIA/mig-parted v0.15: cmd/nvidia-mig-manager (its requests).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpustate.manifests import rbac
from gpustate.manifests.components.part import Json, Part
from gpustate.manifests.containers import (
    config_map,
    entrypoint,
    host_path,
    mount,
    validations,
    validations_mount,
)
from gpustate.manifests.pods import Program, daemon_set
from gpustate.manifests.settings import ClusterObjects

NODE_LABEL = "nvidia.com/gpu.deploy.mig-manager"
_NAME, _ENTRY = "nvidia-mig-manager", "nvidia-mig-manager-entrypoint"
#: Layouts that the Operator brings itself; the program falls back to them.
DEFAULT_LAYOUTS, DEFAULT_CLIENTS = "default-mig-parted-config", "default-gpu-clients"
_LOCAL = (
    rbac.rule("", "pods", "get list watch delete"),
    rbac.rule("", "configmaps", "create get list update patch"),
)
_CLUSTER = (
    rbac.rule("", "nodes", "get list watch update patch"),
    rbac.rule("", "pods", "list"),
)
_SCRIPT = "export WITH_SHUTDOWN_HOST_GPU_CLIENTS=$IS_HOST_DRIVER\nexec nvidia-mig-manager\n"


def _objects(settings: ClusterObjects, image: str) -> Iterator[Json]:
    manager = settings.mig_manager
    yield rbac.account(_NAME, settings.namespace)
    yield from rbac.grant(_NAME, settings.namespace, _LOCAL, cluster=False)
    yield from rbac.grant(_NAME, settings.namespace, _CLUSTER, cluster=True)
    yield entrypoint(settings, _ENTRY, _SCRIPT)
    yield config_map(settings, manager.layouts)
    yield config_map(settings, manager.clients)
    layouts: Json = {"name": manager.layouts.name}
    file = {"CONFIG_FILE": "/mig-parted-config/config.yaml"}
    if manager.layouts.name == DEFAULT_LAYOUTS:
        layouts["items"] = [{"key": "config.yaml", "path": "config-default.yaml"}]
        file = {"DEFAULT_CONFIG_FILE": "/mig-parted-config/config-default.yaml"}
    env = {"GPU_CLIENTS_FILE": "/gpu-clients/clients.yaml", **file}
    if settings.cdi:
        env["CDI_ENABLED"] = "true"
        env["NVIDIA_CDI_HOOK_PATH"] = settings.cdi_hook
    into = "HostToContainer"
    program = Program(
        name=_NAME,
        container=_NAME,
        account=_NAME,
        nodes={NODE_LABEL: "true"},
        command=["/bin/sh", "-c"],
        args=["/bin/entrypoint.sh"],
        env=env,
        fields={
            "NODE_NAME": "spec.nodeName",
            "POD_NAME": "metadata.name",
            "POD_NAMESPACE": "metadata.namespace",
            "DEFAULT_GPU_CLIENTS_NAMESPACE": "metadata.namespace",
        },
        mounts=[
            mount(_ENTRY, "/bin/entrypoint.sh", readOnly=True, subPath="entrypoint.sh"),
            validations_mount(),
            mount("host-sys", "/sys"),
            mount("host-root", "/host", mountPropagation=into),
            mount("gpu-clients", "/gpu-clients"),
            mount("mig-parted-config", "/mig-parted-config"),
            mount("driver-install-dir", "/driver-root", mountPropagation=into),
            mount("cdi-root", "/var/run/cdi"),
        ],
        volumes=[
            {"name": _ENTRY, "configMap": {"name": _ENTRY, "defaultMode": 0o700}},
            host_path("host-sys", "/sys", "Directory"),
            validations(),
            host_path("driver-install-dir", "/run/nvidia/driver", "DirectoryOrCreate"),
            host_path("host-root", "/"),
            {"name": "gpu-clients", "configMap": {"name": manager.clients.name}},
            {"name": "mig-parted-config", "configMap": layouts},
            host_path("cdi-root", "/var/run/cdi", "DirectoryOrCreate"),
        ],
        spec={"hostIPC": True},
        waits=True,
        host_pid=True,
        api=True,
    )
    yield daemon_set(settings, manager, image, program)


PART = Part(
    "migManager",
    "mig_manager",
    NODE_LABEL,
    "mig",
    partitions=True,
    replaces=True,
    build=_objects,
)
