"""The device plugin, and the MPS daemon on nodes that share GPUs by MPS.

Sources:
    NVIDIA/gpu-operator v26.7: assets/state-device-plugin, assets/state-mps-control-daemon,
    controllers/object_controls.go (TransformDevicePlugin);
    NVIDIA/k8s-device-plugin v0.18.0: deployments/helm, cmd/nvidia-device-plugin/main.go (variables),
    deployments/container/Dockerfile (busybox), internal/rm/health.go (health is of Xids alone).
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from gpustate import shell
from gpustate.manifests import rbac
from gpustate.manifests.components.part import Json, Part
from gpustate.manifests.containers import (
    DRIVER,
    entrypoint,
    host_path,
    mount,
    validations,
    validations_mount,
)
from gpustate.manifests.ownership import DEVICE_PLUGIN
from gpustate.manifests.pods import Program, daemon_set, mig_variables
from gpustate.manifests.settings import ClusterObjects

NAME = DEVICE_PLUGIN
NODE_LABEL = "nvidia.com/gpu.deploy.device-plugin"
_ACCOUNT = "nvidia-device-plugin"
#: Set by GPU feature discovery.
_MPS_CAPABLE = "nvidia.com/mps.capable"
_MPS_DAEMON = "mps-control-daemon"
_ENTRY = "nvidia-device-plugin-entrypoint"
#: Where the driver is. The validator as containers writes that into a file.
_HOST_DRIVER = {"NVIDIA_DRIVER_ROOT": "/", "CONTAINER_DRIVER_ROOT": "/host"}
#: The plugin has no list of GPUs to leave out; it offers those that NVML lists in its container.
_WITHOUT_QUARANTINED = shell.load("without_quarantined", "gpustate.manifests", HOST="/host")


def shares_by_mps(settings: ClusterObjects) -> bool:
    """Whether a configuration shares GPUs by MPS, which needs a daemon on the nodes."""
    data = settings.config.data if settings.config is not None else None
    for text in (data or {}).values():
        try:
            parsed = yaml.safe_load(text)
        except yaml.YAMLError:
            continue  # the reader of the policy reports it
        sharing = parsed.get("sharing") if isinstance(parsed, dict) else None
        if isinstance(sharing, dict) and sharing.get("mps"):
            return True
    return False


def _objects(settings: ClusterObjects, image: str) -> Iterator[Json]:
    yield rbac.account(_ACCOUNT, settings.namespace)
    if settings.validator.enabled:
        yield entrypoint(settings, _ENTRY, "exec nvidia-device-plugin\n")
    if settings.config is not None:
        yield from rbac.grant(_ACCOUNT, settings.namespace, (rbac.READ_NODES,), cluster=True)
    yield daemon_set(settings, settings.device_plugin, image, _plugin(settings))
    if shares_by_mps(settings):
        yield daemon_set(settings, settings.device_plugin, image, _mps_daemon(settings, image))


def _plugin(settings: ClusterObjects) -> Program:
    env = {
        "PASS_DEVICE_SPECS": "true",
        "FAIL_ON_INIT_ERROR": "true",
        "DEVICE_LIST_STRATEGY": settings.device_list_strategy,
        "DEVICE_ID_STRATEGY": "uuid",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "all",
        **({} if settings.validator.enabled else _HOST_DRIVER),
        "MPS_ROOT": settings.mps_root,
    }
    if settings.cdi:
        env["CDI_ENABLED"] = "true"
        env["CDI_ANNOTATION_PREFIX"] = "cdi.k8s.io/"
        env["NVIDIA_CDI_HOOK_PATH"] = settings.cdi_hook
    if settings.gdrcopy:
        env["GDRCOPY_ENABLED"] = "true"
    if settings.gds:
        env["GDS_ENABLED"] = "true"
        env["MOFED_ENABLED"] = "true"
    begin, mounts, volumes = "nvidia-device-plugin", list[Json](), list[Json]()
    if settings.validator.enabled:
        begin = "/bin/entrypoint.sh"
        mounts = [
            mount(_ENTRY, begin, readOnly=True, subPath="entrypoint.sh"),
            validations_mount(),
            mount("driver-install-dir", "/driver-root", mountPropagation="HostToContainer"),
        ]
        volumes = [
            {"name": _ENTRY, "configMap": {"name": _ENTRY, "defaultMode": 0o700}},
            validations(),
            host_path("driver-install-dir", DRIVER, "DirectoryOrCreate"),
        ]
    return Program(
        name=NAME,
        container="nvidia-device-plugin",
        command=["sh", "-c", _WITHOUT_QUARANTINED, "sh", begin],
        account=_ACCOUNT,
        nodes={NODE_LABEL: "true"},
        env=env | mig_variables(settings),
        mounts=[
            mount("device-plugin", "/var/lib/kubelet/device-plugins"),
            mount("host-root", "/host", readOnly=True, mountPropagation="HostToContainer"),
            mount("cdi-root", "/var/run/cdi"),
            mount("mps-root", "/mps"),
            mount("mps-shm", "/dev/shm"),
            *mounts,
        ],
        volumes=[
            host_path("device-plugin", "/var/lib/kubelet/device-plugins"),
            host_path("host-root", "/"),
            host_path("cdi-root", "/var/run/cdi", "DirectoryOrCreate"),
            *_mps_volumes(settings),
            *volumes,
        ],
        waits=True,
        reloads="nvidia-device-plugin",
    )


def _mps_daemon(settings: ClusterObjects, image: str) -> Program:
    """The MPS control daemon, on nodes that GPU feature discovery has labelled."""
    mount_shm = {
        "name": "mps-control-daemon-mounts",
        "image": image,
        "imagePullPolicy": settings.device_plugin.image_pull_policy,
        "command": [_MPS_DAEMON, "mount-shm"],
        "securityContext": {"privileged": True},
        "volumeMounts": [mount("mps-root", "/mps", mountPropagation="Bidirectional")],
    }
    return Program(
        name="nvidia-device-plugin-mps-control-daemon",
        container="mps-control-daemon-ctr",
        command=[_MPS_DAEMON],
        account=_ACCOUNT,
        nodes={NODE_LABEL: "true", _MPS_CAPABLE: "true"},
        env={
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
            **mig_variables(settings),
        },
        fields={"NODE_NAME": "spec.nodeName"},
        mounts=[mount("mps-root", "/mps"), mount("mps-shm", "/dev/shm")],
        volumes=_mps_volumes(settings),
        first=[mount_shm],
        waits=True,
        reloads=f"/usr/bin/{_MPS_DAEMON}",
        own=False,
        host_pid=True,
    )


def _mps_volumes(settings: ClusterObjects) -> list[Json]:
    return [
        host_path("mps-root", settings.mps_root, "DirectoryOrCreate"),
        host_path("mps-shm", f"{settings.mps_root}/shm"),
    ]


PART = Part("devicePlugin", "device_plugin", NODE_LABEL, build=_objects)
