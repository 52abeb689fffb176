"""How a watcher runs as a service: a systemd unit, or a Deployment with an image of its own. Pure.

Sources:
    systemd.exec(5), systemd.service(5); kubernetes.io/docs/concepts/security/pod-security-standards: restricted.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpustate.documents import Json

NAME = NAMESPACE = "gpustate-watch"
#: Of the pod, and of what is mounted there.
POLICY_FOLDER, SSH_FOLDER, STATE_FOLDER = "/etc/gpustate", "/etc/gpustate-ssh", "/var/lib/gpustate"
#: The Secret with ``id_ed25519`` and the ConfigMap with ``known_hosts``, which a person creates.
SSH_SECRET, HOSTS_CONFIG = "gpustate-ssh", "gpustate-known-hosts"
_USER = 65532
_LEASES = "kube-system"
_RBAC = "rbac.authorization.k8s.io"
_LABELS = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/managed-by": "gpustate"}
#: Draining a node, changing it and a reboot may take so long.
_GRACE_S = 3600


def rule(group: str, resources: str, verbs: str) -> Json:
    """One rule; resources and verbs are separated by blanks."""
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}


#: Everything that following Nodes, holding, draining and releasing them takes.
RULES: tuple[Json, ...] = (
    rule("", "nodes", "get list watch patch"),
    rule("", "pods", "list delete"),
    rule("", "pods/eviction", "create"),
    rule("", "events", "create"),
    rule("apps", "daemonsets", "list"),
    rule("policy", "poddisruptionbudgets", "list"),
    rule("resource.k8s.io", "resourceclaims", "list"),
    rule("resource.k8s.io", "resourceslices", "list patch"),
    rule("maintenance.nvidia.com", "nodemaintenances", "list"),
)
LEASE_RULES: tuple[Json, ...] = (rule("coordination.k8s.io", "leases", "get create update"),)
_OBJECT = "list create patch delete"
_CHANGE = "create patch delete"
#: What ``--cluster-objects`` needs besides, and what it grants; see docs/cluster-reference.md.
OBJECT_RULES: tuple[Json, ...] = (
    rule("", "namespaces serviceaccounts configmaps services", _OBJECT),
    rule("node.k8s.io", "runtimeclasses", _OBJECT),
    rule("apps", "daemonsets", _OBJECT),
    rule(_RBAC, "clusterroles clusterrolebindings roles rolebindings", _OBJECT),
    rule("monitoring.coreos.com", "servicemonitors prometheusrules", _OBJECT),
    rule("", "nodes/status", "patch"),
    rule("", "events", "list"),
    rule("apps", "deployments", "list"),
    rule("networking.k8s.io", "networkpolicies", "list"),
    rule("nfd.k8s-sigs.io", "nodefeaturerules", "list"),
    rule("monitoring.coreos.com", "podmonitors", "list"),
    rule("apiextensions.k8s.io", "customresourcedefinitions", "list"),
    rule("resource.k8s.io", "deviceclasses resourceclaimtemplates", "list"),
    rule(
        "admissionregistration.k8s.io",
        "validatingadmissionpolicies validatingadmissionpolicybindings",
        "list",
    ),
    rule("", "pods", "get watch"),
    rule("", "configmaps", "get"),
    rule("nfd.k8s-sigs.io", "nodefeatures", "get create update"),
)
#: What ``install_nfd`` needs besides.
DISCOVERY_RULES: tuple[Json, ...] = (
    rule("apiextensions.k8s.io", "customresourcedefinitions", f"get {_CHANGE}"),
    rule("apps", "deployments", _CHANGE),
    rule("networking.k8s.io", "networkpolicies", _CHANGE),
    rule("policy", "poddisruptionbudgets", _CHANGE),
    rule("monitoring.coreos.com", "podmonitors", _CHANGE),
    rule("nfd.k8s-sigs.io", "nodefeaturerules", _CHANGE),
    rule("", "namespaces", "watch"),
    rule("", "pods", "create"),
    rule("", "nodes", "update"),
    rule("", "nodes/status", "get list update"),
    rule("nfd.k8s-sigs.io", "nodefeatures", "list watch delete"),
    rule("nfd.k8s-sigs.io", "nodefeaturerules nodefeaturegroups", "get list watch"),
    rule("nfd.k8s-sigs.io", "nodefeaturegroups/status", "patch update"),
    rule("coordination.k8s.io", "leases", "create get update"),
    rule("topology.node.k8s.io", "noderesourcetopologies", "list delete"),
)


def systemd_unit(words: Sequence[str], folder: str, kubeconfig: str = "") -> str:
    """The text of a unit.

    Args:
        words: the command line, with the program's absolute path.
        folder: in which its relative paths are.
        kubeconfig: value of ``KUBECONFIG``; empty: it is not set.
    """
    cluster = f"Environment={_quoted('KUBECONFIG=' + kubeconfig)}\n" if kubeconfig else ""
    command = " ".join(_quoted(word) for word in words)
    return f"""\
