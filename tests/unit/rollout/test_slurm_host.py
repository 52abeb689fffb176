"""How the host of Slurm's tools is reached, and how its nodes are held, by the inventory."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpustate import inventory
from gpustate.core.inventory import Connection, InventoryNode
from gpustate.errors import ConnectionFailed, InventoryError
from gpustate.rollout import access
from gpustate.rollout.access import Accesses

HOSTS = """
all:
  children:
    gpu:
      hosts: {gpu1: {ansible_user: root}, gpu2: {}}
      vars: {gpustate_slurm_host: HEAD, gpustate_slurm_hold: HOLD}
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


def slurm(tmp_path: Path, head: str, hold: str, given: str = "") -> bool:
    path = tmp_path / "hosts.yml"
    path.write_text(HOSTS.replace("HEAD", head).replace("HOLD", hold))
    hosts = inventory.load(str(path), limit="gpu1")
    accesses = Accesses(hosts, slurm_hold=given)
    found = accesses(hosts.nodes[0], "Slurm")
    assert found is not None
    assert [one.title for one in accesses.leased()] == [f"Slurm at {head}"]
    return bool(getattr(found, "_reserve"))  # noqa: B009  what it was made with


def test_a_host_beside_the_limit_is_reached_as_the_inventory_says(
    tmp_path: Path, reached: list[InventoryNode]
) -> None:
    assert slurm(tmp_path, "head", "drain") is False
    (node,) = reached
    connection = node.connection
    assert (connection.host, connection.user, connection.port) == ("10.0.0.9", "slurm", 2222)


def test_a_host_that_the_inventory_does_not_have_is_reached_like_the_node(
    tmp_path: Path, reached: list[InventoryNode]
) -> None:
    assert slurm(tmp_path, "login", "reservation") is True
    (node,) = reached
    assert (node.connection.host, node.connection.user) == ("login", "root")


def test_the_command_line_wins_and_another_word_is_an_error_with_its_place(
    tmp_path: Path, reached: list[InventoryNode]
) -> None:
    assert slurm(tmp_path, "head", "reservation", "drain") is False
    with pytest.raises(InventoryError, match=r"gpustate_slurm_hold of gpu1 is 'cordon'"):
        slurm(tmp_path, "head", "cordon")


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
