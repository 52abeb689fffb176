"""The settings of a cluster's objects in a ClusterPolicy or in Helm values.

Defaults are those of the Operator, or of the chart for values. Without an image in the file, that of the Operator's
release is used.

Sources:
    NVIDIA/gpu-operator v26.7: internal/image (how the reference is made), controllers/object_controls.go
    (applyCommonDaemonsetConfig, TransformDevicePlugin, TransformGPUDiscoveryPlugin).
"""

from __future__ import annotations

from collections.abc import Iterable

from gpustate.documents import Json, JsonView
from gpustate.errors import PolicyError
from gpustate.formats import deviceplugin
from gpustate.gpu_operator import dra, exporters, history
from gpustate.gpu_operator.companions import Companion
from gpustate.gpu_operator.components import (
    BESIDE,
    IMAGE,
    OF_CHART,
    component,
    fields_of_objects,
    reference,
    settings,
    texts,
    value,
)
from gpustate.gpu_operator.containers import with_containers
from gpustate.gpu_operator.contents import mixed_with_mps
from gpustate.gpu_operator.desired import DesiredState, Source
from gpustate.gpu_operator.documents import plain
from gpustate.gpu_operator.helm import deploys_dra
from gpustate.gpu_operator.operands import (
    layout_by_label,
    mig_strategy,
    missing_reference,
    require_config_map,
)
from gpustate.gpu_operator.runtime import cdi_by_default
from gpustate.manifests import nfd, ownership
from gpustate.manifests.components import PARTS
from gpustate.manifests.settings import (
    RESERVED_LABELS,
    ClusterSettings,
    Component,
    DriverContainer,
    PluginConfig,
    Pods,
)

_CONFIG = "devicePlugin.config.name"
#: Settings that mean something with the DRA driver.
_WITH_DRA = ("privileged_namespace", "kubelet_root", "host_root", "driver_root")
_BY_ENVIRONMENT = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_BY_MOUNT = "accept-nvidia-visible-devices-as-volume-mounts"


def images(release: str = "") -> dict[str, str]:
    """References of the images of a release of the Operator (default: the newest), by component.

    Sources:
        NVIDIA/gpu-operator, each release: deployments/gpu-operator/values.yaml.
    """
    table = history.chart_defaults(release)
    references: dict[str, str] = {}
    for name in (*(part.name for part in PARTS), *BESIDE):
        pieces = {piece: str(table.get(f"{name}.{piece}", "")) for piece in IMAGE}
        if name in OF_CHART:
            pieces["version"] = pieces["version"] or release or history.newest()
        references[name] = reference(*pieces.values())
    return references


def cluster_settings(
    source: Source, states: Iterable[DesiredState], drivers: Iterable[DriverContainer] = ()
) -> ClusterSettings:
    """Return the settings of the cluster's objects.

    Args:
        source: the document.
        states: of the nodes; the device plugin has to fit the container toolkit's configuration.
        drivers: as containers.

    Raises:
        PolicyError: an image that is set in part only.
    """
    if source.kind == "gpucluster" or (source.kind == "helm" and deploys_dra(source)):
        return with_containers(source, _with_dra(source), drivers)
    cdi = source.enabled("cdi", otherwise=cdi_by_default(source))
    strategy = "cdi-annotations,cdi-cri" if cdi else _strategy_without_cdi(states)
    mig, _ = mig_strategy(source)
    settings_of_cluster = ClusterSettings(
        device_plugin=_by_default(source, "devicePlugin"),
        feature_discovery=_by_default(source, "gfd"),
        config=_plugin_config(source),
        device_list_strategy=strategy,
        cdi=cdi,
        mig_strategy=mig,
        mig=layout_by_label(source),
        dcgm=exporters.engine(source),
        dcgm_exporter=exporters.exporter(source),
        node_status_exporter=exporters.node_status(source),
        sandbox_device_plugin=_for_machines(source, "sandboxDevicePlugin", "kubevirt"),
        kata_device_plugin=_for_machines(source, "kataSandboxDevicePlugin", "kata"),
        cc_manager=_for_machines(source, "ccManager", "kata"),
        pods=_pods(source),
        node_feature_discovery=_feature_discovery(source) if source.kind == "helm" else None,
        object_fields=fields_of_objects(source),
        **settings(source),
    )
    return with_containers(source, settings_of_cluster, drivers)


