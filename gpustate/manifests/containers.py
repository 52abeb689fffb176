"""Containers: variables, mounts and volumes, and those of NVIDIA's validator, for which other containers wait.

Sources:
    NVIDIA/gpu-operator v26.7: assets/state-operator-validation, controllers/object_controls.go
    (TransformValidatorComponent, transformValidationInitContainer), cmd/nvidia-validator (files and variables).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from gpustate import shell
from gpustate.errors import PolicyError
from gpustate.manifests.settings import ClusterObjects, Component, Files

Json = dict[str, Any]

_NONE: Mapping[str, str] = MappingProxyType({})
#: Where the validator's files and the driver containers are on a node, and the volumes with the node's paths.
VALIDATIONS, DRIVER = "/run/nvidia/validations", "/run/nvidia/driver"
HOST_ROOT, DRIVER_ROOT, DEV_CHAR = "host-root", "driver-install-dir", "host-dev-char"
VALIDATIONS_VOLUME = "run-nvidia-validations"
_WORKLOADS = {"vfio-pci": "vm-passthrough", "vgpu-devices": "vm-vgpu"}
_INSTALL = ("DRIVER_INSTALL_DIR", "DRIVER_INSTALL_DIR_CTR_PATH")


def variable(name: str, path: str) -> Json:
    """A variable with a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def mount(name: str, path: str, **more: Any) -> Json:
    """A mount of a volume in a container."""
    return {"name": name, "mountPath": path, **more}


def host_path(name: str, path: str, kind: str = "") -> Json:
    """A volume with a path of the node."""
    return {"name": name, "hostPath": {"path": path, **({"type": kind} if kind else {})}}


def set_variable(container: Json, name: str, value: str) -> None:
    """Set a variable of a container, in its place if it is there."""
    env = container.setdefault("env", [])
    found = next((one for one in env if one["name"] == name), None)
    if found is None:
        env.append({"name": name, "value": value})
    else:
        found.pop("valueFrom", None)
        found["value"] = value


def with_secrets(component: Component, *others: Component) -> Component:
    """The component with the pull secrets of others: pods have one list."""
    names = (one for each in (component, *others) for one in each.image_pull_secrets)
    return replace(component, image_pull_secrets=tuple(dict.fromkeys(names)))


def image_of(settings: ClusterObjects, component: Component, section: str) -> str:
    """The image of a container: its own, or that of the release.

    Args:
        settings: of the policy, with the images of the release.
        component: of the container.
        section: of a ClusterPolicy.

    Raises:
        PolicyError: neither.
    """
    image = component.image or settings.images.get(section, "")
    if not image:
        raise PolicyError(
            f"{section} has no image", fix="set it in the policy, or name a release with --release"
        )
    return image


def check(
    settings: ClusterObjects,
    part: str,
    *,
    env: Mapping[str, str],
    mounts: Sequence[Json],
    fields: Mapping[str, str] = _NONE,
    level: bool = True,
    name: str = "",
) -> Json:
    """An init container of NVIDIA's validator, which checks one part of a node.

    Args:
        settings: of the policy.
        part: ``driver``, ``toolkit`` ...
        env, fields: its variables, and those with fields of the pod.
        mounts: of the container.
        level: with the SELinux level of the host's files.
        name: of the part in the name of the container.
    """
    validator = settings.validator
    variables = {**env, "COMPONENT": part, **validator.checks.get(part, {})}
    return {
        "name": f"{name or part}-validation",
        "image": image_of(settings, validator, "validator"),
        "imagePullPolicy": validator.image_pull_policy,
        "command": ["sh", "-c"],
        "args": ["nvidia-validator"],
        "env": [
            *({"name": key, "value": text} for key, text in variables.items()),
            *(variable(key, path) for key, path in fields.items() if key not in variables),
        ],
        "securityContext": {
            "privileged": True,
            "runAsUser": 0,  # it changes its root, and writes what it has found
            **({"seLinuxOptions": {"level": "s0"}} if level else {}),
        },
        "volumeMounts": [*mounts],
        "resources": dict(validator.resources),
    }


