"""The Vagrantfile and its inventory without a machine; ``tests/proof/test_vagrant.py`` has one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpustate.errors import GpustateError
from gpustate.inventory import load

FOLDER = Path(__file__).parents[2] / "vagrant"

SSH_CONFIG = """\
Host debian12
  HostName 192.168.121.40
  User vagrant
  Port 22
  UserKnownHostsFile /dev/null
  StrictHostKeyChecking no
  IdentityFile "/home/ci/a b/.vagrant/machines/debian12/libvirt/private_key"
  IdentitiesOnly yes

Host debian13
  HostName 127.0.0.1
  User vagrant
  Port 2200
  IdentityFile /home/ci/.vagrant/machines/debian13/virtualbox/private_key
"""


@pytest.fixture
def fake_vagrant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called vagrant that prints a file."""
    program = tmp_path / "vagrant"
    program.write_text('#!/bin/sh\n[ "$1" = ssh-config ] || exit 9\ncat "${0%/*}/said"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "said"


def test_the_inventory_reaches_every_running_node_as_vagrant_does(
    fake_vagrant: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_vagrant.write_text(SSH_CONFIG)
    monkeypatch.setenv("GPUSTATE_PCI", "0000:65:00.0,0000:66:00.0")
    nodes = load(str(FOLDER / "inventory.py")).nodes
    assert [node.name for node in nodes] == ["debian12", "debian13"]
    first, second = nodes
    assert (first.connection.host, first.connection.port) == ("192.168.121.40", 22)
    assert (second.connection.host, second.connection.port) == ("127.0.0.1", 2200)
    assert first.connection.user == "vagrant"
    assert "/home/ci/a b/.vagrant/machines/debian12/libvirt/private_key" in str(first.connection)
    assert "gpu" in first.groups
    assert first.vars["gpustate"] == {"preflight": {"gpus": 2}}
    assert second.vars["gpustate"] == {"preflight": {"gpus": 0}}


def test_without_a_running_node_the_inventory_says_what_to_do(fake_vagrant: Path) -> None:
    fake_vagrant.write_text("")
    with pytest.raises(GpustateError, match="no Vagrant node runs; run vagrant up"):
        load(str(FOLDER / "inventory.py"))


def test_ruby_takes_the_vagrantfile() -> None:
    if shutil.which("ruby") is None:
        pytest.skip("ruby is not installed: the syntax of vagrant/Vagrantfile is not looked at")
    done = subprocess.run(["ruby", "-wc", FOLDER / "Vagrantfile"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_vagrant_takes_the_vagrantfile(tmp_path: Path) -> None:
    if shutil.which("vagrant") is None:
        pytest.skip("vagrant is not installed: vagrant/Vagrantfile is not validated")
    environment = {**os.environ, "VAGRANT_HOME": str(tmp_path), "GPUSTATE_PCI": "0000:65:00.0"}
    environment |= {
        "GPUSTATE_NODES": "debian12,debian13,ubuntu2404",
        "VAGRANT_DOTFILE_PATH": str(tmp_path / "machines"),
    }
    done = subprocess.run(
        ["vagrant", "validate"], cwd=FOLDER, env=environment, capture_output=True, text=True
    )
    if "No usable default provider" in done.stdout + done.stderr:
        pytest.skip("vagrant has no provider here, neither libvirt's plugin nor VirtualBox")
    assert done.returncode == 0, done.stdout + done.stderr
