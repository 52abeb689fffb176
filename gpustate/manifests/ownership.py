"""Whose an object is, and whose its fields are.

Sources:
    kubernetes.io/docs/reference/using-api/server-side-apply: field managers, managedFields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpustate.documents import Json
from gpustate.errors import ClusterError

#: Field manager of whole objects, and that of labels that gpustate sets on Nodes.
FIELD_MANAGER, LABEL_MANAGER = "gpustate", "gpustate-labels"
#: Labels of every object that gpustate has created.
OWNER: Mapping[str, str] = {
    "app.kubernetes.io/managed-by": "gpustate",
    "gpustate.io/owner": "cluster-objects",
}
#: Beginning of the labels of Nodes that turn components on there.
DEPLOY = "nvidia.com/gpu.deploy."
#: Names of the DaemonSets that offer the GPUs.
DEVICE_PLUGIN, DRA_PLUGIN = "nvidia-device-plugin-daemonset", "nvidia-dra-driver-kubelet-plugin"
#: Node feature discovery, in the label of every object of it, and a custom resource definition that it always has.
PART_OF, NFD = "app.kubernetes.io/part-of", "node-feature-discovery"
NFD_DEFINITION = "nodefeatures.nfd.k8s-sigs.io"
#: Leases of the programs that elect a leader: node feature discovery's master and the DRA driver's controller.
NFD_LEASE, DRA_LEASE = "nfd-master.nfd.kubernetes.io", "nvidia-dra-driver-controller"
#: Kind of the objects in which programs publish the features of a Node.
FEATURE = "NodeFeature"


class FieldConflict(ClusterError):
    """Another field manager decides a field otherwise; the message names both."""


class StaleObject(ClusterError):
    """Somebody has changed an object since it was read."""


class MissingKind(ClusterError):
    """The API server has no objects of a kind: its custom resource definition is missing."""


def is_of_nfd(item: Json) -> bool:
    """Whether an object belongs to node feature discovery."""
    return bool((item["metadata"].get("labels") or {}).get(PART_OF) == NFD)


def is_owned(item: Json) -> bool:
    """Whether an object has the labels of gpustate's own."""
    labels = item["metadata"].get("labels") or {}
    return all(labels.get(name) == value for name, value in OWNER.items())


def owned_fields(item: Json, manager: str) -> Any:
    """The fields of an object that a manager has applied; ``None`` if it has applied none."""
    for entry in item["metadata"].get("managedFields") or ():
        applied = entry.get("operation") == "Apply" and not entry.get("subresource")
        if entry.get("manager") == manager and applied:
            return entry.get("fieldsV1")
    return None


def applied_labels(node: Json) -> set[str]:
    """The labels that gpustate has applied to a Node."""
    return label_names(owned_fields(node, LABEL_MANAGER))


def written_labels(node: Json) -> set[str]:
    """The labels of a Node whose value a run has written."""
    names = {
        name
        for entry in node["metadata"].get("managedFields") or ()
        if entry.get("manager") == FIELD_MANAGER
        for name in label_names(entry.get("fieldsV1"))
    }
    return names & (node["metadata"].get("labels") or {}).keys()


def label_names(fields: Json | None) -> set[str]:
    """The labels among the fields of a manager."""
    labels = ((fields or {}).get("f:metadata") or {}).get("f:labels") or {}
    return {name.removeprefix("f:") for name in labels if name.startswith("f:")}