[Unit]
Description=Apply a gpustate policy to GPU nodes that join, reboot, or get another MIG label
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={command}
WorkingDirectory={folder}
StateDirectory=gpustate
Environment=XDG_STATE_HOME=/var/lib PYTHONUNBUFFERED=1
{cluster}# SIGTERM ends it after the nodes under way.
KillMode=mixed
TimeoutStopSec={_GRACE_S}
Restart=always
RestartSec=10
NoNewPrivileges=yes
ProtectSystem=full
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
"""


def _quoted(word: str) -> str:
    """A word of a command line in a unit."""
    escaped = word.replace("%", "%%").replace("$", "$$")
    return escaped if shlex.quote(word) == word else f'"{escaped.replace(chr(92), chr(92) * 2)}"'


def dockerfile(version: str) -> str:
    """The recipe of an image.

    Args:
        version: of gpustate.
    """
    return f"""\
# Build: docker build --tag registry.example.net/gpustate:{version} - <Dockerfile
FROM docker.io/library/python:3.13-slim
RUN pip install --no-cache-dir --no-compile gpustate=={version}
USER {_USER}:{_USER}
ENV PYTHONUNBUFFERED=1 HOME={STATE_FOLDER} XDG_STATE_HOME={STATE_FOLDER}
WORKDIR {POLICY_FOLDER}
ENTRYPOINT ["gpustate"]
"""


@dataclass(frozen=True, slots=True)
class Service:
    """A watcher that runs as a pod.

    Args:
        image: reference.
        arguments: of gpustate, from ``watch`` on; paths are those in the pod.
        files: policy, inventory and others, by their name in the pod's folder.
        rules: further rights, of the objects that it applies.
    """

    image: str
    arguments: Sequence[str]
    files: Mapping[str, str]
    rules: Sequence[Json] = field(default_factory=tuple[Json, ...])


def manifests(service: Service) -> list[Json]:
    """The objects, in the order of their application."""
    account = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": NAMESPACE,
                "labels": {
                    **_LABELS,
                    **{
                        f"pod-security.kubernetes.io/{mode}": "restricted"
                        for mode in ("audit", "enforce", "warn")
                    },
                },
            },
        },
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _meta()},
        _role("ClusterRole", _meta(namespace=""), [*RULES, *service.rules]),
        _binding("ClusterRole", _meta(namespace=""), account),
        _role("Role", _meta(namespace=_LEASES), LEASE_RULES),
        _binding("Role", _meta(namespace=_LEASES), account),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _meta(),
            "data": dict(sorted(service.files.items())),
        },
        _deployment(service),
    ]


def _meta(namespace: str = NAMESPACE) -> Json:
    place = {"namespace": namespace} if namespace else {}
    return {"name": NAME, **place, "labels": dict(_LABELS)}


def _role(kind: str, meta: Json, rules: Sequence[Json]) -> Json:
    return {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": meta, "rules": list(rules)}


def _binding(kind: str, meta: Json, account: Json) -> Json:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": meta,
        "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": NAME},
        "subjects": [dict(account)],
    }


def _deployment(service: Service) -> Json:
    labels = {"app.kubernetes.io/name": NAME}
    mounts = {"policy": POLICY_FOLDER, "ssh": SSH_FOLDER, "state": STATE_FOLDER, "tmp": "/tmp"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _meta(),
        "spec": {
            # Another one would only wait for the Lease.
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": dict(_LABELS)},
                "spec": {
                    "serviceAccountName": NAME,
                    "priorityClassName": "system-cluster-critical",
                    "terminationGracePeriodSeconds": _GRACE_S,
                    # A node that is drained must not evict the watcher that drains it.
                    "affinity": {"nodeAffinity": _not_on_gpus()},
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": _USER,
                        "runAsGroup": _USER,
                        "fsGroup": _USER,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [
                        {
                            "name": "gpustate",
                            "image": service.image,
                            "args": list(service.arguments),
                            "securityContext": {
                                "allowPrivilegeEscalation": False,
                                "readOnlyRootFilesystem": True,
                                "capabilities": {"drop": ["ALL"]},
                            },
                            "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}},
                            "volumeMounts": [
                                {
                                    "name": name,
                                    "mountPath": path,
                                    **({"readOnly": True} if name in ("policy", "ssh") else {}),
                                }
                                for name, path in mounts.items()
                            ],
                        }
                    ],
                    "volumes": [
                        {"name": "policy", "configMap": {"name": NAME}},
                        {"name": "ssh", "projected": _ssh_files()},
                        {"name": "state", "emptyDir": {}},
                        {"name": "tmp", "emptyDir": {}},
                    ],
                },
            },
        },
    }


def _ssh_files() -> Json:
    """The key, which only the user and the group of the pod may read, and the host keys."""
    return {
        "defaultMode": 0o440,
        "sources": [{"secret": {"name": SSH_SECRET}}, {"configMap": {"name": HOSTS_CONFIG}}],
    }


def _not_on_gpus() -> Json:
    absent = [
        {"key": key, "operator": "DoesNotExist"}
        for key in (
            "nvidia.com/gpu.present",
            "feature.node.kubernetes.io/pci-10de.present",
            "feature.node.kubernetes.io/pci-0300_10de.present",
            "feature.node.kubernetes.io/pci-0302_10de.present",
        )
    ]
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": absent}]
        }
    }
