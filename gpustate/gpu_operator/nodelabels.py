"""Labels of Kubernetes nodes next to a policy: settings of single nodes.

They come from the output of ``kubectl get nodes -o yaml``, in the policy's file or in the folder next to
it. Node names are those of the inventory. Everything else in such an object is ignored.

Sources:
    NVIDIA/gpu-operator v26.7: controllers/state_manager.go. NVIDIA/mig-parted v0.15:
    cmd/nvidia-mig-manager. NVIDIA/k8s-device-plugin v0.20: cmd/config-manager.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpustate.errors import PolicyError
from gpustate.formats.words import kind_of, quote, quote_name
from gpustate.gpu_operator.documents import Item, plain
from gpustate.manifests.ownership import DEPLOY
from gpustate.manifests.settings import System
from gpustate.manifests.systems import systems_of

#: The node's MIG layout, and its configuration of the device plugin.
MIG, PLUGIN = "nvidia.com/mig.config", "nvidia.com/device-plugin.config"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
#: The node's workload; read only with ``sandboxWorkloads.enabled``.
WORKLOAD = "nvidia.com/gpu.workload.config"
#: Values of a ``gpu.deploy`` label with which the Operator deploys the component.
_DEPLOYED = ("", "true")


@dataclass(frozen=True, slots=True)
class Label:
    """One label of one node, and its place."""

    node: str
    value: str
    place: str


def of_nodes(nodes: tuple[tuple[str, Item], ...], name: str) -> Iterator[Label]:
    """Yield every label of a name that has a value.

    Args:
        nodes: Node objects, each with its file.
        name: of the label.

    Raises:
        PolicyError: a label that is not text, or a duplicate node.
    """
    places: dict[str, str] = {}
    for file, item in nodes:
        node = item.text("metadata", "name")
        place = f"{file}:{item.line}"
        if not node:
            raise PolicyError("metadata.name of the Node is missing", place=place)
        if not _NAME.fullmatch(node):
            raise PolicyError(f"{quote(node)} is not the name of a Node", place=place)
        if node in places:
            raise PolicyError(
                f"a second Node {quote(node)}, the first is at {places[node]}", place=place
            )
        places[node] = place
        labels = item.get("metadata", "labels")
        if labels is not None and not isinstance(labels.value, dict):
            raise PolicyError(
                f"metadata.labels of Node {quote(node)} is {kind_of(labels.value)}, wanted a mapping",
                place=f"{file}:{labels.line}",
            )
        label = item.get("metadata", "labels", name)
        if label is None:
            continue
        where = f"{file}:{label.line}"
        if not isinstance(label.value, str):
            raise PolicyError(
                f"label {quote_name(name)} of Node {quote(node)} is {kind_of(label.value)}, wanted text",
                place=where,
                fix="put it in quotes",
            )
        if label.value:
            yield Label(node, label.value, where)


def systems(nodes: tuple[tuple[str, Item], ...]) -> Iterator[System]:
    """The systems of Nodes with GPUs, by the labels of node feature discovery."""
    items = (item.get("metadata", "labels") for _, item in nodes)
    labels = (plain(item) for item in items if item is not None and isinstance(item.value, dict))
    yield from systems_of(labels)


def notes(
    nodes: tuple[tuple[str, Item], ...], *, workloads: bool = False, systems: bool = False
) -> Iterator[str]:
    """Yield notes on these objects and on labels that are not carried out.

    Args:
        nodes: Node objects, each with its file.
        workloads: whether the workload labels were read.
        systems: whether those of node feature discovery were read.
    """
    if not nodes:
        return
    file, first = nodes[0]
    title = "a Node" if len(nodes) == 1 else f"{len(nodes)} Nodes"
    read = f"{MIG}, {PLUGIN} and {WORKLOAD}" if workloads else f"{MIG} and {PLUGIN}"
    if systems:
        read += ", and those of node feature discovery"
    yield f"{file}:{first.line}: only the labels {read} of {title} are read"
    for file, item in nodes:
        labels = item.get("metadata", "labels")
        for name, value in (
            labels.value.items() if labels and isinstance(labels.value, dict) else ()
        ):
            off = name.startswith(DEPLOY) and value.value not in _DEPLOYED
            machines = name == WORKLOAD and value.value not in ("", "container")
            if machines and not workloads:
                yield (
                    f"{file}:{value.line}: not used: label {name} {quote(value.value)} of Node "
                    f"{quote(item.text('metadata', 'name'))}: sandboxWorkloads.enabled is not true"
                )
            if off:
                yield (
                    f"{file}:{value.line}: not carried out: label {name} {quote(value.value)} of Node "
                    f"{quote(item.text('metadata', 'name'))}: select the nodes with --limit"
                )
