"""The settings of a cluster's objects in a ClusterPolicy or in Helm values.

Defaults are those of the Operator, or of the chart for values. Without an image in the file, that of the Operator's
release is used.

Sources:
    NVIDIA/gpu-operator v26.7: internal/image (how the reference is made), controllers/object_controls.go
    (applyCommonDaemonsetConfig, TransformDevicePlugin, TransformGPUDiscoveryPlugin).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpustate.errors import PolicyError
from gpustate.gpu_operator import history
from gpustate.gpu_operator.desired import DesiredState, Source
from gpustate.gpu_operator.documents import plain
from gpustate.gpu_operator.helm import is_null
from gpustate.gpu_operator.operands import (
    mig_strategy,
    missing_reference,
    require_config_map,
)
from gpustate.gpu_operator.runtime import cdi_by_default
from gpustate.manifests.components import PARTS, device_plugin, feature_discovery
from gpustate.manifests.settings import (
    RESERVED_LABELS,
    ClusterObjects,
    Component,
    PluginConfig,
    Pods,
)

_POLICIES = ("Always", "IfNotPresent", "Never")
_IMAGE = ("repository", "image", "version")
_CONFIG = "devicePlugin.config.name"
_BY_ENVIRONMENT = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_BY_MOUNT = "accept-nvidia-visible-devices-as-volume-mounts"


def images(release: str = "") -> dict[str, str]:
    """References of the images of a release of the Operator (default: the newest), by component.

    Sources:
        NVIDIA/gpu-operator, each release: deployments/gpu-operator/values.yaml.
    """
    table = history.chart_defaults(release)
    return {
        part.name: _reference(*(str(table.get(f"{part.name}.{piece}", "")) for piece in _IMAGE))
        for part in PARTS
    }


def cluster_objects(source: Source, states: Iterable[DesiredState]) -> ClusterObjects:
    """Return the settings of the cluster's objects.

    Args:
        source: the document.
        states: of the nodes; the device plugin has to fit the container toolkit's configuration.

    Raises:
        PolicyError: an image that is set in part only.
    """
    cdi = source.enabled("cdi", otherwise=cdi_by_default(source))
    strategy = "cdi-annotations,cdi-cri" if cdi else _strategy_without_cdi(states)
    mig, _ = mig_strategy(source)
    made = ClusterObjects(
        privileged_namespace=source.enabled("psa", otherwise=False),
        device_plugin=_component(source, device_plugin.PART.name),
        feature_discovery=_component(source, feature_discovery.PART.name),
        config=_plugin_config(source),
        device_list_strategy=strategy,
        cdi=cdi,
        gdrcopy=source.enabled("gdrcopy", otherwise=False),
        gds=source.enabled("gds", otherwise=False),
        mig_strategy=mig,
        pods=_pods(source),
    )
    runtime_class = _value(source, "operator.runtimeClass")
    root = _value(source, "devicePlugin.mps.root")
    return replace(
        made,
        runtime_class=str(runtime_class or made.runtime_class),
        mps_root=str(root or made.mps_root),
    )


def _value(source: Source, path: str) -> Any:
    """The value at a path as plain data, or the chart's default; ``None`` without both."""
    item = source.spec.get(*path.split("."))
    if item is not None:
        return plain(item)
    if source.kind != "helm" or is_null(source.spec, path):
        return None
    given, value = history.chart_default(path, mapping=True, release=source.release)
    return value if given else None


def _component(source: Source, name: str) -> Component:
    policy = str(_value(source, f"{name}.imagePullPolicy") or "")
    variables = _value(source, f"{name}.env") or []
    return Component(
        enabled=source.enabled(name, otherwise=True),
        image=_image(source, name),
        image_pull_policy=policy if policy in _POLICIES else "IfNotPresent",
        image_pull_secrets=tuple(map(str, _value(source, f"{name}.imagePullSecrets") or ())),
        resources=_value(source, f"{name}.resources") or {},
        args=tuple(map(str, _value(source, f"{name}.args") or ())),
        env={str(one["name"]): str(one.get("value") or "") for one in variables},
        host_network=bool(_value(source, f"{name}.hostNetwork")),
    )


def _image(source: Source, name: str) -> str:
    """The reference that the file sets; empty if it sets none.

    Raises:
        PolicyError: the Operator cannot make a reference of it either.
    """
    parts = {part: str(_value(source, f"{name}.{part}") or "") for part in _IMAGE}
    if all(parts.values()):
        return _reference(*parts.values())
    given = [part for part, value in parts.items() if value]
    if given in ([], ["image"]):
        return parts["image"]
    missing = ", ".join(f"{name}.{part}" for part in _IMAGE if not parts[part])
    section = source.spec.get(name) or source.spec
    raise PolicyError(
        f"{name} sets {' and '.join(given)} of its image, without {missing}",
        place=source.place(section),
        fix="set repository, image and version, or image alone as the complete reference",
    )


def _reference(repository: str, image: str, version: str) -> str:
    mark = "@" if version.startswith("sha256:") else ":"
    return f"{repository}/{image}{mark}{version}" if repository and image and version else ""


def _strategy_without_cdi(states: Iterable[DesiredState]) -> str:
    """How containers ask for GPUs, by what the container toolkit accepts of unprivileged ones."""
    toolkit = next((one for one in states if one.state == "container-toolkit"), None)
    config = toolkit.parameters.get("config", {}) if toolkit is not None else {}
    mounts = config.get(_BY_MOUNT) is True and config.get(_BY_ENVIRONMENT) is False
    return "volume-mounts" if mounts else "envvar"


def _plugin_config(source: Source) -> PluginConfig | None:
    name = source.spec.get(*_CONFIG.split("."))
    if name is None or not name.value:
        return None
    default = source.spec.get("devicePlugin", "config", "default")
    key = str(default.value) if default is not None and default.value else ""
    if missing_reference(source, _CONFIG) is not None:
        return PluginConfig(str(name.value), key)
    found = require_config_map(source, name, _CONFIG)
    data = {key: entry.text for key, entry in found.entries.items()}
    return PluginConfig(str(name.value), key, data)


def _pods(source: Source) -> Pods:
    labels: Mapping[str, Any] = _value(source, "daemonsets.labels") or {}
    reserved = sorted(set(labels) & set(RESERVED_LABELS))
    if reserved:
        section = source.spec.get("daemonsets", "labels") or source.spec
        source.notes.append(
            f"{source.place(section)}: ignored by the Operator as well: daemonsets.labels "
            f"{', '.join(reserved)}: it selects the pods"
        )
    made = Pods(
        labels={key: str(value) for key, value in labels.items() if key not in RESERVED_LABELS},
        annotations={
            key: str(value)
            for key, value in (_value(source, "daemonsets.annotations") or {}).items()
        },
        security_context=_value(source, "daemonsets.podSecurityContext") or {},
        update_strategy=str(_value(source, "daemonsets.updateStrategy") or "RollingUpdate"),
    )
    tolerations = _value(source, "daemonsets.tolerations")
    priority = _value(source, "daemonsets.priorityClassName")
    unavailable = str(_value(source, "daemonsets.rollingUpdate.maxUnavailable") or "")
    return replace(
        made,
        tolerations=tuple(tolerations) if tolerations else made.tolerations,
        priority_class=str(priority) if priority else made.priority_class,
        max_unavailable=int(unavailable) if unavailable.isdecimal() else unavailable or 1,
    )
