"""``@docker``, ``@podman``, ``@chroot``, ``@vagrant`` and ``@local``, with a stand-in that prints what Vagrant does.

Sources:
    Vagrant 2.4, "Machine Readable Output" (``timestamp,target,type,data``) and ``vagrant ssh-config``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpustate.errors import InventoryError
from gpustate.inventory import load

from .conftest import Write

STATUS = """\
1424098924,default,metadata,provider,virtualbox
1424098924,gpu1,provider-name,libvirt
1424098924,gpu1,state,running
1424098924,gpu1,state-human-short,running
1424098924,gpu2,state,poweroff
1424098924,gpu3,state,running
"""
SSH_CONFIG = """\
Host gpu1
  HostName 192.168.121.40
  User vagrant
  Port 22
  StrictHostKeyChecking no
  IdentityFile "/home/ci/a b/private_key"

Host gpu3
  HostName 127.0.0.1
  User root
  Port 2200
  IdentityFile /home/ci/private_key
"""


@pytest.fixture
def vagrant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which two machines run, and a program called vagrant."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/vagrant"
    program.write_text(
        '#!/bin/sh\necho "$*" >>"${0%/*}/calls"\ncase $1 in\n'
        f"status) cat <<'END'\n{STATUS}END\n;;\nssh-config) cat <<'END'\n{SSH_CONFIG}END\n;;\nesac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_containers_and_images_are_nodes() -> None:
    nodes = load("@docker/web1,@podman/web2,@chroot/srv/images/a,@local").nodes
    assert [(n.name, n.connection.kind, n.connection.host) for n in nodes] == [
        ("web1", "docker", "web1"),
        ("web2", "podman", "web2"),
        ("srv-images-a", "chroot", "/srv/images/a"),
        ("localhost", "local", None),
    ]


def test_they_stand_in_a_file_with_groups_and_data(write: Write) -> None:
    source = write(
        "inventory.py", "gpu = ['@docker/a', ('@podman/b', {'rack': 1})]\nimages = ['@chroot/x']\n"
    )
    a, b, x = load(source).nodes
    assert (a.groups, a.connection.kind) == (("gpu", "inventory"), "docker")
    assert (b.vars["rack"], b.connection.host) == (1, "b")
    assert x.connection.host == "/x"


def test_every_vagrant_machine_that_runs_is_a_node(vagrant: Path) -> None:
    first, second = load("@vagrant").nodes
    assert (first.name, first.connection.host, first.connection.user) == (
        "gpu1",
        "192.168.121.40",
        "vagrant",
    )
    assert first.connection.become
    assert first.connection.key_file == "/home/ci/a b/private_key"
    assert first.connection.strict_host_key == "accept-new"
    assert first.connection.known_hosts_file == f"{vagrant}/.vagrant/known_hosts-gpu1"
    assert (second.name, second.connection.port, second.connection.become) == ("gpu3", 2200, False)
    assert "vagrant" in second.groups
    assert (vagrant / "bin/calls").read_text().splitlines() == [
        "status --machine-readable",
        "ssh-config gpu1 gpu3",
    ]


def test_data_and_groups_beside_the_vagrantfile_count(vagrant: Path) -> None:
    (vagrant / "@vagrant.json").write_text(
        '{"data": {"gpu1": {"ssh_user": "ops"}}, "groups": {"gpu1": ["inference"]}}'
    )
    first = load("@vagrant").nodes[0]
    assert first.connection.user == "ops"
    assert first.groups == ("inference", "vagrant")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("@vagrant/gpu2", "no Vagrant machine 'gpu2' is running in this folder; run vagrant up"),
        ("@vagrant/x", "no Vagrant machine 'x' is running"),
        ("@docker/a b", "is an image, not the name of a container"),
        ("@chroot/", "a name is missing"),
        ("@nothing/x", "the connector @nothing is not supported"),
    ],
)
def test_what_is_not_there_says_what_to_do(source: str, said: str, vagrant: Path) -> None:
    with pytest.raises(InventoryError, match=said):
        load(source)
