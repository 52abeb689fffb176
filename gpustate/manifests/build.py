"""Build the objects of a cluster from the settings of a policy.

The result depends on the settings alone, and is in the order of application: what others refer to comes first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpustate.errors import PolicyError
from gpustate.manifests import nfd
from gpustate.manifests.components import PARTS
from gpustate.manifests.components.part import by_claim
from gpustate.manifests.kinds import order
from gpustate.manifests.ownership import OWNER
from gpustate.manifests.settings import ClusterObjects, Component

Json = dict[str, Any]

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
    found = [_owned(one) for one in _objects(settings, images)]
    return sorted(found, key=order)


def with_images(settings: ClusterObjects, images: Mapping[str, str]) -> ClusterObjects:
    """The settings with the image of every component, as :func:`build` looks it up.

    Raises:
        PolicyError: a component has no image.
    """
    parts = ((part, part.settings(settings)) for part in PARTS)
    found: dict[str, Any] = {
        part.field: replace(component, image=_image(component, part.name, images))
        for part, component in parts
        if component.enabled
    }
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
        if part.settings(settings).enabled and part.host_state not in states and not part.machines
    )
    return {"nvidia.com/gpu.present": "true", **dict.fromkeys(used, "true")}


def _objects(settings: ClusterObjects, images: Mapping[str, str]) -> Iterator[Json]:
    config = settings.config
    yield _namespace(settings)
    if settings.runtime_class:
        yield {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": settings.runtime_class},
            "handler": settings.runtime_class,
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
        settings.node_feature_discovery, settings.namespace, rules=settings.module_rules
    )
    for part in PARTS:
        component = part.settings(settings)
        if component.enabled:
            yield from part.objects(settings, _image(component, part.name, images))


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


def _image(component: Component, name: str, images: Mapping[str, str]) -> str:
    image = component.image or images.get(name, "")
    if not image:
        raise PolicyError(
            f"{name} has no image", fix="set it in the policy, or name a release with --release"
        )
    return image
