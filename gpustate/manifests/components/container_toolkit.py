"""NVIDIA's container toolkit as containers: they install it on the nodes, and configure the container runtime.

Sources:
    NVIDIA/gpu-operator v26.7: assets/state-container-toolkit, controllers/object_controls.go (TransformToolkit,
    transformForRuntime, getRuntimeConfigFiles).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from gpustate.errors import PolicyError
from gpustate.formats.words import quote
from gpustate.manifests import rbac
from gpustate.manifests.components.part import Json, Part
from gpustate.manifests.containers import (
    driver_check,
    driver_volumes,
    entrypoint,
    host_path,
    mount,
    validations_mount,
    with_secrets,
)
from gpustate.manifests.pods import Program, daemon_set
from gpustate.manifests.settings import ClusterObjects

NODE_LABEL = "nvidia.com/gpu.deploy.container-toolkit"
_NAME, _ACCOUNT = "nvidia-container-toolkit-daemonset", "nvidia-container-toolkit"
_ENTRY = "nvidia-container-toolkit-entrypoint"
_RULES = (rbac.rule("apps", "daemonsets", "list"),)
#: The installer restarts the runtime, and some releases of containerd then end a container that has just begun.
_SCRIPT = "sleep 5\nexec nvidia-toolkit\n"
_HOOKS = "/run/containers/oci/hooks.d"
_CONFIGS, _DROP_INS, _SOCKETS = (
    "/runtime/config-dir/",
    "/runtime/config-dir.d/",
    "/runtime/sock-dir/",
)
_NRI_SOCKET, _NRI_FOLDER = "/var/run/nri/nri.sock", "/runtime/nri-sock-dir/"
#: Per runtime: configuration, drop-in file, socket; empty: none.
_FILES = {
    "containerd": (
        "/etc/containerd/config.toml",
        "/etc/containerd/conf.d/99-nvidia.toml",
        "/run/containerd/containerd.sock",
    ),
    "crio": ("/etc/crio/config.toml", "/etc/crio/crio.conf.d/99-nvidia.conf", ""),
    "docker": ("/etc/docker/daemon.json", "", "/var/run/docker.sock"),
}


def _objects(settings: ClusterObjects, image: str) -> Iterator[Json]:
    toolkit = settings.toolkit
    yield rbac.account(_ACCOUNT, settings.namespace)
    yield from rbac.grant(_ACCOUNT, settings.namespace, _RULES, cluster=False)
    yield entrypoint(settings, _ENTRY, _SCRIPT)
    env = {
        "ROOT": "/usr/local/nvidia",
        "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND": "management.nvidia.com/gpu",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "TOOLKIT_PID_FILE": "/run/nvidia/toolkit/toolkit.pid",
        **_of_cdi(settings),
    }
    if toolkit.install_dir:
        env["ROOT"] = toolkit.install_dir
    env |= toolkit.env
    mounts = [
        mount(_ENTRY, "/bin/entrypoint.sh", readOnly=True, subPath="entrypoint.sh"),
        mount("toolkit-root", "/run/nvidia/toolkit"),
        validations_mount(),
        mount("toolkit-install-dir", toolkit.install_dir),
        mount("crio-hooks", "/usr/share/containers/oci/hooks.d"),
        mount("driver-install-dir", "/driver-root", mountPropagation="HostToContainer"),
        mount("host-root", "/host", readOnly=True, mountPropagation="HostToContainer"),
        mount("cdi-root", "/var/run/cdi"),
    ]
    hooks = "/usr/share/containers/oci/hooks.d" if toolkit.runtime == "crio" else _HOOKS
    volumes = [
        {"name": _ENTRY, "configMap": {"name": _ENTRY, "defaultMode": 0o700}},
        host_path("toolkit-root", "/run/nvidia/toolkit", "DirectoryOrCreate"),
        *driver_volumes(),
        host_path("toolkit-install-dir", toolkit.install_dir),
        host_path("crio-hooks", hooks),
        host_path("cdi-root", "/var/run/cdi", "DirectoryOrCreate"),
    ]
    _of_runtime(settings, env, mounts, volumes)
    check = driver_check(settings)
    program = Program(
        name=_NAME,
        container="nvidia-container-toolkit-ctr",
        account=_ACCOUNT,
        nodes={NODE_LABEL: "true"},
        command=["/bin/sh", "-c"],
        args=["/bin/entrypoint.sh"],
        env=env,
        fields={"NRI_NAMESPACE": "metadata.namespace"},
        mounts=mounts,
        volumes=volumes,
        security={"privileged": True, "seLinuxOptions": {"level": "s0"}},
        first=[check],
        own=False,
        host_pid=True,
        api=True,
        gpus=False,
    )
    yield daemon_set(settings, with_secrets(toolkit, settings.validator), image, program)


def _of_cdi(settings: ClusterObjects) -> dict[str, str]:
    if not settings.cdi:
        return {"CRIO_CONFIG_MODE": "hook"} if settings.toolkit.runtime == "crio" else {}
    return {
        "CDI_ENABLED": "true",
        "NVIDIA_RUNTIME_SET_AS_DEFAULT": "false",
        "NVIDIA_CONTAINER_RUNTIME_MODE": "cdi",
        "CRIO_CONFIG_MODE": "config",
        **({"ENABLE_NRI_PLUGIN": "true"} if settings.toolkit.nri else {}),
    }


def _of_runtime(
    settings: ClusterObjects, env: dict[str, str], mounts: list[Json], volumes: list[Json]
) -> None:
    """Add what the installer needs of the runtime: its files, or with the NRI plugin its socket alone.

    Raises:
        PolicyError: an unknown runtime.
    """
    toolkit = settings.toolkit
    runtime = toolkit.runtime
    if runtime not in _FILES:
        raise PolicyError(
            f"the container toolkit has no runtime {quote(runtime)}",
            fix=f"wanted {' or '.join(map(repr, _FILES))}",
        )
    env["RUNTIME"] = runtime
    if toolkit.nri:
        socket = PurePosixPath(env.get("NRI_SOCKET") or _NRI_SOCKET)
        env["NRI_SOCKET"] = f"{_NRI_FOLDER}{socket.name}"
        mounts.append(mount("nri-socket", _NRI_FOLDER))
        volumes.append(host_path("nri-socket", str(socket.parent), "DirectoryOrCreate"))
        return
    if runtime == "containerd":
        env["CONTAINERD_RUNTIME_CLASS"] = settings.runtime_class
    config, drop_in, socket_path = _FILES[runtime]
    upper = runtime.upper()
    config = env.get(f"{upper}_CONFIG") or env.get("RUNTIME_CONFIG") or config
    path = PurePosixPath(config)
    env["RUNTIME_CONFIG"] = env[f"{upper}_CONFIG"] = f"{_CONFIGS}{path.name}"
    mounts.append(mount(f"{runtime}-config", _CONFIGS))
    volumes.append(host_path(f"{runtime}-config", str(path.parent), "DirectoryOrCreate"))
    if drop_in:
        path = PurePosixPath(env.get("RUNTIME_DROP_IN_CONFIG") or drop_in)
        env["RUNTIME_DROP_IN_CONFIG"] = f"{_DROP_INS}{path.name}"
        env["RUNTIME_DROP_IN_CONFIG_HOST_PATH"] = str(path)
        name = f"{runtime}-drop-in-config"
        mounts.append(mount(name, _DROP_INS))
        volumes.append(host_path(name, str(path.parent), "DirectoryOrCreate"))
    if sources := env.get("RUNTIME_CONFIG_SOURCE"):
        env["RUNTIME_CONFIG_SOURCE"] = ",".join(map(_inside, sources.split(",")))
    if socket_path:
        path = PurePosixPath(env.get(f"{upper}_SOCKET") or socket_path)
        env["RUNTIME_SOCKET"] = env[f"{upper}_SOCKET"] = f"{_SOCKETS}{path.name}"
        mounts.append(mount(f"{runtime}-socket", _SOCKETS))
        volumes.append(host_path(f"{runtime}-socket", str(path.parent)))


def _inside(source: str) -> str:
    """A source of the runtime's configuration; files are those of the node."""
    kind, _, path = source.partition("=")
    return f"{kind}=/host/{path.lstrip('/')}" if kind == "file" and path else source


PART = Part("toolkit", "toolkit", NODE_LABEL, "container-toolkit", replaces=True, build=_objects)
