"""dcgm-exporter as pods, with what Prometheus and Grafana need: ServiceMonitor, alert rules, dashboard.

Alert rules are only those whose metrics are in the counters file, since others would never fire.

Sources:
    NVIDIA/gpu-operator v26.7: assets/state-dcgm-exporter, controllers/object_controls.go (TransformDCGMExporter,
    TransformDCGMExporterService, dcgmExporterEnvRequiresAPIAccess);
    NVIDIA/dcgm-exporter 4.8: pkg/cmd/app.go (variables), etc/dcp-metrics-included.csv (its default counters);
    grafana/helm-charts: charts/grafana/values.yaml (sidecar.dashboards.label).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from gpustate.errors import GpustateError
from gpustate.formats.dcgm import counters, shipped
from gpustate.formats.dcgm.dashboard import dashboard
from gpustate.manifests import monitoring, rbac

from gpustate.manifests.components.part import Json, Part, by_claim
from gpustate.manifests.containers import config_map, host_path, mount
from gpustate.manifests.pods import Program, claim_template, daemon_set
from gpustate.manifests.settings import COUNTERS_KEY, ClusterObjects, Exporter, Files

NODE_LABEL = "nvidia.com/gpu.deploy.dcgm-exporter"
NAME = "nvidia-dcgm-exporter"
_PORT = 9400
_FOLDER = "/etc/dcgm-exporter"
_ENGINE = "DCGM_REMOTE_HOSTENGINE_INFO"
_POD_LABELS, _POD_UID = (
    "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS",
    "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID",
)
_POD_LABEL_PATTERNS = "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"
#: A ConfigMap that the exporter itself reads, as NAMESPACE:NAME.
_CONFIG_MAP = "DCGM_EXPORTER_CONFIGMAP_DATA"
_READ = "get list watch"
_CLAIM_TEMPLATE = "nvidia-dcgm-exporter-admin"
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


def _objects(settings: ClusterObjects, image: str) -> Iterator[Json]:
    exporter, namespace = settings.dcgm_exporter, settings.namespace
    name, claims = by_claim(settings, NAME), settings.dra_driver.enabled
    env = _variables(settings)
    reads_pods, reads_config = _reads_pods(env), env.get(_CONFIG_MAP, "none") not in ("", "none")
    yield rbac.account(name, namespace)
    if claims:
        yield claim_template(_CLAIM_TEMPLATE, namespace)
    local = [
        *([rbac.rule("", "configmaps", "get list")] if reads_config else ()),
        *([rbac.rule("resource.k8s.io", "resourceclaims", _READ)] if claims else ()),
    ]
    if local:
        yield from rbac.grant(name, namespace, local, cluster=False)
    whole = [
        *([rbac.rule("", "pods", _READ)] if reads_pods else ()),
        *([rbac.rule("resource.k8s.io", "resourceslices", _READ)] if claims else ()),
    ]
    if whole:
        yield from rbac.grant(f"{name}-read-pods", namespace, whole, cluster=True, account=name)
    if exporter.counters is not None and exporter.counters.data is not None:
        yield config_map(settings, Files(exporter.counters.name, exporter.counters.data))
    yield _service(name, exporter, namespace)
    if exporter.monitor.enabled:
        yield monitoring.service_monitor(name, namespace, "gpu-metrics", exporter.monitor, "app")
        groups = _rules(exporter)
        yield monitoring.prometheus_rule(name, namespace, groups, exporter.monitor)
        yield _dashboard(settings, name)
    program = _program(settings, env, token=claims or reads_pods or reads_config)
    yield daemon_set(settings, exporter, image, program)


def _variables(settings: ClusterObjects) -> dict[str, str]:
    exporter = settings.dcgm_exporter
    env = {
        "DCGM_EXPORTER_LISTEN": f":{_PORT}",
        "DCGM_EXPORTER_KUBERNETES": "true",
        "DCGM_EXPORTER_COLLECTORS": f"{_FOLDER}/dcp-metrics-included.csv",
    }
    engine = (
        f"{by_claim(settings, 'nvidia-dcgm')}:5555" if settings.dcgm.enabled else exporter.engine
    )
    if engine:
        env[_ENGINE] = engine
    if settings.dra_driver.enabled:
        env["KUBERNETES_ENABLE_DRA"] = "true"  # devices have names of slices, not UUIDs
    if exporter.job_mapping:
        env["DCGM_HPC_JOB_MAPPING_DIR"] = exporter.job_mapping
    if exporter.pod_labels:
        env[_POD_LABELS] = "true"
    if exporter.pod_uid:
        env[_POD_UID] = "true"
    if exporter.pod_label_patterns:
        env[_POD_LABEL_PATTERNS] = ",".join(exporter.pod_label_patterns)
    if exporter.counters is not None:
        env["DCGM_EXPORTER_COLLECTORS"] = f"{_FOLDER}/{COUNTERS_KEY}"
    return {**env, **exporter.env}


def _reads_pods(env: Mapping[str, str]) -> bool:
    return any(env.get(name, "").lower() == "true" for name in (_POD_LABELS, _POD_UID))


def _program(settings: ClusterObjects, env: Mapping[str, str], *, token: bool) -> Program:
    exporter = settings.dcgm_exporter
    mounts = [mount("pod-gpu-resources", "/var/lib/kubelet/pod-resources", readOnly=True)]
    volumes = [host_path("pod-gpu-resources", f"{settings.kubelet_root}/pod-resources")]
    if exporter.job_mapping:
        mounts.append(mount("hpc-job-mapping", exporter.job_mapping, readOnly=True))
        volumes.append(host_path("hpc-job-mapping", exporter.job_mapping, "DirectoryOrCreate"))
    if exporter.counters is not None:
        path = f"{_FOLDER}/{COUNTERS_KEY}"
        mounts.append(mount("metrics-config", path, readOnly=True, subPath=COUNTERS_KEY))
        item = {"key": COUNTERS_KEY, "path": COUNTERS_KEY}
        source = {"name": exporter.counters.name, "items": [item]}
        volumes.append({"name": "metrics-config", "configMap": source})
    return Program(
        name=by_claim(settings, NAME),
        container=by_claim(settings, NAME),
        account=by_claim(settings, NAME),
        nodes={by_claim(settings, NODE_LABEL): "true"},
        env=env,
        fields={"NODE_NAME": "spec.nodeName"},
        mounts=mounts,
        volumes=volumes,
        ports=[{"name": "metrics", "containerPort": _PORT}],
        more={"livenessProbe": _health(periodSeconds=5), "readinessProbe": _health()},
        annotations=exporter.annotations,
        api=token,
        host_pid=exporter.host_pid,
        waits=not settings.dra_driver.enabled,
        claim=_CLAIM_TEMPLATE if settings.dra_driver.enabled else "",
        # A host engine of the node listens only there.
        host_network=env.get(_ENGINE, "").startswith("localhost"),
    )


def _health(**more: int) -> Json:
    return {
        "httpGet": {"port": _PORT, "path": "/health"},
        "initialDelaySeconds": 45,
        **more,
    }


def _service(name: str, exporter: Exporter, namespace: str) -> Json:
    more: dict[str, Any] = {}
    if exporter.service_type:
        more["type"] = exporter.service_type
    if exporter.internal_traffic_policy:
        more["internalTrafficPolicy"] = exporter.internal_traffic_policy
    return monitoring.scraped(monitoring.service(name, namespace, "gpu-metrics", _PORT, **more))


def _rules(exporter: Exporter) -> list[Json]:
    """gpustate's alert rules on metrics that the exporter serves."""
    served = _served(exporter)
    found: list[Json] = []
    for group in yaml.safe_load(shipped.rules())["groups"]:
        rules = [one for one in group["rules"] if set(_METRIC.findall(one["expr"])) <= served]
        if rules:
            found.append({**group, "rules": rules})
    return found


def _served(exporter: Exporter) -> frozenset[str]:
    if exporter.counters is None:
        return _DEFAULT_COUNTERS
    text = (exporter.counters.data or {}).get(COUNTERS_KEY, "")
    try:
        return frozenset(one.field.name for one in counters.read(text, COUNTERS_KEY))
    except GpustateError:
        return frozenset()


def _dashboard(settings: ClusterObjects, name: str) -> Json:
    """The dashboard, with the label by which Grafana's sidecar finds it."""
    data = {"gpustate-dcgm.json": json.dumps(dashboard(), indent=2) + "\n"}
    found = config_map(settings, Files(f"{name}-dashboard", data))
    return {**found, "metadata": {**found["metadata"], "labels": {"grafana_dashboard": "1"}}}


PART = Part(
    "dcgmExporter",
    "dcgm_exporter",
    NODE_LABEL,
    "dcgm-exporter",
    claims=True,
    build=_objects,
)
