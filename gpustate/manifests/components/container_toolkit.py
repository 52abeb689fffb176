"""What NVIDIA's container toolkit as containers needs of the container runtime."""

from __future__ import annotations

from pathlib import PurePosixPath

from gpustate.documents import Json
from gpustate.errors import PolicyError
from gpustate.formats.words import quote
from gpustate.manifests import workloads
from gpustate.manifests.components.part import Part
from gpustate.manifests.ownership import DEPLOY
from gpustate.manifests.settings import ClusterSettings

#: The installer restarts the runtime, and some releases of containerd then end a container that has just begun.
_SCRIPT = "sleep 5\nexec nvidia-toolkit\n"
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


def _values(settings: ClusterSettings) -> Json:
    env, folders = _of_runtime(settings)
    return {
        "entrypoint": workloads.entrypoint(_SCRIPT),
        "is_crio": settings.toolkit.runtime == "crio",
        "runtime_env": workloads.variables(env),
        "runtime_mounts": [{"name": name, "mountPath": path} for name, path, _ in folders],
        "runtime_volumes": [{"name": name, "hostPath": source} for name, _, source in folders],
    }


def _of_runtime(settings: ClusterSettings) -> tuple[dict[str, str], list[tuple[str, str, Json]]]:
    """What the installer needs of the runtime: its files, or with the NRI plugin its socket alone.

    Returns:
        Variables, and folders: name of the volume, path in the container, source on the node.

    Raises:
        PolicyError: an unknown runtime.
    """
    toolkit, variables = settings.toolkit, settings.toolkit.env
    runtime = toolkit.runtime
    if runtime not in _FILES:
        raise PolicyError(
            f"the container toolkit has no runtime {quote(runtime)}",
            fix=f"wanted {' or '.join(map(repr, _FILES))}",
        )
    env = {"RUNTIME": runtime}
    if toolkit.nri:
        socket = PurePosixPath(variables.get("NRI_SOCKET") or _NRI_SOCKET)
        env["NRI_SOCKET"] = f"{_NRI_FOLDER}{socket.name}"
        return env, [("nri-socket", _NRI_FOLDER, _created(socket))]
    if runtime == "containerd":
        env["CONTAINERD_RUNTIME_CLASS"] = settings.runtime_class
    config, drop_in, socket_path = _FILES[runtime]
    upper = runtime.upper()
    path = PurePosixPath(
        variables.get(f"{upper}_CONFIG") or variables.get("RUNTIME_CONFIG") or config
    )
    env["RUNTIME_CONFIG"] = env[f"{upper}_CONFIG"] = f"{_CONFIGS}{path.name}"
    folders = [(f"{runtime}-config", _CONFIGS, _created(path))]
    if drop_in:
        path = PurePosixPath(variables.get("RUNTIME_DROP_IN_CONFIG") or drop_in)
        env["RUNTIME_DROP_IN_CONFIG"] = f"{_DROP_INS}{path.name}"
        env["RUNTIME_DROP_IN_CONFIG_HOST_PATH"] = str(path)
        folders.append((f"{runtime}-drop-in-config", _DROP_INS, _created(path)))
    if sources := variables.get("RUNTIME_CONFIG_SOURCE"):
        env["RUNTIME_CONFIG_SOURCE"] = ",".join(map(_inside, sources.split(",")))
    if socket_path:
        path = PurePosixPath(variables.get(f"{upper}_SOCKET") or socket_path)
        env["RUNTIME_SOCKET"] = env[f"{upper}_SOCKET"] = f"{_SOCKETS}{path.name}"
        folders.append((f"{runtime}-socket", _SOCKETS, {"path": str(path.parent)}))
    return env, folders


def _created(file: PurePosixPath) -> Json:
    return {"path": str(file.parent), "type": "DirectoryOrCreate"}


def _inside(source: str) -> str:
    """A source of the runtime's configuration; files are those of the node."""
    kind, _, path = source.partition("=")
    return f"{kind}=/host/{path.lstrip('/')}" if kind == "file" and path else source


PART = Part(
    "toolkit",
    "toolkit",
    f"{DEPLOY}container-toolkit",
    "container-toolkit",
    replaces=True,
    values=_values,
)
