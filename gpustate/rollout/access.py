"""Reach the schedulers that an inventory, or the command line, names.

Kubernetes through a kubeconfig; Slurm through the host with its tools, over SSH as the nodes themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpustate.cluster.kubeconfig import Kubeconfig, kubeconfig_of
from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.documents import Json
from gpustate.engine import fleet
from gpustate.errors import ConnectionFailed
from gpustate.remote.session import Session

if TYPE_CHECKING:
    from gpustate.schedulers.base import Scheduler
    from gpustate.schedulers.kubernetes import Kubernetes
    from gpustate.schedulers.slurm import Slurm

#: Inventory variable with the host on which scontrol, sinfo and squeue run as root or SlurmUser.
SLURM_HOST = "gpustate_slurm_host"
_COMMAND_S = 60.0


class SlurmHost:
    """Commands on the host with Slurm's tools, one at a time over one connection.

    Args:
        node: how it is reached.
    """

    def __init__(self, node: InventoryNode) -> None:
        self._session = Session(node)
        self._lock = threading.Lock()
        self._connected = False

    def run(self, command: str) -> tuple[int, str]:
        """Exit status and output; a connection that broke is made again once."""
        with self._lock:
            connected = self._connected
            try:
                return self._once(command)
            except ConnectionFailed:
                self._connected = False
                self._session.close()
                if not connected:
                    raise
                return self._once(command)

    def _once(self, command: str) -> tuple[int, str]:
        self._session.connect()
        self._connected = True
        answer = self._session.shell(command, timeout_s=_COMMAND_S)
        return answer.status, answer.text

    def close(self) -> None:
        """Hang up."""
        self._session.close()


class Accesses:
    """The schedulers of some nodes, each connected at its first use, or kubeconfigs read at once.

    Args:
        inventory: the nodes, and how hosts beside them are reached.
        kubeconfig: of the command line; empty: the inventory's variable counts.
        read: read every kubeconfig now.
        read_only: no cluster is changed, so fewer rights are needed.
        fence: called before every write to a cluster; raises where nothing may be written any more.

    Raises:
        UsageError: a kubeconfig cannot be used; InventoryError: a variable is not what it has to be.
    """

    def __init__(
        self,
        inventory: Inventory,
        kubeconfig: str = "",
        *,
        read: bool = False,
        read_only: bool = False,
        fence: Callable[[], None] | None = None,
    ) -> None:
        nodes = inventory.nodes
        self._beyond = inventory.beyond
        self._fence = fence
        self._read_only = read_only
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], Slurm] = {}
        self._clusters: dict[Kubeconfig, Kubernetes] = {}
        self._closed: list[Any] = []
        self._by_name = {node.name: node for node in nodes}
        self._kubeconfigs = {node.name: kubeconfig_of(node, kubeconfig) for node in nodes}
        self._hosts = {node.name: slurm_host_of(node) for node in nodes}
        for path in dict.fromkeys(self._kubeconfigs.values()) if read else ():
            if path:
                self._kubernetes(path)

    def __call__(self, node: InventoryNode, kind: str) -> Scheduler | None:
        """The scheduler of a node; ``None``: neither inventory nor command line names one of this kind."""
        with self._lock:
            if kind == "Kubernetes":
                kubeconfig = self._kubeconfigs.get(node.name, Kubeconfig())
                return self._kubernetes(kubeconfig) if kubeconfig else None
            host = self._hosts.get(node.name, "")
            return self._slurm(node, host) if host else None

    @property
    def named(self) -> bool:
        """At least one node names a scheduler."""
        return any(self._kubeconfigs.values()) or any(self._hosts.values())

    def clusters(self) -> list[Kubernetes]:
        """The Kubernetes clusters that nodes name, each once.

        Raises:
            UsageError: a kubeconfig cannot be used.
        """
        with self._lock:
            named = dict.fromkeys(path for path in self._kubeconfigs.values() if path)
            return [self._kubernetes(path) for path in named]

    @property
    def has_clusters(self) -> bool:
        """At least one node names a Kubernetes cluster."""
        return any(self._kubeconfigs.values())

    def nodes(self) -> dict[str, tuple[Kubernetes, Json]]:
        """The Node objects of nodes and their clusters, by node, as far as names or addresses are the same.

        Raises:
            GpustateError: a cluster cannot be used.
        """
        nodes: dict[str, tuple[Kubernetes, Json]] = {}
        for kubeconfig in dict.fromkeys(path for path in self._kubeconfigs.values() if path):
            with self._lock:
                cluster = self._kubernetes(kubeconfig)
            items = cluster.nodes.by_name()
            for name, node in self._by_name.items():
                item = items.get(name) or items.get(node.connection.host or "")
                if item is not None and self._kubeconfigs[name] == kubeconfig:
                    nodes[name] = (cluster, item)
        return nodes

    def foreign_clusters(self) -> list[Kubernetes]:
        """Clusters of which no Node has the name or address of one of the nodes.

        Raises:
            GpustateError: a cluster cannot be used.
        """
        members = [cluster for cluster, _ in self.nodes().values()]
        return [cluster for cluster in self.clusters() if cluster not in members]

    def listed(self) -> dict[Kubeconfig, list[Json]]:
        """All Nodes of the clusters whose Nodes were listed already."""
        with self._lock:
            clusters = self._clusters.items()
            return {name: nodes for name, cluster in clusters if (nodes := cluster.nodes.listed)}

    def labels(self, key: str) -> dict[str, str]:
        """Values of a label of the Node objects of :meth:`nodes`, by node.

        Raises:
            GpustateError: a cluster cannot be used.
        """
        labels = {
            name: node["metadata"].get("labels") or {} for name, (_, node) in self.nodes().items()
        }
        return {name: str(its[key]) for name, its in labels.items() if its.get(key)}

    def held(self) -> frozenset[str]:
        """Nodes that runs of gpustate hold in a scheduler, as far as names or addresses are the same.

        Raises:
            GpustateError: a cluster cannot be used.
        """
        names = frozenset[str]().union(*(scheduler.nodes.held() for scheduler in self.leased()))
        return frozenset(
            name
            for name, node in self._by_name.items()
            if not names.isdisjoint((name, node.connection.host or ""))
        )

    def _kubernetes(self, kubeconfig: Kubeconfig) -> Kubernetes:
        if kubeconfig not in self._clusters:
            from gpustate.cluster.api import connect
            from gpustate.schedulers.kubernetes import Kubernetes

            api = connect(kubeconfig.path, kubeconfig.context)
            api.fence = self._fence
            self._closed.append(api)
            self._clusters[kubeconfig] = Kubernetes(api, read_only=self._read_only, died=fleet.died)
        return self._clusters[kubeconfig]

    def leased(self) -> list[Kubernetes | Slurm]:
        """The clusters that nodes name, each of which one run at a time holds.

        Raises:
            GpustateError: a cluster cannot be used.
        """
        with self._lock:
            slurms = {
                host: self._slurm(self._by_name[name], host)
                for name, host in self._hosts.items()
                if host
            }
        return [*self.clusters(), *slurms.values()]

    def _slurm(self, node: InventoryNode, host: str) -> Slurm:
        from gpustate.schedulers.slurm import Slurm

        key = ("Slurm", host)
        if key not in self._found:
            listed = self._by_name.get(host) or self._beyond(host)
            target = listed or replace(
                node, name=host, connection=replace(node.connection, host=host)
            )
            commands = SlurmHost(target)
            self._closed.append(commands)
            hosts = {
                member.name: member.connection.host or member.name
                for member in self._by_name.values()
            }
            self._found[key] = Slurm(commands.run, host, hosts, died=fleet.died)
        return self._found[key]

    def close(self) -> None:
        """Close every connection."""
        for slurm in self._found.values():
            slurm.drop_lease()
        for cluster in self._clusters.values():
            cluster.drop_lease()
        for session in self._closed:
            session.close()


def slurm_host_of(node: InventoryNode) -> str:
    """The host with the tools of a node's Slurm; empty where none is named.

    Raises:
        InventoryError: the variable is not a name or an address.
    """
    return node.text(SLURM_HOST, "a host name", "name the host on which scontrol runs")
