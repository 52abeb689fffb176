"""A CDI specification, and whether it still matches the node.

A specification lists device nodes, libraries and hooks by path, and is not updated by itself. After a driver
upgrade it lists removed libraries, after a module reload outdated device numbers, after a MIG change devices
that no longer exist. The runtime notices only when a container is created, which then fails.

MIG devices are read from the driver's capability files, which is cheap: every GPU and compute instance has
one, and its minor number is that of /dev/nvidia-caps/nvidia-capN.

Sources:
    cncf-tags/container-device-interface: SPEC.md 0.8, Go structs of the JSON form.
    NVIDIA/nvidia-container-toolkit: pkg/nvcdi; what ``nvidia-ctk cdi generate`` writes.
    NVIDIA/open-gpu-kernel-modules: nvlink and mig capabilities in /proc/driver/nvidia/capabilities.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from gpustate.errors import ProbeError
from gpustate.formats import cdi_rules, yaml_events
from gpustate.formats.words import listed

KIND = "nvidia.com/gpu"
#: The device by which a container gets every GPU.
ALL = "all"
#: The specification that gpustate manages.
SPEC_PATH = "/var/run/cdi/nvidia.yaml"

#: libyaml if available: ten times as fast.
_RULES = yaml_events.Rules(ProbeError, depth=40, values=200_000)
_GENERATORS = ("nvidia-ctk", "nvidia-cdi-hook")
_LIBRARY = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.(\d+\.\d+(?:\.\d+)?)$")
_FIRMWARE = re.compile(r"/firmware/nvidia/(\d+\.\d+(?:\.\d+)?)/")
_VERSION = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)")
_GPU_NODE = re.compile(r"/dev/nvidia([0-9]{1,9})$")
_CAP_NODE = re.compile(r"/dev/nvidia-caps/nvidia-cap([0-9]{1,9})$")


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """One device node of a specification; its numbers are optional."""

    path: str  # on the host
    major: int | None = None
    minor: int | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """The parts of a specification that are compared with the node."""

    kind: str
    devices: tuple[str, ...]  # names, in the file's order
    nodes: tuple[DeviceNode, ...]  # of all devices and the common edits
    host_paths: tuple[str, ...]  # mounts, hooks and nodes that must exist
    generated: bool  # written by nvidia-ctk, without comments and with its own hooks only
    refused: tuple[str, ...] = ()  # why runtimes ignore it


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the loaded driver lists it."""

    minor: int
    uuid: str = ""  # empty until the GPU is first opened
    held: bool = False  # in quarantine: must not be included


@dataclass(frozen=True, slots=True)
class World:
    """The node a specification is compared with."""

    driver_version: str  # of the loaded module
    gpus: tuple[Gpu, ...]
    mig_caps: Mapping[int, frozenset[int]] = field(default_factory=dict[int, frozenset[int]])
    nodes: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    missing: frozenset[str] = frozenset()  # paths in specifications that do not exist
    driver_files: tuple[str, ...] = ()  # and control devices of the loaded driver, for nvidia-ctk


def parse(text: str, *, place: str = "the CDI specification") -> Spec:
    """Read a specification, YAML or JSON.

    Raises:
        ProbeError: it is incomplete or not a CDI specification.
    """
    try:
        parsed = yaml_events.documents(text, place, _RULES)
    except ProbeError as error:
        raise ProbeError(f"{error.place}: {error.message}") from None
    data = parsed[0].data if parsed else None
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise ProbeError(f"{place} has no kind: it is incomplete or not a CDI specification")
    devices = [device for device in _list(data.get("devices")) if isinstance(device, dict)]
    edits = [_dict(data.get("containerEdits")), *(_dict(d.get("containerEdits")) for d in devices)]
    nodes = tuple(dict.fromkeys(node for edit in edits for node in _nodes(edit)))
    hooks = [str(hook.get("path", "")) for edit in edits for hook in _dicts(edit.get("hooks"))]
    mounts = [
        str(mount.get("hostPath", "")) for edit in edits for mount in _dicts(edit.get("mounts"))
    ]
    paths = dict.fromkeys(path for path in (*(n.path for n in nodes), *mounts, *hooks) if path)
    return Spec(
        kind=data["kind"],
        devices=tuple(str(device.get("name", "")) for device in devices),
        nodes=nodes,
        host_paths=tuple(paths),
        generated=bool(hooks)
        and all(hook.rpartition("/")[2] in _GENERATORS for hook in hooks)
        and not any(line.lstrip().startswith("#") for line in text.splitlines()),
        refused=tuple(islice(cdi_rules.refusals(data), 20)),
    )


def judge(spec: Spec, world: World) -> tuple[str, ...]:
    """Return why a specification is stale; empty if it is up to date."""
    return (
        *_judge_kind(spec),
        *_judge_libraries(spec, world),
        *_judge_nodes(spec, world),
        *_judge_devices(spec, world),
    )


