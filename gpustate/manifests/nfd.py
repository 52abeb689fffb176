"""Node feature discovery: the objects of its chart, from the chart's values.

Surprising: it is not among the components, for its pods run on every node, and its values are not a ClusterPolicy's.
Values of mappings may be missing: without a value the chart writes no field, or the default of the program applies.

Sources:
    kubernetes-sigs/node-feature-discovery v0.19.0: deployment/helm/node-feature-discovery (templates, values.yaml, crds);
    NVIDIA/gpu-operator v26.7: deployments/gpu-operator/templates/nodefeaturerules.yaml.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from gpustate.formats.yaml_events import Dumper
from gpustate.manifests import jinja_templates as templates
from gpustate.manifests.ownership import NFD, NFD_LEASE, PART_OF

Json = dict[str, Any]

#: All that these programs lack for the Pod Security level ``restricted``.
_RESTRICTED, _PROFILE = ("master", "gc"), {"seccompProfile": {"type": "RuntimeDefault"}}

#: The Helm release that NVIDIA's documentation installs.
_RELEASE = "gpu-operator"
_VERSION = "v0.19.0"
_CONFIGS = "/etc/kubernetes/node-feature-discovery"


def variable(name: str, path: str) -> Json:
    """A variable with a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def mount(name: str, path: str, **more: Any) -> Json:
    """A mount of a volume in a container."""
    return {"name": name, "mountPath": path, **more}


def host_path(name: str, path: str) -> Json:
    """A volume with a path of the node."""
    return {"name": name, "hostPath": {"path": path}}


@cache
def _defaults() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(templates.text("nfd-values.json"))
    return found


def objects(
    values: Mapping[str, Any] | None, namespace: str, *, rules: bool, startup_taint: str = ""
) -> Iterator[Json]:
    """Objects for node feature discovery.

    Args:
        values: of its chart, over the chart's own; ``None``: it is not to be installed.
        namespace: of everything that has one.
        startup_taint: key of a taint that all pods tolerate; empty: none.
        rules: include the rule of the Operator's chart, which labels Nodes by loaded modules.
    """
    if rules:
        yield from templates.objects("nfd-module-rules.yaml")
    whole = _set_values(merged(_defaults(), values or {}))
    chart = None if values is None else _Chart(whole, namespace, startup_taint)
    for item in () if chart is None else _objects(chart):
        meta = item["metadata"]
        yield {**item, "metadata": {**meta, "labels": {**meta.get("labels", {}), PART_OF: NFD}}}


def image(values: Mapping[str, Any] | None = None) -> str:
    """Reference of the image, from the chart's values or its own."""
    found = (values or _defaults())["image"]
    return f"{found['repository']}:{found['tag']}"


def merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> Json:
    """Values over others, as Helm merges them; ``None`` stays, and removes a value of a lower layer."""
    found: Json = {**lower}
    for key, value in upper.items():
        below = found.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            found[key] = merged(below, value)
        else:
            found[key] = value
    return found


