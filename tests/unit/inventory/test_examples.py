"""Every file of ``inventories/`` loads, and shows what it says it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpustate.core.inventory import InventoryNode
from gpustate.inventory import load

EXAMPLES = Path(__file__).parents[3] / "inventories"


def read(name: str, limit: str | None = None) -> dict[str, InventoryNode]:
    inventory = load(str(EXAMPLES / name), limit=limit)
    assert inventory.notes == ()
    return {node.name: node for node in inventory}


def test_bare_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_FLEET_SUDO", "s3cret")
    nodes = read("bare-metal.ini")
    assert len(nodes) == 19
    gpu01 = nodes["gpu01"]
    assert gpu01.groups == ("bare_metal", "h100")
    assert gpu01.connection.host == "gpu01.gpu.example.net"
    assert gpu01.connection.proxy_jump == "ops@bastion.example.net"
    assert gpu01.connection.strict_host_key == "accept-new"
    assert (gpu01.connection.become, gpu01.connection.become_password) == (True, "s3cret")
    assert gpu01.vars["canary"] is True
    assert gpu01.vars["gpustate"] == {"driver": {"branch": 570}}
    lab = nodes["lab-a.partner.example"]
    assert (lab.connection.host, lab.connection.port) == ("198.51.100.21", 2222)
    assert lab.connection.user == "guest"
    assert lab.vars["gpustate"] == {"driver": {"branch": 550}}
    assert nodes["localhost"].connection.kind == "local"


def test_kubernetes() -> None:
    nodes = read("kubernetes.yml", limit="gpu_workers")
    assert list(nodes) == ["worker-a", "worker-b", "worker-c", "worker-d", "worker-mig"]
    assert nodes["worker-a"].connection.host == "worker-a.ams1.example"
    assert nodes["worker-mig"].vars["gpustate"] == {"mig": {"config": "all-1g.10gb"}}


def test_dynamic() -> None:
    nodes = read("dynamic.py", limit="zone_a:!spare")
    assert [(n.name, n.connection.host, n.connection.user) for n in nodes.values()] == [
        ("g-100", "192.0.2.100", "cloud")
    ]


def test_pyinfra() -> None:
    nodes = read("inventory.py")
    assert list(nodes) == ["gpu-a", "gpu-b", "login", "localhost"]
    assert nodes["gpu-a"].connection.user == "ops"
    assert nodes["gpu-b"].connection.user == "slurm"
    assert (nodes["gpu-b"].connection.port, nodes["gpu-b"].connection.become) == (2200, True)
    assert nodes["localhost"].connection.kind == "local"


def test_all_of_them_as_one_directory() -> None:
    assert len(read("")) == 19 + 8 + 3 + 3