def _with_dra(source: Source) -> ClusterSettings:
    """The objects of a GPUCluster, which has no device plugin."""
    absent = Component(enabled=False)
    values = settings(source)
    return ClusterSettings(
        runtime_class="",
        device_plugin=absent,
        feature_discovery=absent,
        dra_driver=dra.driver(source),
        dcgm=exporters.engine(source),
        dcgm_exporter=exporters.exporter(source),
        pods=_pods(source),
        object_fields=fields_of_objects(source),
        **{name: values[name] for name in _WITH_DRA if name in values},
    )


def _feature_discovery(source: Source) -> JsonView | None:
    """Values of node feature discovery; ``None`` unless the file itself asks for it."""
    if not source.enabled("nfd", otherwise=False):
        prefix = f"{ownership.NFD}."
        why = "nfd.enabled is not true in the file, so node feature discovery is not installed"
        source.note_unused(why, prefix)
        return None
    values = source.spec.get(ownership.NFD)
    shared = source.spec.get("global")
    merged = nfd.merged(nfd_values(source.release), {} if values is None else plain(values))
    return merged if shared is None else {**merged, "global": plain(shared)}


def nfd_values(release: str = "") -> Json:
    """Values of node feature discovery in the chart of a release of the Operator (default: the newest)."""
    values: Json = {}
    for path, default in history.chart_defaults(release).items():
        if path.startswith(f"{ownership.NFD}."):
            *above, key = path.split(".")[1:]
            section = values
            for name in above:
                section = section.setdefault(name, {})
            section[key] = default
    return values


def _for_machines(source: Source, name: str, mode: str) -> Component:
    """A component of Nodes for virtual machines, in one mode of ``sandboxWorkloads``."""
    enabled = source.enabled("sandboxWorkloads", otherwise=False)
    current_mode = str(value(source, "sandboxWorkloads.mode") or "kubevirt")
    enabled = enabled and current_mode == mode and bool(value(source, f"{name}.enabled"))
    return component(source, name, enabled=enabled)


def _by_default(source: Source, name: str) -> Component:
    """A component that runs unless the file disables it."""
    return component(source, name, enabled=source.enabled(name, otherwise=True))


def _strategy_without_cdi(states: Iterable[DesiredState]) -> str:
    """How containers ask for GPUs, by what the container toolkit accepts of unprivileged ones."""
    toolkit = next((state for state in states if state.state == "container-toolkit"), None)
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
    config_map = require_config_map(source, name, _CONFIG)
    _check_strategy(source, config_map, key)
    data = {key: entry.text for key, entry in config_map.entries.items()}
    return PluginConfig(str(name.value), key, data)


def _check_strategy(source: Source, config_map: Companion, default: str) -> None:
    """Refuse MPS with the MIG strategy ``mixed``, as the plugin does when it starts."""
    strategy, place = mig_strategy(source)
    if strategy != "mixed" or not _by_default(source, "devicePlugin").enabled:
        return
    if words := mixed_with_mps(config_map, default):
        raise PolicyError(words, place=place, fix=deviceplugin.INSTEAD_OF_MIXED)


def _pods(source: Source) -> Pods:
    labels = texts(source, "daemonsets.labels")
    reserved = sorted(set(labels) & set(RESERVED_LABELS))
    if reserved:
        section = source.spec.get("daemonsets", "labels") or source.spec
        source.notes.append(
            f"{source.place(section)}: ignored by the Operator as well: daemonsets.labels "
            f"{', '.join(reserved)}: it selects the pods"
        )
    unavailable = str(value(source, "daemonsets.rollingUpdate.maxUnavailable") or "")
    return Pods(
        labels={key: text for key, text in labels.items() if key not in RESERVED_LABELS},
        tolerations=tuple(value(source, "daemonsets.tolerations") or Pods().tolerations),
        security_context=value(source, "daemonsets.podSecurityContext") or {},
        max_unavailable=int(unavailable) if unavailable.isdecimal() else unavailable or 1,
        **settings(source, "pods"),
    )
