"""Build the objects of a cluster from the settings of a policy.

The result depends on the settings alone, and is in the order of application: what others refer to comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from gpustate.errors import PolicyError
from gpustate.manifests import daemonsets, rbac
from gpustate.manifests.kinds import OWNER, order
from gpustate.manifests.settings import ClusterObjects, Component

Json = dict[str, Any]

#: Names of the components in a ClusterPolicy, by which images are looked up.
PLUGIN, DISCOVERY = "devicePlugin", "gfd"
_POD_SECURITY = "pod-security.kubernetes.io/"


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


def node_labels(settings: ClusterObjects) -> dict[str, str]:
    """Labels of the Nodes on which the pods run."""
    found = {"nvidia.com/gpu.present": "true"}
    if settings.device_plugin.enabled:
        found[daemonsets.DEPLOY_PLUGIN] = "true"
    if settings.feature_discovery.enabled:
        found[daemonsets.DEPLOY_DISCOVERY] = "true"
    return found


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


def _objects(settings: ClusterObjects, images: Mapping[str, str]) -> Iterator[Json]:
    namespace, config = settings.namespace, settings.config
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
            "metadata": {"name": config.name, "namespace": namespace},
            "data": dict(sorted(config.data.items())),
        }
    configured = config is not None
    if settings.device_plugin.enabled:
        image = _image(settings.device_plugin, PLUGIN, images)
        account = daemonsets.PLUGIN_ACCOUNT
        yield from rbac.of_device_plugin(account, namespace, config=configured)
        yield daemonsets.device_plugin(settings, image)
        if shares_by_mps(settings):
            yield daemonsets.mps_daemon(settings, image)
    if settings.feature_discovery.enabled:
        image = _image(settings.feature_discovery, DISCOVERY, images)
        account = daemonsets.DISCOVERY_ACCOUNT
        yield from rbac.of_feature_discovery(account, namespace, config=configured)
        yield daemonsets.feature_discovery(settings, image)


def _namespace(settings: ClusterObjects) -> Json:
    labels: dict[str, str] = {}
    if settings.privileged_namespace:
        labels = {f"{_POD_SECURITY}{mode}": "privileged" for mode in ("audit", "enforce", "warn")}
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
