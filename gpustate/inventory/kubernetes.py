"""Nodes from Kubernetes clusters: their Node objects with GPUs, in the form ``kubernetes:KUBECONFIG``, or from a file.

::

    plugin: kubernetes
    kubeconfig: clusters/east.yaml      # or in-cluster
    selector: example.net/pool=h100     # default: labels by which a Node has NVIDIA GPUs
    address: InternalIP
    groups: [topology.kubernetes.io/zone]
    vars: {ansible_user: ubuntu, ansible_become: true}

Several clusters are listed under ``clusters``, each with the same keys; what stands beside it counts for all of them.

Sources:
    node-feature-discovery v0.18: source/pci (``pci-<class>_<vendor>.present``, or what deviceLabelFields says);
    NVIDIA/gpu-operator v26.7: controllers/nodelabeling_controller.go (nvidia.com/gpu.present);
    Kubernetes API: NodeAddress. Ansible: kubernetes.core.k8s, keyed_groups (names of groups).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpustate.cluster.kubeconfig import CONTEXT, PATH, Kubeconfig
from gpustate.core.inventory import LABELS
from gpustate.documents import Json, JsonView
from gpustate.errors import InventoryError
from gpustate.formats.labels import selectors
from gpustate.formats.words import kind_of, quote
from gpustate.inventory.documents import Document
from gpustate.inventory.ranges import check_name
from gpustate.inventory.store import Store, Value, variable_name

#: Of the value of ``-i``, and the name of the plugin in a file.
NAME = "kubernetes"
PREFIX = f"{NAME}:"
_ADDRESSES = ("InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS")
#: The Node's name itself, for ``~/.ssh/config``.
_BY_NAME = "Name"
_KEYS = ("kubeconfig", "context", "selector", "address", "groups", "vars", "prefix", "name")
#: Labels by which a Node has NVIDIA GPUs; the class is that of a display controller.
_GPU = re.compile(
    r"feature\.node\.kubernetes\.io/pci-(03[0-9a-f]{2}_)?10de(_[0-9a-f_]+)?\.present|nvidia\.com/gpu\.present"
)
_DEFAULT_FILE = "~/.kube/config"
IN_CLUSTER = "in-cluster"


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster of an inventory.

    Args:
        kubeconfig: path, or ``in-cluster``, and context.
        selector: of labels; empty: Nodes with NVIDIA GPUs.
        address: type of the address that is connected to, or ``Name``.
        groups: labels whose values make groups.
        variables: of all its nodes.
        prefix: of the nodes' names, where Nodes of two clusters have the same name.
        name: a group with all its nodes; empty: there is none.
        place: where it is written.
    """

    kubeconfig: Kubeconfig
    selector: str = ""
    address: str = _ADDRESSES[0]
    groups: tuple[str, ...] = ()
    variables: JsonView = field(default_factory=Json)
    prefix: str = ""
    name: str = ""
    place: str = ""


def has_gpus(labels: Mapping[str, str]) -> bool:
    """Whether a Node has NVIDIA GPUs, by its labels."""
    return any(value == "true" and _GPU.fullmatch(key) for key, value in labels.items())


def default_kubeconfig() -> str:
    """The kubeconfig that ``kubectl`` would use; in a pod without one, its service account."""
    path = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    if path or os.path.exists(os.path.expanduser(_DEFAULT_FILE)):
        return path or _DEFAULT_FILE
    return IN_CLUSTER if os.environ.get("KUBERNETES_SERVICE_HOST") else _DEFAULT_FILE


def fill_source(store: Store, source: str) -> None:
    """Read the clusters of ``kubernetes:KUBECONFIG``, several separated by commas, into ``store``.

    Raises:
        InventoryError: a Node cannot be a node. GpustateError: a cluster cannot be read.
    """
    paths = source.removeprefix(NAME).removeprefix(":").split(",")
    clusters = [
        Cluster(Kubeconfig(path.strip() or default_kubeconfig()), place=source) for path in paths
    ]
    _fill_all(store, clusters, None)


def is_ours(data: Any) -> bool:
    """Whether a YAML document names this plugin."""
    return isinstance(data, dict) and data.get("plugin") == NAME


def fill(store: Store, document: Document) -> None:
    """Read the clusters of a file into ``store``.

    Raises:
        InventoryError: the file is invalid, or a Node cannot be a node. GpustateError: a cluster cannot be read.
    """
    data: Json = document.data
    common = {key: value for key, value in data.items() if key not in ("plugin", "clusters")}
    listed = data.get("clusters", [{}])
    if not isinstance(listed, list) or not listed:
        raise InventoryError(
            f"clusters is {kind_of(listed)}, wanted a list of clusters",
            place=document.place(data, "clusters"),
        )
    clusters: list[Cluster] = []
    for cluster in listed:
        place = document.place(data, "clusters" if "clusters" in data else "plugin")
        if not isinstance(cluster, dict):
            raise InventoryError(f"a cluster is {kind_of(cluster)}, wanted a mapping", place=place)
        both = {**common, **cluster}
        both["vars"] = {**_mapping(common, place), **_mapping(cluster, place)}
        clusters.append(_cluster(both, document.path, place))
    _fill_all(store, clusters, document.path)


def _mapping(data: Json, place: str) -> Json:
    variables = data.get("vars") or {}
    if not isinstance(variables, dict):
        raise InventoryError(f"vars is {kind_of(variables)}, wanted a mapping", place=place)
    return variables


