"""What node feature discovery has written on a Node, and objects of it whose programs are gone. Pure.

Its master lists its labels, annotations, extended resources and taints in annotations of the Node. Nobody removes them
after it: its chart runs ``nfd-master -prune`` for that. The annotations of a master with an instance's name, except
that of taints, have the name before their prefix: ``INSTANCE.nfd.node.kubernetes.io/feature-labels``.

Sources:
    kubernetes-sigs/node-feature-discovery v0.19.0: pkg/nfd-master/nfd-master.go (prune, updateNodeObject, setTaints,
    instanceAnnotation);
    NVIDIA/k8s-device-plugin v0.18.0: internal/lm/output.go (NodeFeatures without an owner).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpustate.documents import Json
from gpustate.manifests.kinds import Kind
from gpustate.manifests.ownership import FEATURE

FEATURES = Kind(
    FEATURE, "nfd.k8s-sigs.io/v1alpha1", "nodefeatures", namespaced=True, without="it was removed"
)
_NFD = "nfd.node.kubernetes.io"
#: Where names without a prefix belong.
_DEFAULT = "feature.node.kubernetes.io"
#: Programs that publish NodeFeatures, by their field managers.
_WORKER = "nfd-worker"
_WRITERS = ("gpu-feature-discovery", _WORKER)


@dataclass(frozen=True, slots=True)
class Pruning:
    """What is removed from a Node.

    Args:
        metadata: a merge patch of labels and annotations.
        status: a merge patch of the status, with its extended resources; empty: it has none.
        taints: keys and effects of its taints.
    """

    metadata: Json
    status: Json
    taints: tuple[tuple[str, str], ...]


def pruning(node: Json) -> Pruning | None:
    """What node feature discovery has written on a Node; ``None``: nothing."""
    notes: Mapping[str, str] = node["metadata"].get("annotations") or {}
    own_names = [name for name in notes if f".{name.partition('/')[0]}".endswith(f".{_NFD}")]
    if not own_names:
        return None
    lists = [(name.partition("/")[2], notes[name]) for name in own_names]
    labels = _names(lists, "feature-labels")
    annotations = (*own_names, *_names(lists, "feature-annotations"))
    resources = dict.fromkeys(_names(lists, "extended-resources"))
    return Pruning(
        {"metadata": {"labels": dict.fromkeys(labels), "annotations": dict.fromkeys(annotations)}},
        {"status": {"capacity": resources, "allocatable": resources}} if resources else {},
        tuple(_taints(notes.get(f"{_NFD}/taints", ""))),
    )


def _names(lists: Iterable[tuple[str, str]], name: str) -> list[str]:
    """The names in the lists of a name, each with its prefix."""
    entries = (entry for kind, text in lists if kind == name for entry in text.split(",") if entry)
    return [entry if "/" in entry else f"{_DEFAULT}/{entry}" for entry in entries]


def _taints(text: str) -> Iterator[tuple[str, str]]:
    """Key and effect of each taint in ``key=value:effect,...``."""
    for taint in filter(None, text.split(",")):
        key, _, effect = taint.rpartition(":")
        yield key.partition("=")[0], effect


def is_left_over(item: Json, namespace: str) -> bool:
    """Whether an object was written by GPU feature discovery or node feature discovery of a namespace alone."""
    managers = _managers(item)
    in_namespace = item["kind"] == FEATURE and item["metadata"].get("namespace") == namespace
    return in_namespace and bool(managers) and managers <= set(_WRITERS)


def is_by_worker(item: Json) -> bool:
    """Whether an object was written by the worker of a node feature discovery."""
    return _WORKER in _managers(item)


def _managers(item: Json) -> set[str]:
    return {str(entry.get("manager")) for entry in item["metadata"].get("managedFields") or ()}