def lacking_files(spec: Spec, driver_files: Iterable[str]) -> list[str]:
    """Existing files and devices that a specification does not list.

    nvidia-ctk may list either end of a symlink, so base names are compared.
    """
    named = {path.rpartition("/")[2] for path in spec.host_paths}
    return [path for path in driver_files if path.rpartition("/")[2] not in named]


def lists_library(spec: Spec) -> bool:
    """Whether containers get a library of the driver from it."""
    return any(_LIBRARY.search(path) for path in spec.host_paths)


def expected_names(world: World) -> frozenset[str]:
    """Names of whole GPUs in a specification of this node."""
    indices = {str(index) for index in range(len(world.gpus))}
    return frozenset({ALL} | indices | {gpu.uuid for gpu in world.gpus if gpu.uuid})


def driver_version(text: str | None) -> str:
    """Version in /proc/driver/nvidia/version; empty if no driver is loaded."""
    match = _VERSION.search(text or "")
    return match[1] if match else ""


def _judge_kind(spec: Spec) -> Iterator[str]:
    if spec.refused:
        yield f"container runtimes ignore it: {listed(spec.refused, 1, '; ')}"
    if spec.kind != KIND:
        yield f"its kind is {spec.kind}, not {KIND}"
    elif not spec.devices:
        yield "it has no devices"


def _judge_libraries(spec: Spec, world: World) -> Iterator[str]:
    versions = {
        m[1]
        for path in spec.host_paths
        for m in (_LIBRARY.search(path), _FIRMWARE.search(path))
        if m
    }
    for version in sorted(versions - {world.driver_version}):
        yield f"it lists files of driver {version}, but {world.driver_version} is loaded"
    if not lists_library(spec):
        yield "it lists no driver library"
    lacking = lacking_files(spec, world.driver_files)
    if lacking:
        yield f"it lacks {listed(lacking, 1)} of the driver"


def _judge_nodes(spec: Spec, world: World) -> Iterator[str]:
    missing = [path for path in spec.host_paths if path in world.missing]
    if missing:
        yield f"{listed(missing, 1)} {'do' if missing[1:] else 'does'} not exist"
    for node in spec.nodes:
        numbers = world.nodes.get(node.path)
        if numbers is None or node.major is None:
            continue
        minor = node.minor or 0  # nvidia-ctk 1.20 writes the numbers, and leaves out a minor of 0
        if (node.major, minor) != numbers:
            yield (
                f"it lists {node.path} as {node.major}:{minor}, but it is {numbers[0]}:{numbers[1]} on the node"
            )


def _judge_devices(spec: Spec, world: World) -> Iterator[str]:
    if spec.devices and ALL not in spec.devices:
        yield "it has no device all"
    minors = {int(m[1]) for node in spec.nodes if (m := _GPU_NODE.match(node.path))}
    gpu_minors = {gpu.minor for gpu in world.gpus}
    for minor in sorted(minors - gpu_minors):
        yield f"it lists /dev/nvidia{minor}, which is not a GPU of the driver"
    held = sorted(minors & {gpu.minor for gpu in world.gpus if gpu.held})
    if held:
        yield f"it lists /dev/nvidia{held[0]}, which is in quarantine"
    for gpu in (candidate for candidate in world.gpus if not candidate.held):
        # A GPU in MIG mode without instances cannot be used by a container and is not listed.
        empty_mig = gpu.minor in world.mig_caps and not world.mig_caps[gpu.minor]
        if gpu.minor not in minors and not empty_mig:
            yield f"it lacks /dev/nvidia{gpu.minor}"
    uuids = {name for name in spec.devices if name.startswith("GPU-")}
    unknown_uuids = uuids - {gpu.uuid for gpu in world.gpus}
    if unknown_uuids and all(gpu.uuid for gpu in world.gpus):
        yield f"it lists {', '.join(sorted(unknown_uuids))}, which the driver does not have"
    out = {gpu.minor for gpu in world.gpus if gpu.held}
    expected = frozenset(cap for n, caps in world.mig_caps.items() if n not in out for cap in caps)
    # 1 and 2 are the capabilities to configure and monitor MIG, which belong to no instance.
    named = {int(m[1]) for node in spec.nodes if (m := _CAP_NODE.match(node.path))} - {1, 2}
    if named != expected:
        yield f"its MIG devices do not match the GPUs ({len(named)} capabilities listed, {len(expected)} exist)"


def _nodes(edits: dict[Any, Any]) -> Iterator[DeviceNode]:
    for node in _dicts(edits.get("deviceNodes")):
        path = node.get("hostPath") or node.get("path")
        if isinstance(path, str):
            yield DeviceNode(path, _number(node.get("major")), _number(node.get("minor")))


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> list[dict[Any, Any]]:
    return [entry for entry in _list(value) if isinstance(entry, dict)]
