from __future__ import annotations

import os

import pytest

from gpustate.core.inventory import Connection, Inventory
from gpustate.errors import InventoryError
from gpustate.inventory import load

from .conftest import Write


def of(write: Write, variables: str) -> tuple[Connection, Inventory]:
    """Return the connection of one node with these lines under ``[all:vars]``."""
    inventory = load(write("hosts", f"n1\n[all:vars]\n{variables}\n"))
    return inventory.nodes[0].connection, inventory


def test_nothing_given_is_ssh_to_the_name_with_strict_host_keys(write: Write) -> None:
    found, inventory = of(write, "")
    assert found == Connection(host="n1")
    assert inventory.notes == ()


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("ansible_host=10.0.0.1", "host", "10.0.0.1"),
        ("ansible_ssh_host=10.0.0.1", "host", "10.0.0.1"),
        ("ansible_port=2222", "port", 2222),
        ("ansible_ssh_port='2222'", "port", 2222),
        ("ansible_user=ops", "user", "ops"),
        ("ansible_user=1000", "user", "1000"),
        ("ansible_ssh_user=ops", "user", "ops"),
        ("ansible_password=12345", "password", "12345"),
        ("ansible_ssh_pass=p", "password", "p"),
        ("ansible_ssh_private_key_file=~/k", "key_file", os.path.expanduser("~/k")),
        ("ansible_become=yes", "become", True),
        ("ansible_become=True", "become", True),
        ("ansible_become=0", "become", False),
        ("ansible_host_key_checking=false", "strict_host_key", "no"),
        ("ansible_host_key_checking=true", "strict_host_key", "yes"),
        ("ansible_timeout=30", "timeout_s", 30.0),
        ("ansible_connection=paramiko", "kind", "ssh"),
        ("ansible_connection=ansible.builtin.local", "kind", "local"),
        ("ansible_ssh_common_args=-J ops@b:22,c", "proxy_jump", "ops@b:22,c"),
        ("ansible_ssh_common_args=-o ProxyJump=none", "proxy_jump", None),
        (
            "ansible_ssh_common_args='-o ProxyCommand=\"ssh -W %h:%p -q b\"'",
            "proxy_command",
            "ssh -W %h:%p -q b",
        ),
        ("ansible_ssh_extra_args=-o UserKnownHostsFile=/k", "known_hosts_file", "/k"),
        ("ansible_ssh_args=-oStrictHostKeyChecking=accept-new", "strict_host_key", "accept-new"),
        ("ansible_ssh_args=-o StrictHostKeyChecking=ask", "strict_host_key", "yes"),
        ("ansible_ssh_args=-F /etc/ssh/other", "ssh_config_file", "/etc/ssh/other"),
        ("ansible_ssh_args=-F none", "ssh_config_file", "/dev/null"),
        ("ansible_ssh_args=-o ConnectTimeout=7", "timeout_s", 7.0),
        ("ansible_ssh_args=-i /key -p2200 -l me", "key_file", "/key"),
        ("ansible_ssh_args=-i /key -p2200 -l me", "port", 2200),
        ("ansible_ssh_args=-i /key -p2200 -l me", "user", "me"),
        ("ansible_ssh_args=-o HostName=10.0.0.9", "host", "10.0.0.9"),
        ("ansible_ssh_args=-o 'IdentityFile \"/a b\"'", "key_file", "/a b"),
        ("ansible_ssh_args=-tt -C -o ControlMaster=auto -o ControlPersist=60s", "port", None),
    ],
)
def test_a_variable_of_ansible_becomes_its_field(
    write: Write, line: str, field: str, value: object
) -> None:
    found, inventory = of(write, line)
    assert getattr(found, field) == value
    assert inventory.notes == ()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "ansible_port=70000",
            "hosts:3: n1: ansible_port is '70000', wanted a port from 1 to 65535",
        ),
        ("ansible_port=True", "ansible_port is 'True', wanted a port"),
        ("ansible_port=22.0", "ansible_port is '22.0', wanted a port"),
        ("ansible_host=[1]", "hosts:3: n1: ansible_host is a list ('[1]'), wanted a text"),
        ("ansible_host=a b", "ansible_host is 'a b', not a valid address"),
        ("ansible_host=-oX", "ansible_host is '-oX', not a valid address"),
        ("ansible_become=maybe", "ansible_become is 'maybe', wanted true or false"),
        ("ansible_timeout=-1", "ansible_timeout is '-1', wanted seconds above zero"),
        ("ansible_connection=winrm", "ansible_connection is 'winrm', wanted ssh or local"),
        (
            "ansible_become=1\nansible_become_method=su",
            "hosts:4: n1: ansible_become_method is 'su', and only sudo is supported",
        ),
        ("ansible_ssh_args=-o 'X", "ansible_ssh_args holds invalid ssh options: no closing"),
        ("ansible_ssh_args=-o Nothing", "holds -o 'Nothing', wanted -o Name=value"),
        ("ansible_ssh_args=-p", "holds -p has no value"),
        ("ansible_ssh_args=-Z", "holds '-Z' in '-Z' is not an ssh option"),
        ("ansible_ssh_args=gpu1", "holds 'gpu1' is not an ssh option"),
        ("ansible_ssh_args=-p x", "hosts:3: 'x' in 'the port of n1' is not a port"),
        ("ansible_ssh_args=-oStrictHostKeyChecking=maybe", "StrictHostKeyChecking is 'maybe'"),
        ("ansible_ssh_args=-oConnectTimeout=x", "ConnectTimeout is 'x', wanted seconds above zero"),
    ],
)
def test_a_value_without_sense_is_an_error_with_place_and_node(
    write: Write, lines: str, message: str
) -> None:
    with pytest.raises(InventoryError) as caught:
        of(write, lines)
    assert message in str(caught.value)
    assert str(caught.value).startswith("hosts:")


