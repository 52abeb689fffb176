"""The command that stands in for a connection."""

from __future__ import annotations

import os
import time

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
    monkeypatch.setattr(ssh, "_ProxyCommand", lines.append)
    through("x %h %p %r %%h %x")
    assert lines == ["x h%p 22 u%h %h %x"]


@pytest.mark.parametrize("command", ["x 'unclosed", "/no/such/program %h"])
def test_a_command_that_cannot_be_run_is_one_error(command: str) -> None:
    with pytest.raises(ConnectionFailed, match="cannot run ProxyCommand"):
        through(command)


@pytest.mark.parametrize(
    ("script", "timeout_s", "reason"),
    [
        (
            "echo noise >&2; echo ssh: no route >&2; exit 255",
            20,
            "ended with status 255: noise; ssh: no route",
        ),
        ("exec sleep 30", 1, "did not connect within 1 s"),
    ],
)
def test_a_command_that_does_not_connect_says_why_and_no_node_is_blamed(
    script: str, timeout_s: float, reason: str
) -> None:
    connection = Connection(
        host="h",
        user="u",
        proxy_command=f"sh -c '{script}'",
        ssh_config_file=os.devnull,
        timeout_s=timeout_s,
    )
    start = time.monotonic()
    with pytest.raises(ConnectionFailed) as caught:
        ssh.open_client("n", connection)
    assert time.monotonic() - start < 10, "its end is seen, not waited for"
    assert caught.value.message == f"u@h:22: ProxyCommand {reason}"
    assert caught.value.fix == f"run it to see what it lacks: sh -c '{script}'"
