"""Objects by which Prometheus finds and judges metrics: Services, ServiceMonitors, PrometheusRules.

The last two are kinds of prometheus-operator, which a cluster may lack.

Sources:
    NVIDIA/gpu-operator v26.7: assets/state-dcgm-exporter, assets/state-node-status-exporter,
    controllers/object_controls.go (applyServiceMonitorCustomEdits);
    prometheus-operator/prometheus-operator: Documentation/api-reference (monitoring.coreos.com/v1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpustate.manifests.settings import Monitor

Json = dict[str, Any]

_VERSION = "monitoring.coreos.com/v1"


def service(name: str, namespace: str, port: str, number: int, **more: Any) -> Json:
    """The Service of a DaemonSet's pods; ``more`` are further fields of its spec."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {
            "selector": {"app": name},
            "ports": [{"name": port, "port": number, "targetPort": number, "protocol": "TCP"}],
            **more,
        },
    }


def scraped(item: Json) -> Json:
    """A Service that Prometheus scrapes by its annotation."""
    return {
        **item,
        "metadata": {**item["metadata"], "annotations": {"prometheus.io/scrape": "true"}},
    }


def service_monitor(name: str, namespace: str, port: str, monitor: Monitor, label: str) -> Json:
    """The ServiceMonitor of a Service of the same name.

    Args:
        name, namespace: of both.
        port: name of the Service's port.
        monitor: of the policy.
        label: whose value is the name of the job; without it the name of the Service.
    """
    endpoint: Json = {"port": port, "path": "/metrics"}
    if monitor.interval:
        endpoint["interval"] = monitor.interval
    if monitor.scrape_timeout:
        endpoint["scrapeTimeout"] = monitor.scrape_timeout
    if monitor.honor_labels is not None:
        endpoint["honorLabels"] = monitor.honor_labels
    if monitor.relabelings:
        endpoint["relabelings"] = [dict(one) for one in monitor.relabelings]
    return {
        "apiVersion": _VERSION,
        "kind": "ServiceMonitor",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"app": name, **monitor.labels},
        },
        "spec": {
            "endpoints": [endpoint],
            "jobLabel": label,
            "namespaceSelector": {"matchNames": [namespace]},
            "selector": {"matchLabels": {"app": name}},
        },
    }


def prometheus_rule(name: str, namespace: str, groups: Sequence[Json], monitor: Monitor) -> Json:
    """Alert rules, with the labels by which a ServiceMonitor is selected."""
    return {
        "apiVersion": _VERSION,
        "kind": "PrometheusRule",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"app": name, **monitor.labels},
        },
        "spec": {"groups": list(groups)},
    }
