"""Node feature discovery: the objects of its chart, from the chart's values.

Surprising: it is not among the components, for its pods run on every node, and its values are not a ClusterPolicy's.
Values of mappings may be missing: without a value the chart writes no field, or the default of the program applies.

Sources:
    kubernetes-sigs/node-feature-discovery v0.19.0: deployment/helm/node-feature-discovery (templates, values.yaml, crds);
    NVIDIA/gpu-operator v26.7: deployments/gpu-operator/templates/nodefeaturerules.yaml.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from gpustate.documents import Json, JsonView
from gpustate.formats.yaml_events import Dumper
from gpustate.manifests import templates
from gpustate.manifests.ownership import NFD, PART_OF

#: The Helm release that NVIDIA's documentation installs.
_RELEASE = "gpu-operator"
_VERSION = "v0.19.0"
#: Sections of the values, by the role of the program.
_SECTIONS = {
    "master": "master",
    "worker": "worker",
    "topology-updater": "topologyUpdater",
    "gc": "gc",
}


@cache
def _defaults() -> JsonView:
    values: JsonView = json.loads(templates.text("nfd-values.json"))
    return values


def objects(
    values: JsonView | None, namespace: str, *, rules: bool, startup_taint: str = ""
) -> Iterator[Json]:
    """Objects for node feature discovery.

    Args:
        values: of its chart, over the chart's own; ``None``: it is not to be installed.
        namespace: of everything that has one.
        startup_taint: key of a taint that all pods tolerate; empty: none.
        rules: include the rule of the Operator's chart, which labels Nodes by loaded modules.
    """
    if rules:
        yield from templates.objects("nfd-module-rules.yaml", {})
    chart_values = _set_values(merged(_defaults(), values or {}))
    chart = None if values is None else _Chart(chart_values, namespace, startup_taint)
    for item in () if chart is None else _objects(chart):
        meta = item["metadata"]
        yield {**item, "metadata": {**meta, "labels": {**meta.get("labels", {}), PART_OF: NFD}}}


def image(values: JsonView | None = None) -> str:
    """Reference of the image, from the chart's values or its own."""
    settings = (values or _defaults())["image"]
    return f"{settings['repository']}:{settings['tag']}"


def merged(lower: JsonView, upper: JsonView) -> Json:
    """Values over others, as Helm merges them; ``None`` stays, and removes a value of a lower layer."""
    result: Json = {**lower}
    for key, value in upper.items():
        below = result.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            result[key] = merged(below, value)
        else:
            result[key] = value
    return result


