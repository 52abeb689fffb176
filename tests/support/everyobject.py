"""Settings of a cluster with every component, and so with objects of every kind; and edits of each as by kubectl."""

from __future__ import annotations

from pathlib import Path

import yaml

from gpustate.documents import Json
from gpustate.manifests import (
    ClusterSettings,
    Component,
    DraDriver,
    Exporter,
    Monitor,
    PluginConfig,
)

_TESTS = Path(__file__).parents[1]
DEFINITIONS: list[Json] = [
    yaml.load(file.read_text(), yaml.CSafeLoader)
    for file in sorted((_TESTS / "data" / "prometheus-operator").glob("*.yaml"))
]
NFD_VALUES: Json = yaml.load(
    (_TESTS / "data" / "nfd-chart" / "all.values.yaml").read_text(), yaml.CSafeLoader
)
_MPS = """\
version: v1
sharing:
  mps:
    resources: [{name: nvidia.com/gpu, replicas: 4}]
"""
MONITORED = Exporter(
    pod_labels=True,
    env={"DCGM_EXPORTER_CONFIGMAP_DATA": "gpus:counters"},
    monitor=Monitor(
        enabled=True,
        interval="15s",
        scrape_timeout="10s",
        honor_labels=True,
        labels={"release": "prom"},
        relabelings=({"sourceLabels": ["a", "b"], "targetLabel": "node", "action": "replace"},),
    ),
)
#: Every component but DRA's, and one with DRA's beside them.
WHOLE = ClusterSettings(
    namespace="whole",
    privileged_namespace=True,
    config=PluginConfig("plugin-configs", "shared", {"shared": _MPS}),
    dcgm=Component(),
    dcgm_exporter=MONITORED,
    node_status_exporter=Component(host_network=True),
    sandbox_device_plugin=Component(),
    kata_device_plugin=Component(),
    cc_manager=Component(resources={"limits": {"memory": "1Gi"}}),
    cc_mode="on",
    node_feature_discovery=NFD_VALUES,
    module_rules=True,
)
DRA = DraDriver(feature_gates={"MPSSupport": True})

_SOMEBODY = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "somebody"}
_RULE = {"apiGroups": ["example.com"], "resources": ["somethings"], "verbs": ["get"]}
#: What somebody edits in an object of each kind: a field that gpustate has applied. Those without an entry are immutable
#: but for their metadata.
_EDITS: dict[str, Json] = {
    "ClusterRole": {"rules": [_RULE]},
    "ClusterRoleBinding": {"subjects": [_SOMEBODY]},
    "DaemonSet": {"spec": {"template": {"spec": {"serviceAccountName": "somebody"}}}},
    "Deployment": {"spec": {"template": {"spec": {"serviceAccountName": "somebody"}}}},
    "DeviceClass": {"spec": {"selectors": []}},
    "NetworkPolicy": {"spec": {"policyTypes": ["Ingress"]}},
    "NodeFeatureRule": {"spec": {"rules": []}},
    "PodMonitor": {"spec": {"podMetricsEndpoints": []}},
    "PrometheusRule": {"spec": {"groups": []}},
    "Role": {"rules": [_RULE]},
    "RoleBinding": {"subjects": [_SOMEBODY]},
    "Service": {"spec": {"selector": {"app": "somebody"}}},
    "ServiceMonitor": {"spec": {"endpoints": []}},
    "ValidatingAdmissionPolicy": {"spec": {"failurePolicy": "Ignore"}},
    "ValidatingAdmissionPolicyBinding": {"spec": {"validationActions": ["Audit"]}},
}


def edit(item: Json) -> Json:
    """A merge patch that changes a label of gpustate, and the content where that can be changed."""
    content = dict(_EDITS.get(item["kind"], {}))
    if item["kind"] == "ConfigMap":
        content = {"data": {next(iter(item["data"])): "edited"}}
    if item["kind"] == "PodDisruptionBudget":
        limits = {"minAvailable", "maxUnavailable"} & item["spec"].keys()
        content = {"spec": dict.fromkeys(limits, 7)}
    return {**content, "metadata": {"labels": {"app.kubernetes.io/managed-by": "somebody"}}}
