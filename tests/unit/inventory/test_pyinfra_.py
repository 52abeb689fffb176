from __future__ import annotations

import sys

import pytest

from gpustate.errors import InventoryError
from gpustate.inventory import load

from .conftest import Write


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu = [", "inventory.py:1: is not Python: '[' was never closed"),
        ("x = 1\ny = 1 / 0", "inventory.py:2: ZeroDivisionError while running it"),
        ("import sys\nsys.exit(3)", "inventory.py:2: SystemExit while running it: '3'"),
        ("import no_such_module", "inventory.py:1: ModuleNotFoundError while running it"),
        (
            "gpu = ['a', 5]",
            "inventory.py:1: the group gpu contains '5', wanted a name or (name, data)",
        ),
        ("gpu = (['a'], 5)", "inventory.py:1: the group gpu is a tuple but not (nodes, data)"),
        ("gpu = ['@terraform/x']", "the connector @terraform is not supported; use one of @ssh"),
        ("gpu = ['@docker']", "'@docker': a name is missing; write @docker/NAME"),
        ("gpu = ['@local/x']", "'@local/x': a name is missing"),
        ("gpu = ['@docker/ubuntu:22.04']", "'ubuntu:22.04' is an image, not the name of"),
        ("gpu = ['a b']", "inventory.py:1: 'a b' is not a node name"),
        ("x = 5", "inventory.py: contains no node"),
        ("g = [('a', {'ssh_port': 'x'})]", "a: ssh_port is 'x', wanted a port from 1 to 65535"),
        ("g = (['a'], {'_doas': True})", "a: _doas is set, and only sudo is supported"),
        (
            "g = (['a'], {'ssh_strict_host_key_checking': 'maybe'})",
            "a: ssh_strict_host_key_checking is 'maybe', wanted yes, accept-new or no",
        ),
    ],
)
def test_a_wrong_file_is_an_error_with_its_line(write: Write, text: str, message: str) -> None:
    source = write("inventory.py", text)
    with pytest.raises(InventoryError) as caught:
        load(source)
    assert message in str(caught.value)


def test_data_becomes_a_connection_and_the_narrowest_wins(write: Write) -> None:
    write("group_data/gpu.py", "import os\nssh_user = 'ops'\nrack = 'r1'\n_private = 1\n")
    write("group_data/all.py", "ssh_user = 'everyone'\nssh_known_hosts_file = '/k'\n")
    write("group_data/nowhere.py", "x = 1\n")
    source = write(
        "inventory.py",
        """
        gpu = ["a", ("b", {"ssh_user": "own", "ssh_hostname": "b.example", "ssh_port": "2222"})]
        login = (["c", "@ssh/d"], {"_sudo": True, "_sudo_password": "p", "ssh_key": "/key"})
        here = ["@local"]
        ssh_forward_agent = True
        """,
    )
    inventory = load(source)
    a, b, c, d, here = inventory
    assert (a.connection.user, a.connection.host, a.connection.known_hosts_file) == (
        "ops",
        "a",
        "/k",
    )
    assert a.groups == ("gpu", "inventory")
    assert a.origins["rack"] == "group_data/gpu.py:3"
    assert "os" not in a.vars
    assert (b.connection.user, b.connection.host, b.connection.port) == ("own", "b.example", 2222)
    assert (c.connection.user, c.connection.become) == ("everyone", True)
    assert (c.connection.become_password, c.connection.key_file) == ("p", "/key")
    assert d.name == d.connection.host == "d"
    assert (here.name, here.connection.kind) == ("localhost", "local")
    assert inventory.notes == (
        "group_data/nowhere.py: not read, because there is no group nowhere",
    )


def test_reading_does_not_touch_pyinfras_own_state(write: Write) -> None:
    loaded = {name for name in sys.modules if name.startswith("pyinfra")}
    load(write("inventory.py", "gpu = ['a']\n"))
    assert {name for name in sys.modules if name.startswith("pyinfra")} == loaded


def test_what_pyinfra_knows_and_gpustate_does_not_is_noted(write: Write) -> None:
    source = write("inventory.py", "g = (['a', 'b'], {'ssh_forward_agent': True})\n")
    assert load(source).notes == ("inventory.py:1: ssh_forward_agent is not used",)