def test_a_password_of_the_wrong_type_is_not_shown(write: Write) -> None:
    with pytest.raises(InventoryError) as caught:
        of(write, "ansible_password=['s3cret']")
    assert "ansible_password is a list, wanted a text" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_what_is_not_used_is_noted_once_for_all_nodes(write: Write) -> None:
    inventory = load(
        write(
            "hosts",
            """
            n[1:3]
            [all:vars]
            ansible_ssh_common_args=-o ForwardX11=yes -A -L 1:a:2 -o UserKnownHostsFile="/a /b"
            ansible_ssh_extra_args=-o ProxyJump=a -o ProxyCommand=b -i /k -i /l
            ansible_become_flags=-H
            """,
        )
    )
    assert set(inventory.notes) == {
        "hosts:5: ansible_become_flags is not used",
        "hosts:3: ansible_ssh_common_args: -o forwardx11 is not used",
        "hosts:3: ansible_ssh_common_args: -A is not used",
        "hosts:3: ansible_ssh_common_args: -L is not used",
        "hosts:3: of several UserKnownHostsFile only the first is used",
        "hosts:4: ansible_ssh_extra_args: proxycommand is not used together with proxyjump",
        "hosts:4: ansible_ssh_extra_args: a second identity file is not used",
    }
    assert len(inventory.notes) == 7


def test_the_order_is_that_of_the_command_line_ansible_builds(write: Write) -> None:
    found, _ = of(
        write,
        "ansible_user=variable\nansible_port=2\nansible_ssh_args=-l args\n"
        "ansible_ssh_common_args=-l common -p 3 -o ConnectTimeout=4\n"
        "ansible_ssh_extra_args=-o ConnectTimeout=5 -F /extra",
    )
    assert (found.user, found.port, found.timeout_s) == ("args", 2, 4.0)
    assert found.ssh_config_file == "/extra"


def test_become_is_sudo_with_user_and_password(write: Write) -> None:
    found, _ = of(write, "ansible_become=1\nansible_become_user=nv\nansible_sudo_pass=p")
    assert (found.become, found.become_user, found.become_password) == (True, "nv", "p")
    assert "'p'" not in repr(found)


def test_a_method_other_than_sudo_matters_only_when_it_is_used(write: Write) -> None:
    found, inventory = of(write, "ansible_become_method=su\nansible_become_password=p")
    assert (found.become, found.become_password) == (False, None)
    assert inventory.notes == (
        "hosts:3: not used: ansible_become_method is 'su', and only sudo is supported",
    )


