"""Build the objects of a cluster from the settings of a policy.

The result depends on the settings alone, and is in the order of application: what others refer to comes first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpustate.manifests import nfd
from gpustate.manifests.components import PARTS
from gpustate.manifests.components.part import by_claim
from gpustate.manifests.containers import image_of
from gpustate.manifests.kinds import order
from gpustate.manifests.ownership import OWNER
from gpustate.manifests.settings import ClusterObjects

Json = dict[str, Any]

#: Handlers that the toolkit's container registers beside its own, with CDI.
_OF_TOOLKIT = ("nvidia-cdi", "nvidia-legacy")
_POD_SECURITY = "pod-security.kubernetes.io/"
#: Of a namespace in which claims may be for devices that others use.
_ADMIN_ACCESS = "resource.kubernetes.io/admin-access"


def build(settings: ClusterObjects, images: Mapping[str, str]) -> list[Json]:
    """Build all objects, in the order of their application.

    Args:
        settings: of the policy.
        images: by component of a ClusterPolicy, for components without an image of their own.

    Raises:
        PolicyError: a component has no image.
    """
    found = [
        _owned(one) for one in _objects(replace(settings, images={**settings.images, **images}))
    ]
    return sorted(found, key=order)


def with_images(settings: ClusterObjects, images: Mapping[str, str]) -> ClusterObjects:
    """The settings with the image of every component, as :func:`build` looks it up.

    Raises:
        PolicyError: a component has no image.
    """
    whole = replace(settings, images=dict(images))
    found: dict[str, Any] = {}
    for part in PARTS:
        given = getattr(settings, part.field)
        if isinstance(given, tuple):
            found[part.field] = tuple(
                replace(one, image=image_of(whole, one, part.name)) for one in given
            )
        elif given.enabled:
            found[part.field] = replace(given, image=image_of(whole, given, part.name))
    if settings.drivers or settings.vgpu_manager.enabled or settings.vfio_manager.enabled:
        names = {part.name for part in PARTS}
        found["images"] = {name: one for name, one in images.items() if one and name not in names}
    return replace(settings, **found)


def node_labels(settings: ClusterObjects, states: Collection[str] = ()) -> dict[str, str]:
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


def _objects(settings: ClusterObjects) -> Iterator[Json]:
    config = settings.config
    yield _namespace(settings)
    for name in _runtime_classes(settings):
        yield {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": name},
            "handler": name,
        }
    used = settings.device_plugin.enabled or settings.feature_discovery.enabled
    if config is not None and config.data is not None and used:
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": config.name, "namespace": settings.namespace},
            "data": dict(sorted(config.data.items())),
        }
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


def _runtime_classes(settings: ClusterObjects) -> Iterator[str]:
    if settings.runtime_class:
        yield settings.runtime_class
        if settings.toolkit.enabled and settings.cdi:
            yield from _OF_TOOLKIT


def _namespace(settings: ClusterObjects) -> Json:
    labels: dict[str, str] = {}
    if settings.privileged_namespace:
        labels = {f"{_POD_SECURITY}{mode}": "privileged" for mode in ("audit", "enforce", "warn")}
    if settings.dra_driver.enabled:
        labels[_ADMIN_ACCESS] = "true"
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": settings.namespace, "labels": labels},
    }


def _owned(item: Json) -> Json:
    meta = item["metadata"]
    return {**item, "metadata": {**meta, "labels": {**(meta.get("labels") or {}), **OWNER}}}
