"""A pyinfra connector that uses gpustate's own SSH connection to a node.

Imported on first use: loading pyinfra takes longer than probing a node.
"""

from __future__ import annotations

import paramiko
from pyinfra.api.config import Config
from pyinfra.api.host import Host as PyinfraHost
from pyinfra.api.inventory import Inventory as PyinfraInventory
from pyinfra.api.state import State as PyinfraState
from pyinfra.connectors.ssh import SSHConnector


class NodeConnector(SSHConnector):
    """pyinfra's ``@ssh`` over an open connection, which its owner closes."""

    def connect(self) -> None:
        self.client = self.host.data.gpustate_client

    def disconnect(self) -> None:
        self.client = None


def pyinfra_host(name: str, client: paramiko.SSHClient) -> PyinfraHost:
    """Return the pyinfra host of a node, connected."""
    inventory = PyinfraInventory(([(name, {"gpustate_client": client})], {}))
    host = inventory.get_host(name)
    host.connector_cls = NodeConnector
    PyinfraState(inventory, Config())
    host.connect(raise_exceptions=True)
    return host