def _cluster(data: Json, path: str, place: str) -> Cluster:
    for key in data:
        if key not in _KEYS:
            raise InventoryError(
                f"unknown key {quote(key)}", place=place, fix=f"supported keys: {', '.join(_KEYS)}"
            )
    for key in ("kubeconfig", "context", "selector", "address", "prefix", "name"):
        if not isinstance(data.get(key, ""), str):
            raise InventoryError(f"{key} is {kind_of(data[key])}, wanted text", place=place)
    groups = data.get("groups") or []
    if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
        raise InventoryError("groups is not a list of labels", place=place)
    address = data.get("address") or _ADDRESSES[0]
    if address not in (*_ADDRESSES, _BY_NAME):
        raise InventoryError(
            f"address is {quote(address)}, wanted {', '.join((*_ADDRESSES, _BY_NAME))}", place=place
        )
    file = data.get("kubeconfig") or default_kubeconfig()
    if file != IN_CLUSTER:
        file = os.path.join(os.path.dirname(path), os.path.expanduser(file))
    return Cluster(
        Kubeconfig(file, data.get("context", "")),
        data.get("selector", ""),
        address,
        tuple(groups),
        data["vars"],
        data.get("prefix", ""),
        data.get("name", ""),
        place,
    )


def _fill_all(store: Store, clusters: Iterable[Cluster], source: str | None) -> None:
    """Read clusters, and note those that none of the nodes is of."""
    unused = [cluster for cluster in clusters if not _fill(store, cluster, source)]
    if store.nodes:  # otherwise it is an error, or they are watched
        for cluster in unused:
            store.note(str(no_node(cluster.place, {cluster.kubeconfig: cluster.selector}, ())))


def _fill(store: Store, cluster: Cluster, source: str | None) -> bool:
    """Read a cluster; whether any of its Nodes is chosen."""
    chosen = False
    selector = selectors.parse(cluster.selector) if cluster.selector else None
    store.clusters[cluster.kubeconfig] = cluster.selector
    for item in nodes_of(cluster.kubeconfig):
        labels: dict[str, str] = item["metadata"].get("labels") or {}
        if selectors.matches(selector, labels) if selector is not None else has_gpus(labels):
            _add(store, cluster, item, labels, source)
            chosen = True
    return chosen


def _add(
    store: Store, cluster: Cluster, item: Json, labels: dict[str, str], source: str | None
) -> None:
    place = f"Node {item['metadata']['name']} of {cluster.kubeconfig}"
    addresses = (item.get("status") or {}).get("addresses") or []
    address = next(
        (entry["address"] for entry in addresses if entry.get("type") == cluster.address), ""
    )
    if not address and cluster.address != _BY_NAME:
        types = ", ".join(sorted({str(entry.get("type")) for entry in addresses})) or "none"
        store.note(f"{place}: left out: it has no address of type {cluster.address}, but {types}")
        return
    name = check_name(f"{cluster.prefix}{item['metadata']['name']}", place)
    if name in store.nodes and PATH in store.nodes[name].vars:
        raise InventoryError(
            f"{quote(name)} is a Node of {store.nodes[name].vars[PATH].value}, too",
            place=place,
            fix="set prefix of one of the clusters",
        )
    groups = [
        f"{_word(key.rpartition('/')[2])}_{_word(labels[key])}"
        for key in cluster.groups
        if labels.get(key)
    ]
    for group in (NAME, *([cluster.name] if cluster.name else []), *groups):
        store.group(group, place)
        store.node(name, group, source=source)
    variables = store.nodes[name].vars
    variables[PATH] = Value(cluster.kubeconfig.path, place)
    if cluster.kubeconfig.context:
        variables[CONTEXT] = Value(cluster.kubeconfig.context, place)
    variables[LABELS[-1]] = Value(dict(labels), place)
    if address:
        variables["ansible_host"] = Value(address, place)
    for key, value in cluster.variables.items():
        variables[variable_name(key, cluster.place)] = Value(value, cluster.place)


def _word(text: str) -> str:
    """A part of a group's name."""
    return re.sub(r"\W", "_", text, flags=re.ASCII)


def no_node(
    source: str, clusters: Mapping[Kubeconfig, str], notes: Iterable[str]
) -> InventoryError:
    """The error that no Node of any cluster is a node.

    Args:
        source: the inventory.
        clusters: selectors by cluster.
        notes: Nodes that were left out.
    """
    place = source.removesuffix(":")
    names = ", ".join(map(str, clusters))
    if left_out := next(iter(notes), ""):
        return InventoryError("no Node can be used", place=place, fix=left_out)
    chosen = ", ".join(filter(None, clusters.values()))
    if chosen:
        words = f"no Node of {names} has the labels of selector: {chosen}"
        return InventoryError(words, place=place, fix="correct selector, or label the Nodes")
    return InventoryError(
        f"no Node of {names} has the label nvidia.com/gpu.present=true, nor one of node feature discovery for NVIDIA's GPUs "
        "(feature.node.kubernetes.io/pci-10de.present=true)",
        place=place,
        fix="install node feature discovery, or choose Nodes with selector in an inventory file (docs/inventories.md)",
    )


def nodes_of(kubeconfig: Kubeconfig) -> list[Json]:
    """List the Nodes of a cluster.

    Raises:
        GpustateError: it cannot be read.
    """
    # Imported here because the library takes seconds.
    from gpustate.cluster.api import connected

    with connected(kubeconfig) as api:
        return api.nodes_with_version()[0]
