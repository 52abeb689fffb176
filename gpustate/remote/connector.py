"""pyinfra's SSH connector with gpustate's connection underneath.

pyinfra's operations, facts and file transfer work over it as over its own; what differs is how the
connection is made (see :mod:`gpustate.remote.ssh`) and that ``disconnect`` really closes it.
"""

from __future__ import annotations

from typing import Any

from pyinfra.api.config import Config
from pyinfra.api.host import Host as PyinfraHost
from pyinfra.api.inventory import Inventory as PyinfraInventory
from pyinfra.api.state import State as PyinfraState
from pyinfra.connectors.ssh import SSHConnector

from gpustate.model.inventory import Connection, InventoryNode
from gpustate.remote.ssh import close_client, open_client


class NodeConnector(SSHConnector):
    """``@ssh``, connected by :func:`gpustate.remote.ssh.open_client`."""

    connection: Connection

    def _connect(self) -> None:
        self.client = open_client(self.host.name, self.host.data.gpustate_connection)  # type: ignore[assignment]

    def connect(self) -> None:
        self._connect()

    def disconnect(self) -> None:
        if self.client is not None:
            close_client(self.client)
            self.client = None


def node_connector(host: PyinfraHost) -> NodeConnector:
    """A host's connector, known to be ours."""
    connector = host.connector
    if not isinstance(connector, NodeConnector):
        raise TypeError(f"{host.name} is not connected by gpustate's connector")
    return connector


def pyinfra_hosts(nodes: tuple[InventoryNode, ...]) -> dict[str, PyinfraHost]:
    """Hosts for the nodes of a run, all in one pyinfra inventory and state; nothing is connected yet."""
    entries: list[tuple[str, dict[str, Any]]] = [
        (node.name, {"gpustate_connection": node.connection}) for node in nodes
    ]
    inventory = PyinfraInventory((entries, {}))
    hosts: dict[str, PyinfraHost] = {}
    for node in nodes:
        host = inventory.get_host(node.name)
        host.connector_cls = NodeConnector
        hosts[node.name] = host
    PyinfraState(inventory, Config())
    return hosts
