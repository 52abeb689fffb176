"""Who else decides about a cluster's objects: an installed GPU Operator, Argo CD, Flux, Helm.

Sources:
    NVIDIA/gpu-operator v24.3 to v26.7: deployments/gpu-operator/templates (labels of the Deployment),
    controllers/object_controls.go (owner references), api/nvidia/v1 (status.state, status.namespace);
    argo-cd.readthedocs.io, "Resource Tracking"; fluxcd.io, "Kustomization" and "HelmRelease" (labels of objects);
    helm.sh, "Labels and Annotations"; operator-framework/api (owner references of a Deployment).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gpustate.documents import Json
from gpustate.manifests.kinds import CLUSTER_POLICY, DEPLOYMENT, GPU_CLUSTER, NVIDIA_DRIVER, Kind
from gpustate.manifests.ownership import FIELD_MANAGER, label_names, owned_fields

#: Kinds of the Operator's own resources, which own its objects.
OPERATOR_OWNERS = (CLUSTER_POLICY.name, NVIDIA_DRIVER.name, GPU_CLUSTER.name)
#: Begins the reason of objects that are refused because of the Operator.
OF_OPERATOR = "it belongs to the GPU Operator"
_OPERATOR = {"app.kubernetes.io/component": "gpu-operator", "app": "gpu-operator"}
_TRACKING_ID = "argocd.argoproj.io/tracking-id"
_INSTANCE = "argocd.argoproj.io/instance"
#: By which Argo CD 2 marks objects, and charts and NFD theirs; it counts with Argo CD as a field manager.
_LABEL = "app.kubernetes.io/instance"
_ARGO_MANAGERS = {"argocd-controller", "argocd-application-controller"}
_FLUX = {"kustomize.toolkit.fluxcd.io": "Kustomization", "helm.toolkit.fluxcd.io": "HelmRelease"}
_HELM = "meta.helm.sh/release-"
_VERSION = re.compile(r"v?\d+\.\d+(?:\.\d+)?\S*$")


class Finder(Protocol):
    """The requests that are needed; see :class:`gpustate.cluster.objects.Objects`."""

    def find(
        self, kind: Kind, namespace: str, *, labels: Mapping[str, str] | None = None
    ) -> list[Json]: ...


@dataclass(frozen=True, slots=True)
class Operator:
    """An installed GPU Operator.

    Args:
        policies: its resources: ClusterPolicies and GPUClusters; the oldest first.
        deployment: its program; ``None`` if there is none.
        drivers: NVIDIADrivers.
    """

    policies: tuple[Json, ...]
    deployment: Json | None
    drivers: tuple[Json, ...] = ()

    @property
    def policy(self) -> Json | None:
        """The ClusterPolicy that counts: the oldest."""
        matches = [policy for policy in self.policies if policy["kind"] == CLUSTER_POLICY.name]
        return matches[0] if matches else None

    @property
    def running(self) -> bool:
        """Whether its program may be running."""
        if self.deployment is None:
            return False
        status = self.deployment.get("status") or {}
        return bool(self.deployment["spec"].get("replicas", 1) or status.get("replicas"))

    @property
    def namespace(self) -> str:
        """The namespace of its objects; empty if nothing says."""
        if self.deployment is not None:
            return str(self.deployment["metadata"]["namespace"])
        status = (self.policy or {}).get("status") or {}
        return str(status.get("namespace") or "")

    @property
    def version(self) -> str:
        """As ``v26.7.0``; empty if nothing says."""
        if self.deployment is None:
            return ""
        labels = self.deployment["metadata"].get("labels") or {}
        chart = str(labels.get("helm.sh/chart") or "").removeprefix("gpu-operator-")
        containers = self.deployment["spec"]["template"]["spec"]["containers"]
        image = str(containers[0].get("image") or "").partition("@")[0].rpartition("/")[2]
        for text in (labels.get("app.kubernetes.io/version"), chart, image.partition(":")[2]):
            if text and _VERSION.match(text):
                return str(text)
        return ""

    @property
    def source(self) -> str:
        """What has installed it, and would install it again; empty if nothing says."""
        if self.deployment is None:
            return ""
        for owner in self.deployment["metadata"].get("ownerReferences") or ():
            if owner["kind"] == "ClusterServiceVersion":
                return f"OLM's ClusterServiceVersion {owner['name']}"
        return gitops(self.deployment) or helm_release(self.deployment)

    def describe(self) -> str:
        """One line: what was found, of which version."""
        words = ["GPU Operator", *([self.version] if self.version else [])]
        details = [f"namespace {self.namespace}"] if self.namespace else []
        if self.source:
            details.append(self.source)
        for policy in self.policies:
            state = (policy.get("status") or {}).get("state")
            title = f"{policy['kind']} {policy['metadata']['name']}"
            details.append(f"{title}: {state}" if state else title)
        if self.deployment is None:
            details.append("no Deployment")
        elif not self.running:
            details.append("scaled to 0")
        return f"{' '.join(words)} ({', '.join(details)})"


def find_operator(objects: Finder) -> Operator | None:
    """The GPU Operator of a cluster, if one is installed.

    Raises:
        ClusterError: a request failed.
    """
    policies = [*objects.find(CLUSTER_POLICY, ""), *objects.find(GPU_CLUSTER, "")]
    policies.sort(
        key=lambda item: (item["metadata"].get("creationTimestamp", ""), item["metadata"]["name"])
    )
    deployments = objects.find(DEPLOYMENT, "*", labels=_OPERATOR)
    if not policies and not deployments:
        return None
    drivers = tuple(objects.find(NVIDIA_DRIVER, ""))
    return Operator(tuple(policies), deployments[0] if deployments else None, drivers)


def operator_owner(item: Json) -> str:
    """The Operator's resource that controls an object, as ``ClusterPolicy name``; empty without one."""
    for owner in item["metadata"].get("ownerReferences") or ():
        if owner.get("controller") and owner["kind"] in OPERATOR_OWNERS:
            return f"{owner['kind']} {owner['name']}"
    return ""


def gitops(item: Json) -> str:
    """What of Argo CD or Flux has an object of its own, by its tracking marks; empty if neither has."""
    meta = item["metadata"]
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    if tracked := annotations.get(_TRACKING_ID):
        return f"Argo CD application {tracked.partition(':')[0]}"
    if instance := labels.get(_INSTANCE):
        return f"Argo CD application {instance}"
    managers = {entry.get("manager") for entry in meta.get("managedFields") or ()}
    marked = _LABEL not in label_names(owned_fields(item, FIELD_MANAGER))  # by others than gpustate
    if managers & _ARGO_MANAGERS and marked and (instance := labels.get(_LABEL)):
        return f"Argo CD application {instance}"
    for domain, kind in _FLUX.items():
        if name := labels.get(f"{domain}/name"):
            return f"Flux {kind} {labels.get(f'{domain}/namespace', 'default')}/{name}"
    return ""


def helm_release(item: Json) -> str:
    """The Helm release that an object is part of; empty without one."""
    annotations = item["metadata"].get("annotations") or {}
    name = annotations.get(f"{_HELM}name")
    if not name:
        return ""
    return f"Helm release {annotations.get(f'{_HELM}namespace', 'default')}/{name}"