def _set_values(values: JsonView) -> Json:
    """Values without those that ``None`` removes."""
    return {
        key: _set_values(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }


def _objects(chart: _Chart) -> Iterator[Json]:
    values = chart.values
    yield from templates.objects("nfd-crds.yaml", {})
    updater, monitor = values["topologyUpdater"], values.get("prometheus") or {}
    if updater.get("enable") and updater.get("createCRDs"):
        yield from templates.objects("nfd-topology-crds.yaml", {})
    for role in _SECTIONS:
        yield from templates.objects("nfd-program.yaml", chart.program(role))
    if monitor.get("enable"):
        more = {
            "name": chart.full_name,
            "namespace": chart.namespace,
            "labels": {**chart.labels, **(monitor.get("labels") or {})},
            "interval": monitor.get("scrapeInterval") or None,
            "chart_name": chart.name,
        }
        yield from templates.objects("nfd-pod-monitor.yaml", more)


class _Filled(Json):
    """Values of a program that are not empty; others are ``None``."""

    def __missing__(self, key: str) -> None:
        return None


@dataclass(frozen=True, slots=True)
class _Chart:
    """Values, and the names and labels that come from them."""

    values: JsonView
    namespace: str
    startup_taint: str

    @property
    def name(self) -> str:
        return str(self.values.get("nameOverride") or NFD)[:63].removesuffix("-")

    @property
    def full_name(self) -> str:
        name = self.values.get("fullnameOverride")
        if not name:
            name = _RELEASE if self.name in _RELEASE else f"{_RELEASE}-{self.name}"
        return str(name)[:63].removesuffix("-")

    @property
    def selector(self) -> dict[str, str]:
        return {"app.kubernetes.io/name": self.name, "app.kubernetes.io/instance": _RELEASE}

    @property
    def labels(self) -> dict[str, str]:
        return {**self.selector, "app.kubernetes.io/version": _VERSION}

    def program(self, role: str) -> Json:
        """Values of the objects of a program."""
        values, part = self.values, self.values[_SECTIONS[role]]
        filled = _Filled({key: value for key, value in part.items() if value})
        account, budget = part["serviceAccount"], part.get("podDisruptionBudget") or {}
        policy = part.get("networkPolicy") or {}
        is_deployment = role in ("master", "gc")
        role_name = self.full_name if role == "master" else f"{self.full_name}-{role}"
        selector = {**self.selector, "role": role}
        has_rights = part.get("enable") and part["rbac"].get("create")
        reads_node = role == "worker" and "node" in (part.get("ownerRefs") or ())
        replicas = {"master": part.get("replicaCount", 1), "gc": part.get("replicaCount") or 1}
        host_users = part.get("hostUsers")
        config = yaml.dump(part.get("config"), Dumper=Dumper, default_flow_style=False)
        return {
            "program": filled,
            "role": role,
            "is_master": role == "master",
            "is_worker": role == "worker",
            "is_topology_updater": role == "topology-updater",
            "is_gc": role == "gc",
            "is_deployment": is_deployment,
            "namespace": self.namespace,
            "name": f"{self.full_name}-{role}",
            "role_name": role_name,
            "labels": self.labels,
            "role_labels": {**self.labels, "role": role},
            "pod_labels": {**self.selector, **(part.get("labels") or {}), "role": role},
            "selector": selector,
            "annotations": filled[f"{'deployment' if is_deployment else 'daemonset'}Annotations"],
            "has_account": part.get("enable") and account.get("create"),
            "account": account.get("name") or (role_name if account.get("create") else "default"),
            "account_annotations": account.get("annotations") or None,
            "has_rights": has_rights,
            "reads_node": reads_node,
            "has_cluster_role": has_rights and (role != "worker" or reads_node),
            "config_name": f"{self.full_name}-{role}-conf",
            "config_volume": f"nfd-{role}-conf",
            "config_file": f"nfd-{role}.conf",
            "config": {f"nfd-{role}.conf": config.removesuffix("...\n").rstrip("\n")},
            "replicas": int(replicas.get(role, 0)) or None,
            "host_users": host_users if isinstance(host_users, bool) else None,
            "priority_class": filled["priorityClassName"]
            or values.get("priorityClassName")
            or None,
            "pull_secrets": self._pull_secrets(),
            "tolerations": self._tolerations(part),
            "image": image(values),
            "pull_policy": values["image"].get("pullPolicy", "IfNotPresent"),
            "command": f"nfd-{role}",
            "args": _ARGUMENTS[role](values, part),
            "port": _port(part),
            "probes": _Filled(
                {
                    name: {"httpGet": {"path": "/healthz", "port": "http"}, **_filled(part[name])}
                    for name in ("startupProbe", "livenessProbe", "readinessProbe")
                    if name in part
                }
            ),
            "network_policy": _Filled(_filled(policy)) if policy.get("enabled") else None,
            "network_policy_name": f"{self.full_name}-{role}-network-policy",
            "disruption_budget": {
                "selector": {"matchLabels": selector},
                **{key: value for key, value in budget.items() if key != "enable"},
            }
            if budget.get("enable")
            else None,
        }

    def _pull_secrets(self) -> list[Json] | None:
        of_all = self.values.get("global", {})
        secrets: list[Json] = (
            self.values.get("imagePullSecrets") or of_all.get("imagePullSecrets") or []
        )
        unique = [name for at, name in enumerate(secrets) if name not in secrets[:at]]
        return unique or None

    def _tolerations(self, part: JsonView) -> list[Json] | None:
        """Those of the values, and the start-up taint: new Nodes may be all that there are."""
        tolerations = [dict(toleration) for toleration in part.get("tolerations") or ()]
        if self.startup_taint:
            tolerations.append({"key": self.startup_taint, "operator": "Exists"})
        return tolerations or None


def _of_master(values: JsonView, part: JsonView) -> list[str]:
    joined = {name: ",".join(part.get(name) or ()) for name in ("extraLabelNs", "denyLabelNs")}
    return [
        *_flag("instance", part.get("instance")),
        *(["-enable-leader-election"] if int(part.get("replicaCount", 1)) > 1 else ()),
        *_flag("extra-label-ns", joined["extraLabelNs"]),
        *_flag("deny-label-ns", joined["denyLabelNs"]),
        *(["-enable-taints"] if part.get("enableTaints") else ()),
        *_flag("resync-period", part.get("resyncPeriod")),
        *_flag("nfd-api-parallelism", part.get("nfdApiParallelism")),
        *_gates(values),
        f"-port={_port(part)}",
    ]


def _of_worker(values: JsonView, part: JsonView) -> list[str]:
    owners = ",".join(part.get("ownerRefs") or ())
    return [*_gates(values), f"-owner-refs={owners}", f"-port={_port(part)}"]


def _of_topology_updater(values: JsonView, part: JsonView) -> list[str]:
    config = ["-kubelet-config-uri=file:///host-var/kubelet-config"]
    return [
        "-podresources-socket=/host-var/lib/kubelet-podresources/kubelet.sock",
        f"-sleep-interval={part.get('updateInterval') or '3s'}",
        f"-watch-namespace={part.get('watchNamespace') or '*'}",
        *([] if part.get("podSetFingerprint") else ["-pods-fingerprint=false"]),
        *(config if part.get("kubeletConfigPath") else ()),
        *([] if part.get("kubeletStateDir") else ["-kubelet-state-dir="]),
        f"-port={_port(part)}",
    ]


def _of_collector(values: JsonView, part: JsonView) -> list[str]:
    return _flag("gc-interval", part.get("interval"))


_ARGUMENTS = {
    "master": _of_master,
    "worker": _of_worker,
    "topology-updater": _of_topology_updater,
    "gc": _of_collector,
}


def _gates(values: JsonView) -> list[str]:
    gates = values.get("featureGates") or {}
    return [f"-feature-gates={name}={_word(on)}" for name, on in sorted(gates.items())]


def _flag(name: str, value: Any) -> list[str]:
    return [f"-{name}={value}"] if value else []


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _port(part: JsonView) -> int:
    return int(part.get("port") or 8080)


def _filled(fields: JsonView) -> Json:
    """Fields with a value."""
    return {name: value for name, value in fields.items() if value}
