"""pyinfra on top of a node's connection: its facts and operations go through the connection at hand.

Looking at nodes and running programs on them needs none of it, so it is imported only by who does:
pyinfra takes longer to load than a node takes to be looked at.
"""

from __future__ import annotations

import paramiko
from pyinfra.api.config import Config
from pyinfra.api.host import Host as PyinfraHost
from pyinfra.api.inventory import Inventory as PyinfraInventory
from pyinfra.api.state import State as PyinfraState
from pyinfra.connectors.ssh import SSHConnector


class NodeConnector(SSHConnector):
    """``@ssh`` over a connection that somebody else made, and closes."""

    def connect(self) -> None:
        self.client = self.host.data.gpustate_client

    def disconnect(self) -> None:
        self.client = None


def pyinfra_host(name: str, client: paramiko.SSHClient) -> PyinfraHost:
    """One node as pyinfra has it, connected."""
    inventory = PyinfraInventory(([(name, {"gpustate_client": client})], {}))
    host = inventory.get_host(name)
    host.connector_cls = NodeConnector
    PyinfraState(inventory, Config())
    host.connect(raise_exceptions=True)
    return host