def driver_check(settings: ClusterObjects) -> Json:
    """The init container that waits for the driver, and writes where it is."""
    root = settings.driver_root
    moved = {} if root == DRIVER else dict.fromkeys(_INSTALL, root)
    found = check(
        settings,
        "driver",
        env={"WITH_WAIT": "true", **moved},
        fields={"OPERATOR_NAMESPACE": "metadata.namespace"},
        mounts=[
            mount(HOST_ROOT, "/host", readOnly=True, mountPropagation="HostToContainer"),
            mount(DRIVER_ROOT, root, mountPropagation="HostToContainer"),
            mount(VALIDATIONS_VOLUME, VALIDATIONS, mountPropagation="Bidirectional"),
            mount(DEV_CHAR, "/host-dev-char"),
        ],
    )
    if settings.drivers:
        # It waits by itself only for a driver container that a ClusterPolicy owns.
        found["args"] = [f"{wait_for('.driver-ctr-ready')}; nvidia-validator"]
    return found


def driver_volumes() -> list[Json]:
    """The volumes of :func:`driver_check`."""
    return [
        validations(),
        host_path(DRIVER_ROOT, DRIVER, "DirectoryOrCreate"),
        host_path(HOST_ROOT, "/"),
        host_path(DEV_CHAR, "/dev/char"),
    ]


def validations() -> Json:
    """The volume with the files of the validator."""
    return host_path(VALIDATIONS_VOLUME, VALIDATIONS, "DirectoryOrCreate")


def validations_mount(propagation: str = "") -> Json:
    """The mount of :func:`validations`."""
    more = {"mountPropagation": propagation} if propagation else {}
    return mount(VALIDATIONS_VOLUME, VALIDATIONS, **more)


def toolkit_check(settings: ClusterObjects) -> Json:
    """The init container that waits for the container toolkit."""
    validator = settings.validator
    env = validator.checks.get("toolkit", {})
    return {
        "name": "toolkit-validation",
        "image": image_of(settings, validator, "validator"),
        "imagePullPolicy": validator.image_pull_policy,
        "command": ["sh", "-c"],
        "args": [wait_for("toolkit-ready")],
        **({"env": [{"name": key, "value": text} for key, text in env.items()]} if env else {}),
        "securityContext": {"privileged": True, "runAsUser": 0},
        "volumeMounts": [validations_mount("HostToContainer")],
        "resources": dict(validator.resources),
    }


def machine_waits(settings: ClusterObjects, *parts: str) -> list[Json]:
    """Init containers that wait until the GPUs of a Node for virtual machines are prepared, each for its workload.

    Args:
        settings: of the policy; without the validator as containers, nothing is waited for.
        parts: ``vfio-pci``, ``vgpu-devices``.
    """
    validator = settings.validator
    if not validator.machines or not validator.enabled:
        return []
    return [
        {
            "name": f"{part}-validation",
            "image": image_of(settings, validator, "validator"),
            "imagePullPolicy": validator.image_pull_policy,
            "command": ["sh", "-c"],
            "args": [
                f'{wait_for("workload-type")}; [ "$(cat {VALIDATIONS}/workload-type)" = {_WORKLOADS[part]} ] || exit 0; '
                f"{wait_for(f'{part}-ready')}"
            ],
            "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
            "securityContext": {"privileged": True, "runAsUser": 0},
            "volumeMounts": [validations_mount("HostToContainer")],
            "resources": dict(validator.resources),
        }
        for part in parts
    ]


def wait_for(*names: str) -> str:
    """Shell that waits until the validator has written one of these files."""
    tests = " || ".join(f"[ -f {VALIDATIONS}/{name} ]" for name in names)
    return f"until {tests}; do echo waiting for {names[0]}; sleep 5; done"


def config_map(settings: ClusterObjects, files: Files) -> Json:
    """The ConfigMap of files."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": files.name, "namespace": settings.namespace},
        "data": dict(sorted(files.data.items())),
    }


def entrypoint(settings: ClusterObjects, name: str, script: str) -> Json:
    """The ConfigMap with a program that waits for the driver, and knows where it is."""
    wait = shell.load("driver_root", "gpustate.manifests")
    return config_map(settings, Files(name, {"entrypoint.sh": f"#!/bin/sh\n{wait}{script}"}))
