"""pyinfra over gpustate's connection: its facts are asked through the connection at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpustate.core.inventory import Connection, InventoryNode
from gpustate.remote.session import Session
from gpustate_lab.node import Node

pytest.importorskip("pyinfra")
from pyinfra.facts.files import File
from pyinfra.facts.server import Which


def test_pyinfra_asks_its_facts_over_the_connection_at_hand(node12: Node, tmp_path: Path) -> None:
    key = next(w for w in node12.ssh_args() if Path(w).is_file() and "known" not in w)
    host_key = node12.run("cat /etc/ssh/ssh_host_ed25519_key.pub").stdout.split()[:2]
    known = tmp_path / "known_hosts"
    known.write_text(f"{node12.address} {' '.join(host_key)}\n")
    connection = Connection(
        host=node12.address, user="root", key_file=key, known_hosts_file=str(known)
    )
    session = Session(InventoryNode("node", connection=connection))
    session.connect()
    try:
        host = session.pyinfra()
        assert host.get_fact(Which, command="dpkg") == "/usr/bin/dpkg"
        observed = host.get_fact(File, path="/etc/passwd")
        assert isinstance(observed, dict)
        assert observed["mode"] == 644
    finally:
        session.close()
    assert session.connections == 1
