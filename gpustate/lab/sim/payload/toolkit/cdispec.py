"""Simulated: builds a CDI specification from what the node really shows at this moment.

GPUs come from NVML, libraries are those whose file name ends in exactly the version that NVML says,
device nodes are those that exist. So a specification made too early, or before an upgrade, is wrong
in the same way as a real one.

Sources:
    NVIDIA/nvidia-container-toolkit 1.18, pkg/nvcdi: contents and order of a specification.
    CDI specification 0.5.0.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import re
from typing import Any

LIBRARY_DIRECTORY = "/usr/lib/x86_64-linux-gnu"
COMMON_NODES = ("/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl")
BINARIES = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
SOCKETS = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket", "/tmp/nvidia-mps")
#: A container has its own file tree, and the stub libraries read these.
LAB_MOUNTS = ("/etc/gpustate-lab", "/run/gpustate-lab")
HOOK = "/usr/bin/nvidia-cdi-hook"
SPEC_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
ERRORS = {
    9: "ERROR_DRIVER_NOT_LOADED",
    12: "ERROR_LIBRARY_NOT_FOUND",
    15: "ERROR_GPU_IS_LOST",
    18: "ERROR_LIB_RM_VERSION_MISMATCH",
}


class NvmlError(Exception):
    """What go-nvml calls the NVML code."""


class Nvml:
    """The few NVML calls a specification needs."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            raise NvmlError("failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND") from error
        self.call("nvmlInit_v2", what="failed to initialize NVML: ")

    def call(self, name: str, *arguments: Any, what: str = "") -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise NvmlError(what + ERRORS.get(code, f"NVML error {code}"))

    def text(self, name: str, *before: Any) -> str:
        buffer = ctypes.create_string_buffer(128)
        self.call(name, *before, buffer, ctypes.c_uint(128))
        return buffer.value.decode()

    def number(self, name: str, *before: Any) -> int:
        value = ctypes.c_uint()
        self.call(name, *before, ctypes.byref(value))
        return value.value

    def gpus(self) -> list[dict[str, Any]]:
        found = []
        for index in range(self.number("nvmlDeviceGetCount_v2")):
            handle = ctypes.c_void_p()
            self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            found.append({
                "index": index,
                "minor": self.number("nvmlDeviceGetMinorNumber", handle),
                "uuid": self.text("nvmlDeviceGetUUID", handle),
                "mig": self.mig_devices(handle),
            })  # fmt: skip
        return found

    def mig_devices(self, gpu: ctypes.c_void_p) -> list[dict[str, Any]] | None:
        """The MIG devices of a GPU; ``None`` when it is not divided."""
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        try:
            self.call("nvmlDeviceGetMigMode", gpu, ctypes.byref(current), ctypes.byref(pending))
        except NvmlError:
            return None
        if not current.value:
            return None
        found = []
        for index in range(self.number("nvmlDeviceGetMaxMigDeviceCount", gpu)):
            mig = ctypes.c_void_p()
            try:
                self.call(
                    "nvmlDeviceGetMigDeviceHandleByIndex",
                    gpu,
                    ctypes.c_uint(index),
                    ctypes.byref(mig),
                )
            except NvmlError:
                continue
            found.append({
                "index": index,
                "uuid": self.text("nvmlDeviceGetUUID", mig),
                "instance": self.number("nvmlDeviceGetGpuInstanceId", mig),
                "compute": self.number("nvmlDeviceGetComputeInstanceId", mig),
            })  # fmt: skip
        return found


def libraries(version: str) -> list[str]:
    found = glob.glob(f"{LIBRARY_DIRECTORY}/*.so.{version}")
    return sorted(path for path in found if not os.path.islink(path))


def soname_links(files: list[str]) -> list[str]:
    """``libcuda.so.1::/usr/lib/.../libcuda.so`` as the create-symlinks hook takes them."""
    return (
        [f"libcuda.so.1::{LIBRARY_DIRECTORY}/libcuda.so"]
        if any("libcuda.so" in one for one in files)
        else []
    )


def build(
    *,
    vendor: str = "nvidia.com",
    kind: str = "gpu",
    strategies: tuple[str, ...] = ("index", "uuid"),
    with_all: bool = True,
) -> dict[str, Any]:
    """Return the specification of all GPUs.

    Raises:
        NvmlError: as nvidia-ctk words it.
    """
    nvml = Nvml()
    version = nvml.text("nvmlSystemGetDriverVersion")
    gpus = nvml.gpus()
    devices: list[dict[str, Any]] = []
    every: list[dict[str, str]] = []
    for gpu in gpus:
        node = {"path": f"/dev/nvidia{gpu['minor']}"}
        if gpu["mig"] is not None:
            # A divided GPU is given out in its parts only.
            for mig in gpu["mig"]:
                nodes = [node, *capabilities(gpu["minor"], mig)]
                every += [one for one in nodes if one not in every]
                for name in mig_names(gpu, mig, strategies):
                    devices.append({"name": name, "containerEdits": {"deviceNodes": nodes}})
            continue
        every.append(node)
        for strategy in strategies:
            name = (
                str(gpu["index"])
                if strategy == "index"
                else gpu["uuid"]
                if strategy == "uuid"
                else f"gpu{gpu['index']}"
            )
            devices.append({"name": name, "containerEdits": {"deviceNodes": [node]}})
    if with_all and every:
        devices.append({"name": "all", "containerEdits": {"deviceNodes": every}})
    files = libraries(version)
    return {
        "cdiVersion": "0.5.0",
        "kind": f"{vendor}/{kind}",
        "devices": devices,
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [{"path": path} for path in COMMON_NODES if os.path.exists(path)],
            "hooks": hooks(files),
            "mounts": mounts(files, version),
        },
    }


