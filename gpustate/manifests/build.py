"""Build the objects of a cluster from the settings of a policy.

The result depends on the settings alone, and is in the order of application: what others refer to comes first.

Surprising: the API server does not store fields of pods that are false or empty. Whoever applies such a field owns it,
and the next one who applies the same object seems to add it, which is a conflict. So these fields are left out.

Sources:
    kubernetes.io/docs/reference/using-api/server-side-apply: conflicts; k8s.io/api/core/v1: fields with ``omitempty``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpustate.documents import Json, JsonView
from gpustate.errors import PolicyError
from gpustate.manifests import nfd, templates, workloads
from gpustate.manifests.components import PARTS
from gpustate.manifests.components.part import by_claim
from gpustate.manifests.kinds import order, title
from gpustate.manifests.ownership import OWNER
from gpustate.manifests.settings import ClusterSettings
from gpustate.manifests.workloads import image_of

#: Annotation of pods, as in Helm charts.
_CHECKSUM = "checksum/config"
#: A step of a path: the name of a list's element, or a key.
_STEP = re.compile(r"\[([^\]]+)\]|([^.\[\]]+)")
#: Of a pod.
_OF_HOST, _CONTAINERS = ("hostIPC", "hostNetwork", "hostPID"), {"containers", "initContainers"}


def build(settings: ClusterSettings, images: Mapping[str, str]) -> list[Json]:
    """Build all objects, in the order of their application.

    Args:
        settings: of the policy.
        images: by component of a ClusterPolicy, for components without an image of their own.

    Raises:
        PolicyError: a component has no image.
    """
    filled = replace(settings, images={**settings.images, **images})
    built = (_with_fields(item, settings.object_fields) for item in _objects(filled))
    items = sorted((_owned(_stored(item)) for item in built), key=order)
    _add_checksums(items)
    return items


def _add_checksums(items: Sequence[Json]) -> None:
    """Let a change of a ConfigMap replace the pods that have it as a volume, for programs read it at their start.

    Pods that are replaced only when they are deleted, such as those of drivers, get it then.
    """
    data = {
        item["metadata"]["name"]: item.get("data") for item in items if item["kind"] == "ConfigMap"
    }
    for item in items:
        strategy = item.get("spec", {}).get("updateStrategy", {})
        if item["kind"] not in workloads.KINDS or strategy.get("type") == "OnDelete":
            continue
        template = item["spec"]["template"]
        volumes = template["spec"].get("volumes", ())
        names = {volume["configMap"]["name"] for volume in volumes if "configMap" in volume}
        if used := {name: data[name] for name in names if name in data}:
            digest = hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()
            template["metadata"].setdefault("annotations", {})[_CHECKSUM] = digest


def with_images(settings: ClusterSettings, images: Mapping[str, str]) -> ClusterSettings:
    """The settings with the image of every component, as :func:`build` looks it up.

    Raises:
        PolicyError: a component has no image.
    """
    filled = replace(settings, images=dict(images))
    fields: Json = {}
    for part in PARTS:
        value = getattr(settings, part.field)
        if isinstance(value, tuple):
            fields[part.field] = tuple(
                replace(component, image=image_of(filled, component, part.name))
                for component in value
            )
        elif value.enabled:
            fields[part.field] = replace(value, image=image_of(filled, value, part.name))
    if settings.drivers or settings.vgpu_manager.enabled or settings.vfio_manager.enabled:
        names = {part.name for part in PARTS}
        fields["images"] = {
            name: image for name, image in images.items() if image and name not in names
        }
    return replace(settings, **fields)


def node_labels(settings: ClusterSettings, states: Collection[str] = ()) -> dict[str, str]:
    """Labels of a Node whose GPUs are for containers, by which the pods run there.

    Args:
        settings: of the policy.
        states: of the node; what runs as a service of it does not run as pods.
    """
    used = (
        by_claim(settings, part.node_label) if part.claims else part.node_label
        for part in PARTS
        if part.settings(settings).enabled
        and part.host_state not in states
        and not (part.machines or part.partitions)
    )
    return {"nvidia.com/gpu.present": "true", **dict.fromkeys(used, "true")}


def _objects(settings: ClusterSettings) -> Iterator[Json]:
    config = settings.config
    reads_config = settings.device_plugin.enabled or settings.feature_discovery.enabled
    monitoring = settings.dcgm.enabled or settings.dcgm_exporter.enabled
    values = {
        "settings": settings,
        "claims_used_devices": settings.dra_driver.enabled and monitoring,
        "has_plugin_config": reads_config and config is not None and config.data is not None,
    }
    yield from templates.objects("cluster.yaml", values)
    yield from nfd.objects(
        settings.node_feature_discovery,
        settings.namespace,
        rules=settings.module_rules,
        startup_taint=settings.startup_taint,
    )
    for part in PARTS:
        component = part.settings(settings)
        if component.enabled:
            yield from part.objects(settings, image_of(settings, component, part.name))


def _with_fields(item: Json, fields: Mapping[str, JsonView]) -> Json:
    """An object with single fields that a policy sets by their path.

    Raises:
        PolicyError: no element of a list has a name of the path.
    """
    for path, value in fields.get(title(item), {}).items():
        *above, (_, last) = _STEP.findall(path)
        node: Any = item
        for name, key in above:
            named = (
                None if key else next((child for child in node if child.get("name") == name), None)
            )
            node = node.setdefault(key, {}) if key else named
            if node is None:
                raise PolicyError(f"object_fields: {title(item)} has nothing at {path}")
        node[last] = value
    return item


def _stored(item: Json) -> Json:
    """An object without the fields of its pods that the API server does not store."""
    if item["kind"] not in workloads.KINDS:
        return item
    spec, template = item["spec"], item["spec"]["template"]
    pod = {
        key: value
        for key, value in template["spec"].items()
        if not (key in _OF_HOST and value is False)
    }
    if "tolerations" in pod:
        pod["tolerations"] = [
            {key: value for key, value in entry.items() if value != ""}
            for entry in pod["tolerations"]
        ]
    for key in _CONTAINERS & pod.keys():
        pod[key] = [_stored_container(container) for container in pod[key]]
    return {**item, "spec": {**spec, "template": {**template, "spec": pod}}}


def _stored_container(container: Json) -> Json:
    """A container without empty values of variables, and with mounts that are writable by default."""
    stored = dict(container)
    for key, without in (("env", ("value", "")), ("volumeMounts", ("readOnly", False))):
        if key in stored:
            stored[key] = [
                {name: value for name, value in entry.items() if (name, value) != without}
                for entry in stored[key]
            ]
    return stored


def _owned(item: Json) -> Json:
    meta = item["metadata"]
    return {**item, "metadata": {**meta, "labels": {**(meta.get("labels") or {}), **OWNER}}}
