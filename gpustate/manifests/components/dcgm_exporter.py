"""What a policy decides for dcgm-exporter.

Alert rules are only those whose metrics are in the counters file, since others would never fire.

Sources:
    NVIDIA/gpu-operator v26.7: controllers/object_controls.go (dcgmExporterEnvRequiresAPIAccess);
    NVIDIA/dcgm-exporter 4.8: pkg/cmd/app.go (variables), etc/dcp-metrics-included.csv (its default counters).
"""

from __future__ import annotations

import json
import re
from functools import partial

import yaml

from gpustate.documents import Json
from gpustate.errors import GpustateError
from gpustate.formats.dcgm import counters, shipped
from gpustate.formats.dcgm.dashboard import dashboard
from gpustate.manifests.components.part import Part, by_claim
from gpustate.manifests.ownership import DEPLOY
from gpustate.manifests.settings import COUNTERS_KEY, ClusterSettings, Exporter

_ENGINE = "DCGM_REMOTE_HOSTENGINE_INFO"
_POD_LABELS, _POD_UID = (
    "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS",
    "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID",
)
#: A ConfigMap that the exporter itself reads, as NAMESPACE:NAME.
_CONFIG_MAP = "DCGM_EXPORTER_CONFIGMAP_DATA"
_METRIC = re.compile(r"\bDCGM_\w+")
_DEFAULT_COUNTERS = frozenset(
    f"DCGM_FI_{name}"
    for name in (
        *("DEV_SM_CLOCK", "DEV_MEM_CLOCK", "DEV_MEMORY_TEMP", "DEV_GPU_TEMP", "DEV_POWER_USAGE"),
        *("DEV_TOTAL_ENERGY_CONSUMPTION", "DEV_PCIE_REPLAY_COUNTER", "DEV_GPU_UTIL"),
        *("DEV_MEM_COPY_UTIL", "DEV_ENC_UTIL", "DEV_DEC_UTIL", "DEV_XID_ERRORS", "DEV_FB_FREE"),
        *("DEV_FB_USED", "DEV_FB_RESERVED", "DEV_NVLINK_BANDWIDTH_TOTAL"),
        *("DEV_VGPU_LICENSE_STATUS", "DEV_UNCORRECTABLE_REMAPPED_ROWS"),
        *("DEV_CORRECTABLE_REMAPPED_ROWS", "DEV_ROW_REMAP_FAILURE", "DRIVER_VERSION"),
        *("PROF_GR_ENGINE_ACTIVE", "PROF_PIPE_TENSOR_ACTIVE", "PROF_DRAM_ACTIVE"),
        *("PROF_PCIE_TX_BYTES", "PROF_PCIE_RX_BYTES"),
    )
)


def _values(settings: ClusterSettings) -> Json:
    exporter, claims = settings.dcgm_exporter, settings.dra_driver.enabled
    name, env = by_claim(settings, "nvidia-dcgm-exporter"), exporter.env
    engine = exporter.engine
    if settings.dcgm.enabled:
        engine = f"{by_claim(settings, 'nvidia-dcgm')}:5555"
    reads_pods = any(
        env.get(variable, str(default)).lower() == "true"
        for variable, default in ((_POD_LABELS, exporter.pod_labels), (_POD_UID, exporter.pod_uid))
    )
    reads_config_map = env.get(_CONFIG_MAP, "none") not in ("", "none")
    annotations = dict(exporter.annotations)
    if settings.toolkit.nri:
        annotations[f"nvidia.cdi.k8s.io/container.{name}"] = "management.nvidia.com/gpu=all"
    return {
        "reads_pods": reads_pods,
        "reads_config_map": reads_config_map,
        "reads_namespace": reads_config_map or claims,
        "reads_cluster": reads_pods or claims,
        "has_token": reads_config_map or reads_pods or claims,
        "cluster_role": f"{name}-read-pods",
        "has_counters": exporter.counters is not None and exporter.counters.data is not None,
        "monitor_labels": {"app": name, **exporter.monitor.labels},
        "alert_rules": partial(_rules, exporter),
        "dashboard_name": f"{name}-dashboard",
        "dashboard": lambda: json.dumps(dashboard(), indent=2) + "\n",
        "annotations": annotations,
        "engine": engine,
        # A host engine of the node listens only there.
        "host_network": env.get(_ENGINE, engine).startswith("localhost"),
        "label_patterns": ",".join(exporter.pod_label_patterns),
        "pod_resources": f"{settings.kubelet_root}/pod-resources",
    }


def _rules(exporter: Exporter) -> list[Json]:
    """gpustate's alert rules on metrics that the exporter serves."""
    served = _served(exporter)
    groups: list[Json] = []
    for group in yaml.safe_load(shipped.rules())["groups"]:
        rules = [rule for rule in group["rules"] if set(_METRIC.findall(rule["expr"])) <= served]
        if rules:
            groups.append({**group, "rules": rules})
    return groups


def _served(exporter: Exporter) -> frozenset[str]:
    if exporter.counters is None:
        return _DEFAULT_COUNTERS
    text = (exporter.counters.data or {}).get(COUNTERS_KEY, "")
    try:
        return frozenset(counter.field.name for counter in counters.read(text, COUNTERS_KEY))
    except GpustateError:
        return frozenset()


PART = Part(
    "dcgmExporter",
    "dcgm_exporter",
    f"{DEPLOY}dcgm-exporter",
    "dcgm-exporter",
    claims=True,
    values=_values,
)
