"""The command that stands in for a connection."""

from __future__ import annotations

import os

import pytest

from gpustate.core.inventory import Connection
from gpustate.errors import ConnectionFailed
from gpustate.remote import ssh


def through(command: str) -> None:
    """Begin a connection to a node by a command."""
    connection = Connection(
        host="h%p", user="u%h", proxy_command=command, ssh_config_file=os.devnull
    )
    ssh._socket(ssh._target("n", connection), connection, [], 0)


def test_each_word_is_put_in_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(ssh.paramiko, "ProxyCommand", lines.append)
    through("x %h %p %r %%h %x")
    assert lines == ["x h%p 22 u%h %h %x"]


@pytest.mark.parametrize("command", ["x 'unclosed", "/no/such/program %h"])
def test_a_command_that_cannot_be_run_is_one_error(command: str) -> None:
    with pytest.raises(ConnectionFailed, match="cannot run ProxyCommand"):
        through(command)
