"""The objects of a component: those of its file, whose pods get what all pods have in common.

Sources:
    NVIDIA/gpu-operator v26.7: controllers/object_controls.go (applyCommonDaemonsetConfig).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from types import MappingProxyType

from gpustate import shell
from gpustate.documents import Json, JsonView
from gpustate.errors import PolicyError
from gpustate.manifests import templates
from gpustate.manifests.settings import ClusterSettings, Component, Files

_NONE: JsonView = MappingProxyType({})
KINDS = ("DaemonSet", "Deployment")
#: What NVIDIA's validator checks.
_CHECKED = (
    *("driver", "toolkit", "cuda", "plugin"),
    *("cc-manager", "vfio-pci", "vgpu-manager", "vgpu-devices"),
)


def objects(
    name: str, settings: ClusterSettings, component: Component, image: str, values: JsonView = _NONE
) -> Iterator[Json]:
    """The objects of a component.

    Args:
        name: of the file in ``data``.
        settings: of the policy.
        component: whose pods these are.
        image: of their containers without one.
        values: of the file, beside those of the settings.
    """
    for item in templates.objects(
        f"{name}.yaml", {**_values(settings, component), "image": image, **values}
    ):
        if item["kind"] in KINDS:
            _complete(item, settings, component, image)
        yield item


def image_of(settings: ClusterSettings, component: Component, section: str) -> str:
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


def config_map(settings: ClusterSettings, files: Files) -> Json:
    """The ConfigMap of files."""
    values = {"namespace": settings.namespace, "files": files}
    item: Json = templates.fragment("config_map", values)
    return item


def variables(env: Mapping[str, str]) -> list[Json]:
    """Variables of a container."""
    return [{"name": name, "value": value} for name, value in env.items()]


def _values(settings: ClusterSettings, component: Component) -> Json:
    validator, root = settings.validator, settings.host_root
    return {
        **{field.name: getattr(settings, field.name) for field in fields(settings)},
        "component": component,
        "args": component.args,
        "env": variables(component.env),
        "config_file": None if "CONFIG_FILE" in component.env else "/config/config.yaml",
        "runtime_class": settings.runtime_class or None,
        "host_root": root or "/",
        "dev_char": f"{root.rstrip('/')}/dev/char",
        "sees_mig": settings.mig_strategy != "none",
        "driver_moved": settings.driver_root != "/run/nvidia/driver",
        "checks": {part: variables(validator.checks.get(part, {})) for part in _CHECKED},
        "validator_image": partial(image_of, settings, validator, "validator"),
        "validator_secrets": secrets(validator),
        "secret_names": ",".join(validator.image_pull_secrets),
    }


def entrypoint(script: str) -> str:
    """A program that waits for the driver, and knows where it is."""
    return f"#!/bin/sh\n{shell.load('driver_root', 'gpustate.manifests')}{script}"


def secrets(*components: Component) -> list[Json]:
    """Pull secrets of pods with the images of these components."""
    names = (name for component in components for name in component.image_pull_secrets)
    return [{"name": name} for name in dict.fromkeys(names)]


def _complete(item: Json, settings: ClusterSettings, component: Component, image: str) -> None:
    """Add what all pods have in common."""
    pods, spec = settings.pods, item["spec"]
    meta, pod = spec["template"].setdefault("metadata", {}), spec["template"]["spec"]
    labels = {**pods.labels, **spec["selector"]["matchLabels"], **meta.get("labels", {})}
    item["metadata"] |= {"namespace": settings.namespace, "labels": labels}
    meta["labels"] = dict(labels)
    if pods.annotations:
        item["metadata"]["annotations"] = dict(pods.annotations)
    meta["annotations"] = {**meta.get("annotations", {}), **pods.annotations}
    if item["kind"] == "DaemonSet":
        spec.setdefault("updateStrategy", _update_strategy(settings))
    pod.setdefault("automountServiceAccountToken", False)
    pod["tolerations"] = [*pod.get("tolerations", ()), *_tolerations(settings)]
    pull = secrets(component)
    pod["imagePullSecrets"] = [
        *pull,
        *(s for s in pod.get("imagePullSecrets", ()) if s not in pull),
    ]
    if pods.priority_class:
        pod["priorityClassName"] = pods.priority_class
    if pods.security_context:
        pod["securityContext"] = dict(pods.security_context)
    if component.host_network or pod.get("hostNetwork"):
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
    root = volumes["host-root"]["hostPath"]["path"] if "host-root" in volumes else "/"
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        container.setdefault("image", image)
        container.setdefault("imagePullPolicy", component.image_pull_policy)
        if component.resources:
            container.setdefault("resources", dict(component.resources))
        own_root = variables({"HOST_ROOT": root} if root != "/" else {})
        container["env"] = _unique([*container.get("env", ()), *own_root])
        _drop_empty(container, ("args", "env", "volumeMounts"))
    if claims := pod.get("resourceClaims"):
        resources = pod["containers"][0].setdefault("resources", {})
        resources["claims"] = [{"name": claim["name"]} for claim in claims]
    _drop_empty(pod, ("imagePullSecrets", "initContainers", "volumes", "resourceClaims"))
    _drop_empty(meta, ("annotations",))


def _unique(env: Sequence[Json]) -> list[Json]:
    """Variables, each once: the last value takes the place of the first, and fields of the pod are for what has no value."""
    by_name: dict[str, Json] = {}
    for variable in env:
        if "value" in variable or variable["name"] not in by_name:
            by_name[variable["name"]] = variable
    return list(by_name.values())


def _drop_empty(mapping: Json, names: Sequence[str]) -> None:
    for name in names:
        if not mapping.get(name, True):
            del mapping[name]


def _tolerations(settings: ClusterSettings) -> list[Json]:
    """Those of the policy, and the start-up taint: a Node is validated with the components' pods."""
    tolerations = [dict(toleration) for toleration in settings.pods.tolerations]
    startup: Json = {"key": settings.startup_taint, "operator": "Exists"}
    return tolerations if startup in tolerations else [*tolerations, startup]


def _update_strategy(settings: ClusterSettings) -> Json:
    pods = settings.pods
    if pods.update_strategy == "OnDelete":
        return {"type": "OnDelete"}
    return {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": pods.max_unavailable, "maxSurge": 0},
    }
