"""How the host of Slurm's tools is reached, by the inventory."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpustate import inventory
from gpustate.core.inventory import Connection, InventoryNode
from gpustate.errors import ConnectionFailed
from gpustate.rollout import access
from gpustate.rollout.access import Accesses

HOSTS = """
all:
  children:
    gpu:
      hosts: {gpu1: {ansible_user: root}, gpu2: {}}
      vars: {gpustate_slurm_host: HEAD}
    heads:
      hosts:
        head: {ansible_host: 10.0.0.9, ansible_user: slurm, ansible_port: 2222}
"""


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[InventoryNode]:
    found: list[InventoryNode] = []

    class Host(access.SlurmHost):
        def __init__(self, node: InventoryNode) -> None:
            found.append(node)
            super().__init__(node)

    monkeypatch.setattr(access, "SlurmHost", Host)
    return found


def slurm(tmp_path: Path, head: str) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text(HOSTS.replace("HEAD", head))
    hosts = inventory.load(str(path), limit="gpu1")
    accesses = Accesses(hosts)
    assert accesses(hosts.nodes[0], "Slurm") is not None
    assert [one.title for one in accesses.leased()] == [f"Slurm at {head}"]


def test_a_host_beside_the_limit_is_reached_as_the_inventory_says(
    tmp_path: Path, reached: list[InventoryNode]
) -> None:
    slurm(tmp_path, "head")
    (node,) = reached
    connection = node.connection
    assert (connection.host, connection.user, connection.port) == ("10.0.0.9", "slurm", 2222)


def test_a_host_that_the_inventory_does_not_have_is_reached_like_the_node(
    tmp_path: Path, reached: list[InventoryNode]
) -> None:
    slurm(tmp_path, "login")
    (node,) = reached
    assert (node.connection.host, node.connection.user) == ("login", "root")


def test_a_host_that_does_not_answer_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def refuse(name: str, connection: Connection) -> None:
        tried.append(name)
        raise ConnectionFailed("head:22: No route to host")

    monkeypatch.setattr("gpustate.remote.session.open_client", refuse)
    host = access.SlurmHost(InventoryNode("head", connection=Connection(host="head")))
    with pytest.raises(ConnectionFailed):
        host.run("sinfo")
    assert tried == ["head"]