def test_a_sudo_password_is_there_for_whoever_asks_to_become_later(write: Write) -> None:
    found, _ = of(write, "ansible_become_user=nv\nansible_become_password=p")
    assert (found.become, found.become_user, found.become_password) == (False, "nv", "p")


def test_localhost_is_this_machine_unless_it_has_an_address(write: Write) -> None:
    assert load("localhost,").nodes[0].connection.kind == "local"
    assert load("localhost").nodes[0].connection.kind == "local"
    assert load("localhost:2222,").nodes[0].connection.kind == "ssh"
    (node,) = load(write("hosts", "localhost ansible_connection=ssh\n"))
    assert (node.connection.kind, node.connection.host) == ("ssh", "localhost")
    (node,) = load(write("hosts", "n1 ansible_connection=local ansible_become=true\n"))
    assert (node.connection.kind, node.connection.become) == ("local", True)


def test_known_hosts_from_the_caller_wins_over_the_inventory(write: Write) -> None:
    source = write(
        "hosts", "n1\nlocalhost\n[all:vars]\nansible_ssh_common_args=-o UserKnownHostsFile=/a\n"
    )
    remote, local = load(source, known_hosts="~/b")
    assert remote.connection.known_hosts_file == os.path.expanduser("~/b")
    assert local.connection.known_hosts_file is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "ansible_host=$(touch${IFS}x)",
            "n1: ansible_host is '$(touch${IFS}x)', not a valid address",
        ),
        ("ansible_host='`x`'", "not a valid address"),
        ("ansible_host=-oProxyCommand=x", "not a valid address"),
        ("ansible_host=a;b", "not a valid address"),
        ("ansible_user=-oProxyCommand=x", "not a valid user"),
        ("ansible_user='a;b'", "not a valid user"),
        ("ansible_user=$(x)", "not a valid user"),
        ("ansible_ssh_args=-l-oProxyCommand=x", "which ssh does not accept"),
        ("ansible_ssh_args=-oHostName=$(x)", "which ssh does not accept"),
        ("ansible_ssh_args=-oUser=a|b", "which ssh does not accept"),
        ("ansible_port=0x" + "f" * 5000, "wanted a port"),
    ],
)
def test_what_would_be_more_than_a_word_of_a_command_is_refused(
    write: Write, line: str, says: str
) -> None:
    """Addresses and users become words of a ``ProxyCommand``; ssh itself refuses the same."""
    with pytest.raises(InventoryError) as caught:
        of(write, line)
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("user", ["ops", "DOMAIN-x.y@corp", "first last", "svc_1", "1000"])
def test_users_that_ssh_takes_are_taken(write: Write, user: str) -> None:
    assert of(write, f"ansible_user='{user}'")[0].user == user


@pytest.mark.parametrize("name", ["state_folder", "proc_root", "sys_root"])
@pytest.mark.parametrize(
    "folder", ["/var/lib/my state", "/x/$(y)", "relative", "/", "/a/../b", "7", "/a;b", "/a*"]
)
def test_a_folder_on_a_node_is_a_plain_path(write: Write, name: str, folder: str) -> None:
    """Scripts that run as root remove things below the state folder, and name it without quotes."""
    with pytest.raises(
        InventoryError, match=rf"hosts:3: n1: gpustate_{name} is .* wanted an absolute path"
    ):
        of(write, f"gpustate_{name}={folder}")


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("gpustate_probe_timeout=4", "wanted seconds from 5 to 3600"),
        ("gpustate_probe_timeout=soon", "wanted seconds from 5 to 3600"),
        ("gpustate_state_folder=relative", "wanted an absolute path"),
    ],
)
def test_an_invalid_limit_or_folder_is_refused_with_its_place(
    write: Write, setting: str, reason: str
) -> None:
    with pytest.raises(InventoryError, match=rf"n1: .* {reason}") as caught:
        load(write("hosts", f"n1 {setting}\n"))
    assert "hosts:1" in str(caught.value)


def test_a_limit_of_probes_is_that_of_its_node(write: Write) -> None:
    one, two = load(write("hosts", "n1 gpustate_probe_timeout=300\nn2\n"))
    assert (one.probe_timeout_s, two.probe_timeout_s) == (300, 120)