def _set_values(values: Mapping[str, Any]) -> Json:
    """Values without those that ``None`` removes."""
    return {
        key: _set_values(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }


def _objects(chart: _Chart) -> Iterator[Json]:
    values = chart.values
    yield from templates.objects("nfd-crds.yaml")
    if values["master"].get("enable"):
        yield from _master(chart)
    if values["worker"].get("enable"):
        yield from _worker(chart)
    if values["topologyUpdater"].get("enable"):
        yield from _topology_updater(chart)
    if values["gc"].get("enable"):
        yield from _collector(chart)
    yield from templates.objects("nfd-rights.yaml", chart=chart, values=values, lease=NFD_LEASE)
    yield from templates.objects("nfd-policies.yaml", chart=chart, values=values, roles=_ROLES)


_ROLES = {"master": "master", "worker": "worker", "topologyUpdater": "topology-updater", "gc": "gc"}


@dataclass(frozen=True, slots=True)
class _Chart:
    """Values, and the names and labels that come from them."""

    values: Mapping[str, Any]
    namespace: str
    startup_taint: str

    @property
    def name(self) -> str:
        return str(self.values.get("nameOverride") or NFD)[:63].removesuffix("-")

    @property
    def full_name(self) -> str:
        given = self.values.get("fullnameOverride")
        if not given:
            given = _RELEASE if self.name in _RELEASE else f"{_RELEASE}-{self.name}"
        return str(given)[:63].removesuffix("-")

    @property
    def selector(self) -> dict[str, str]:
        return {"app.kubernetes.io/name": self.name, "app.kubernetes.io/instance": _RELEASE}

    def meta(self, name: str, role: str = "", *, whole_cluster: bool = False, **more: Any) -> Json:
        """Metadata of an object; ``more`` are fields that may be empty."""
        version = {"app.kubernetes.io/version": _VERSION}
        found: Json = {"name": name}
        if not whole_cluster:
            found["namespace"] = self.namespace
        found["labels"] = {**self.selector, **version, **({"role": role} if role else {})}
        return found | _filled(more)

    def account(self, section: str, suffix: str) -> str:
        """Name of a service account."""
        given = self.values[section]["serviceAccount"]
        default = f"{self.full_name}{suffix}" if given.get("create") else "default"
        return str(given.get("name") or default)

    def config(self, section: str, role: str) -> Json:
        """The ConfigMap with a program's configuration."""
        text = yaml.dump(
            self.values[section].get("config"), Dumper=Dumper, default_flow_style=False
        )
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": self.meta(f"{self.full_name}-{role}-conf"),
            "data": {f"nfd-{role}.conf": text.removesuffix("...\n").rstrip("\n")},
        }

    def workload(self, kind: str, section: str, program: _Program, **spec: Any) -> Json:
        """A Deployment or a DaemonSet."""
        given = self.values[section]
        name = f"{self.full_name}-{program.role}"
        key = "deploymentAnnotations" if kind == "Deployment" else "daemonsetAnnotations"
        selector = {**self.selector, "role": program.role}
        labels = {**self.selector, **(given.get("labels") or {}), "role": program.role}
        return {
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": self.meta(name, program.role, annotations=given.get(key)),
            "spec": {
                **_filled({"revisionHistoryLimit": given.get("revisionHistoryLimit"), **spec}),
                "selector": {"matchLabels": selector},
                "template": {
                    "metadata": {
                        "labels": labels,
                        **_filled({"annotations": dict(given.get("annotations") or {})}),
                    },
                    "spec": self._pod(section, program),
                },
            },
        }

    def _pod(self, section: str, program: _Program) -> Json:
        given = self.values[section]
        secrets = self.values.get("imagePullSecrets") or self.values.get("global", {}).get(
            "imagePullSecrets"
        )
        volumes = list(program.volumes)
        if program.configured:
            volumes.append(self._config_volume(program.role))
        host_users = given.get("hostUsers")
        return {
            **_filled(
                {
                    "dnsPolicy": given.get("dnsPolicy"),
                    "priorityClassName": given.get("priorityClassName")
                    or self.values.get("priorityClassName"),
                    "imagePullSecrets": [
                        one for at, one in enumerate(secrets or ()) if one not in secrets[:at]
                    ],
                    "securityContext": given.get("podSecurityContext")
                    or (_PROFILE if section in _RESTRICTED else None),
                    "initContainers": given.get("initContainers"),
                    "volumes": volumes,
                    "nodeSelector": given.get("nodeSelector"),
                    "affinity": given.get("affinity"),
                    "tolerations": self._tolerations(given),
                }
            ),
            **({"hostUsers": host_users} if isinstance(host_users, bool) else {}),
            "serviceAccountName": self.account(section, program.account),
            "hostNetwork": bool(given.get("hostNetwork")),
            **({"enableServiceLinks": False} if section == "master" else {}),
            "containers": [self._container(given, program)],
        }

    def _tolerations(self, given: Mapping[str, Any]) -> list[Json]:
        """Those of the values, and the start-up taint: new Nodes may be all that there are."""
        found = [dict(one) for one in given.get("tolerations") or ()]
        if self.startup_taint:
            found.append({"key": self.startup_taint, "operator": "Exists"})
        return found

    def _config_volume(self, role: str) -> Json:
        key = f"nfd-{role}.conf"
        source = {"name": f"{self.full_name}-{role}-conf", "items": [{"key": key, "path": key}]}
        return {"name": f"nfd-{role}-conf", "configMap": source}

    def _container(self, given: Mapping[str, Any], program: _Program) -> Json:
        mounts = list(program.mounts)
        if program.configured:
            mounts.append(mount(f"nfd-{program.role}-conf", _CONFIGS, readOnly=True))
        return {
            "name": program.role,
            "image": image(self.values),
            "imagePullPolicy": self.values["image"].get("pullPolicy", "IfNotPresent"),
            "command": [f"nfd-{program.role}"],
            "args": [*program.args, *(given.get("extraArgs") or ())],
            "env": [
                *(variable(name, path) for name, path in program.fields.items()),
                *(given.get("extraEnvs") or ()),
            ],
            "ports": [{"name": "http", "containerPort": _port(given)}],
            **{
                name: {"httpGet": {"path": "/healthz", "port": "http"}, **_filled(given[name])}
                for name in ("startupProbe", "livenessProbe", "readinessProbe")
                if name in given
            },
            **_filled(
                {
                    "securityContext": program.security or given.get("securityContext"),
                    "resources": given.get("resources"),
                    "volumeMounts": mounts,
                }
            ),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """What differs between the programs.

    Args:
        role: its name, without ``nfd-``.
        account: suffix of its service account.
        args: before those of the values.
        fields: variables with fields of the pod.
        mounts, volumes: besides the configuration.
        configured: it has a configuration file.
        security: security context of the container, where the values have none.
    """

    role: str
    account: str
    args: Sequence[str]
    fields: Mapping[str, str]
    mounts: Sequence[Json] = ()
    volumes: Sequence[Json] = ()
    configured: bool = True
    security: Mapping[str, Any] | None = None


_NODE = {"NODE_NAME": "spec.nodeName"}


def _master(chart: _Chart) -> Iterator[Json]:
    given = chart.values["master"]
    yield chart.config("master", "master")
    replicas = int(given.get("replicaCount", 1))
    joined = {name: ",".join(given.get(name) or ()) for name in ("extraLabelNs", "denyLabelNs")}
    args = [
        *_flag("instance", given.get("instance")),
        *(["-enable-leader-election"] if replicas > 1 else ()),
        *_flag("extra-label-ns", joined["extraLabelNs"]),
        *_flag("deny-label-ns", joined["denyLabelNs"]),
        *(["-enable-taints"] if given.get("enableTaints") else ()),
        *_flag("resync-period", given.get("resyncPeriod")),
        *_flag("nfd-api-parallelism", given.get("nfdApiParallelism")),
        *_gates(chart.values),
        f"-port={_port(given)}",
    ]
    program = _Program(role="master", account="", args=args, fields=_NODE)
    yield chart.workload("Deployment", "master", program, replicas=replicas)


def _worker(chart: _Chart) -> Iterator[Json]:
    given = chart.values["worker"]
    owners = given.get("ownerRefs") or ()
    yield chart.config("worker", "worker")
    sources, folder = bool(given.get("mountUsrSrc")), f"{_CONFIGS}/features.d/"
    (pod,) = templates.objects("nfd-worker.yaml", sources=sources, folder=folder)
    program = _Program(
        role="worker",
        account="-worker",
        args=[*_gates(chart.values), f"-owner-refs={','.join(owners)}", f"-port={_port(given)}"],
        fields={**_NODE, "POD_NAME": "metadata.name", "POD_UID": "metadata.uid"},
        mounts=pod["mounts"],
        volumes=pod["volumes"],
    )
    strategy = given.get("updateStrategy")
    yield chart.workload("DaemonSet", "worker", program, updateStrategy=strategy)


def _topology_updater(chart: _Chart) -> Iterator[Json]:
    given = chart.values["topologyUpdater"]
    suffix = "-topology-updater"
    if given.get("createCRDs"):
        yield from templates.objects("nfd-topology-crds.yaml")
    yield chart.config("topologyUpdater", "topology-updater")
    config, state = given.get("kubeletConfigPath"), given.get("kubeletStateDir")
    below = "/host-var/lib/kubelet-podresources/kubelet.sock"
    socket = given.get("kubeletPodResourcesSockPath") or (
        "/var/lib/kubelet/pod-resources/kubelet.sock"
    )
    mounts = [mount("kubelet-podresources-sock", below), mount("host-sys", "/host-sys")]
    volumes = [host_path("host-sys", "/sys"), host_path("kubelet-podresources-sock", socket)]
    if config:
        mounts.insert(0, mount("kubelet-config", "/host-var/kubelet-config"))
        volumes.insert(1, host_path("kubelet-config", config))
    if state:
        mounts.append(mount("kubelet-state-files", "/host-var/lib/kubelet", readOnly=True))
        volumes.append(host_path("kubelet-state-files", state))
    args = [
        f"-podresources-socket={below}",
        f"-sleep-interval={given.get('updateInterval') or '3s'}",
        f"-watch-namespace={given.get('watchNamespace') or '*'}",
        *([] if given.get("podSetFingerprint") else ["-pods-fingerprint=false"]),
        *(["-kubelet-config-uri=file:///host-var/kubelet-config"] if config else ()),
        *([] if state else ["-kubelet-state-dir="]),
        f"-port={_port(given)}",
    ]
    program = _Program(
        role="topology-updater",
        account=suffix,
        args=args,
        fields={**_NODE, "NODE_ADDRESS": "status.hostIP"},
        mounts=mounts,
        volumes=volumes,
    )
    yield chart.workload("DaemonSet", "topologyUpdater", program)


def _collector(chart: _Chart) -> Iterator[Json]:
    """It removes what belongs to Nodes that are gone."""
    given = chart.values["gc"]
    program = _Program(
        role="gc",
        account="-gc",
        args=_flag("gc-interval", given.get("interval")),
        fields=_NODE,
        configured=False,
        security={
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        },
    )
    yield chart.workload("Deployment", "gc", program, replicas=given.get("replicaCount") or 1)


def _gates(values: Mapping[str, Any]) -> list[str]:
    gates = values.get("featureGates") or {}
    return [f"-feature-gates={name}={_word(on)}" for name, on in sorted(gates.items())]


def _flag(name: str, value: Any) -> list[str]:
    return [f"-{name}={value}"] if value else []


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _port(given: Mapping[str, Any]) -> int:
    return int(given.get("port") or 8080)


def _filled(fields: Mapping[str, Any]) -> Json:
    """Fields with a value."""
    return {name: value for name, value in fields.items() if value}