def mig_names(gpu: dict[str, Any], mig: dict[str, Any], strategies: tuple[str, ...]) -> list[str]:
    number = f"{gpu['index']}:{mig['index']}"
    names = {"index": number, "uuid": mig["uuid"]}
    return [names.get(strategy, f"mig{number}") for strategy in strategies]


def capabilities(minor: int, mig: dict[str, Any]) -> list[dict[str, str]]:
    """Device nodes of the rights to a MIG device: its GPU instance and its compute instance."""
    folder = f"/proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{mig['instance']}"
    found = []
    for path in (f"{folder}/access", f"{folder}/ci{mig['compute']}/access"):
        with open(path, encoding="ascii") as handle:
            number = re.search(r"DeviceFileMinor: (\d+)", handle.read())
        if number:
            found.append({"path": f"/dev/nvidia-caps/nvidia-cap{number[1]}"})
    return found


def hooks(files: list[str]) -> list[dict[str, Any]]:
    def hook(*arguments: str) -> dict[str, Any]:
        return {
            "hookName": "createContainer",
            "path": HOOK,
            "args": ["nvidia-cdi-hook", *arguments],
            "env": ["NVIDIA_CTK_DEBUG=false"],
        }

    links = [argument for link in soname_links(files) for argument in ("--link", link)]
    return [
        *([hook("create-symlinks", *links)] if links else []),
        hook("enable-cuda-compat"),
        hook("update-ldcache", "--folder", LIBRARY_DIRECTORY),
        hook("disable-device-node-modification"),
    ]


def mounts(files: list[str], version: str) -> list[dict[str, Any]]:
    paths = list(files)
    paths += [f"/usr/bin/{name}" for name in BINARIES]
    for directory in ("/lib/firmware", "/usr/lib/firmware"):
        paths += sorted(glob.glob(f"{directory}/nvidia/{version}/gsp*.bin"))[
            : 8 if directory == "/lib/firmware" else 0
        ]
    paths += [*SOCKETS, *LAB_MOUNTS]
    options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
    found = []
    for path in paths:
        if os.path.exists(path):
            extra = ["noexec"] if path in SOCKETS else []
            writable = path == "/run/gpustate-lab"  # who holds a GPU is written there
            chosen = [one for one in options if not (writable and one == "ro")]
            found.append({"hostPath": path, "containerPath": path, "options": chosen + extra})
    return found


# --- text ----------------------------------------------------------------------------------------


def to_yaml(value: Any, depth: int = 0) -> str:
    """Write plain data as YAML, strings quoted only where YAML would take them for something else."""
    pad = "    " * depth
    if isinstance(value, dict):
        return "".join(f"{pad}{key}:{_after(item, depth)}" for key, item in value.items())
    lines = []
    for item in value:
        text = (
            to_yaml(item, depth + 1)
            if isinstance(item, dict | list)
            else f"{pad}    {_scalar(item)}\n"
        )
        lines.append(f"{pad}  - " + text[len(pad) + 4 :])
    return "".join(lines)


def _after(item: Any, depth: int) -> str:
    if isinstance(item, dict | list):
        return (
            "\n" + to_yaml(item, depth + (1 if isinstance(item, dict) else 0))
            if item
            else (" []\n" if isinstance(item, list) else " {}\n")
        )
    return f" {_scalar(item)}\n"


def _scalar(item: Any) -> str:
    text = str(item)
    plain = re.fullmatch(r"(--?)?[A-Za-z/][\w./=@+:-]*", text, re.ASCII) and not text.endswith(":")
    word = text.lower() in ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
    return text if plain and not word else json.dumps(text)


def device_names(path: str) -> list[str]:
    """Return the fully-qualified device names of one specification file."""
    with open(path, encoding="utf-8") as handle:
        text = handle.read()
    if text.startswith("{"):  # JSON, which is YAML too, whatever the file is called
        data = json.loads(text)
        return [f"{data['kind']}={device['name']}" for device in data["devices"]]
    kind = re.search(r"^kind:\s*(\S+)", text, re.MULTILINE)
    part = text.partition("\ndevices:")[2].split("\ncontainerEdits:")[0]
    names = re.findall(r'^\s*(?:-\s+)?name:\s*"?([^"\s]+)"?\s*$', part, re.MULTILINE)
    return [f"{kind[1]}={name}" for name in names] if kind else []
