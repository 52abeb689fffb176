"""Kinds of objects: their names, and the order of their application."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpustate.documents import Json
from gpustate.manifests.ownership import DRA_PLUGIN


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object.

    Args:
        name: its kind.
        version: its apiVersion.
        plural: its resource; by default the name in the plural.
        namespaced: whether it is in a namespace.
        without: what to do about a cluster that lacks the kind; empty for kinds that every cluster has.
        large: its objects are so large that only those of interest are read.
    """

    name: str
    version: str
    plural: str = ""
    namespaced: bool = field(kw_only=True)
    without: str = ""
    large: bool = False

    def __post_init__(self) -> None:
        name = f"{self.name.lower()}s".replace("ys", "ies").replace("sss", "sses")
        object.__setattr__(self, "plural", self.plural or name)

    @property
    def group(self) -> str:
        """Its API group; empty for the core."""
        return self.version.rpartition("/")[0]


_PROMETHEUS = "install prometheus-operator, or set dcgmExporter.serviceMonitor.enabled to false"
_DRA = "dynamic resource allocation needs Kubernetes 1.34 or newer"
_NFD = "install node feature discovery, or set nfd.nodefeaturerules to false"
_NFD_MONITOR = (
    "install prometheus-operator, or set node-feature-discovery.prometheus.enable to false"
)
_ADMISSION, _MONITORING = "admissionregistration.k8s.io/v1", "monitoring.coreos.com/v1"
#: In the order of their application; they are deleted in the opposite order.
KINDS = (
    Kind("CustomResourceDefinition", "apiextensions.k8s.io/v1", namespaced=False, large=True),
    Kind("Namespace", "v1", namespaced=False),
    Kind("DeviceClass", "resource.k8s.io/v1", namespaced=False, without=_DRA),
    Kind("ValidatingAdmissionPolicy", _ADMISSION, namespaced=False, without=_DRA),
    Kind("ValidatingAdmissionPolicyBinding", _ADMISSION, namespaced=False, without=_DRA),
    Kind("RuntimeClass", "node.k8s.io/v1", namespaced=False),
    Kind("ServiceAccount", "v1", namespaced=True),
    Kind("ConfigMap", "v1", namespaced=True),
    Kind("ClusterRole", "rbac.authorization.k8s.io/v1", namespaced=False),
    Kind("ClusterRoleBinding", "rbac.authorization.k8s.io/v1", namespaced=False),
    Kind("Role", "rbac.authorization.k8s.io/v1", namespaced=True),
    Kind("RoleBinding", "rbac.authorization.k8s.io/v1", namespaced=True),
    Kind("ResourceClaimTemplate", "resource.k8s.io/v1", namespaced=True, without=_DRA),
    Kind("Service", "v1", namespaced=True),
    Kind("NetworkPolicy", "networking.k8s.io/v1", namespaced=True),
    Kind("PodDisruptionBudget", "policy/v1", namespaced=True),
    Kind("Deployment", "apps/v1", namespaced=True),
    Kind("DaemonSet", "apps/v1", namespaced=True),
    Kind("NodeFeatureRule", "nfd.k8s-sigs.io/v1alpha1", namespaced=False, without=_NFD),
    Kind("ServiceMonitor", _MONITORING, namespaced=True, without=_PROMETHEUS),
    Kind("PrometheusRule", _MONITORING, namespaced=True, without=_PROMETHEUS),
    Kind("PodMonitor", _MONITORING, namespaced=True, without=_NFD_MONITOR),
)
#: Nodes are labelled, never created or deleted.
NODE = Kind("Node", "v1", namespaced=False)
#: Kinds of the GPU Operator, which gpustate only deletes, and creates again.
CLUSTER_POLICY = Kind("ClusterPolicy", "nvidia.com/v1", namespaced=False)
NVIDIA_DRIVER = Kind("NVIDIADriver", "nvidia.com/v1alpha1", namespaced=False)
GPU_CLUSTER = Kind("GPUCluster", "nvidia.com/v1alpha1", namespaced=False)
BY_NAME: Mapping[str, Kind] = {
    kind.name: kind for kind in (*KINDS, NODE, CLUSTER_POLICY, NVIDIA_DRIVER, GPU_CLUSTER)
}
DEPLOYMENT = BY_NAME["Deployment"]

#: What uses GPUs: listed only, never applied.
POD = Kind("Pod", "v1", namespaced=True)
RESOURCE_CLAIM = Kind("ResourceClaim", "resource.k8s.io/v1", namespaced=True, without=_DRA)
#: Kinds of compute domains; an upgrade by Helm does not add those that a newer chart has.
COMPUTE_DOMAINS = tuple(
    Kind(
        name,
        "resource.nvidia.com/v1beta1",
        namespaced=True,
        without="install the definitions of the DRA driver's chart: kubectl apply -f deployments/helm/dra-driver-nvidia-gpu/crds; "
        "or set draDriver.computeDomains.enabled to false",
    )
    for name in ("ComputeDomain", "ComputeDomainClique")
)

#: Kind and name; every namespaced object is in one and the same namespace.
Key = tuple[str, str]


def key(item: Json) -> Key:
    """Kind and name of an object."""
    return item["kind"], item["metadata"]["name"]


def title(item: Json) -> str:
    """An object in messages: ``daemonset/nvidia-device-plugin-daemonset``."""
    return f"{item['kind'].lower()}/{item['metadata']['name']}"


def order(item: Json) -> tuple[int, bool, str]:
    """Sorts objects in the order of their application: the DRA driver before pods that hold claims of it."""
    names = [kind.name for kind in KINDS]
    kind, name = key(item)
    return names.index(kind) if kind in names else len(names), name != DRA_PLUGIN, name
