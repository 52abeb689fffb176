"""Options of the connection: of the command line, the environment and ``gpustate.toml``, in this order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from commandline import Cli

from gpustate.cli import connection
from gpustate.cli.main import cli
from gpustate.errors import UsageError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    connection.settings.cache_clear()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(f"[connection]\n{text}\n")
    path.chmod(mode)


def parsed(*words: str) -> dict[str, Any]:
    command = cli.get_command(click.Context(cli), "plan")
    assert command is not None
    parent = click.Context(cli, **cli.context_settings)
    return command.make_context("plan", ["nouveau", "-i", "n1", *words], parent).params


def test_command_line_counts_before_environment_before_files(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home / "config/gpustate/gpustate.toml", 'user = "everywhere"\nbecome = true')
    assert (parsed()["user"], parsed()["become"]) == ("everywhere", True)
    write(home / "work/gpustate.toml", 'user = "here"\nvault_id = "prod@prompt"')
    connection.settings.cache_clear()
    assert (parsed()["user"], parsed()["become"]) == ("here", True)
    assert parsed()["vault_id"] == ("prod@prompt",)
    monkeypatch.setenv("GPUSTATE_USER", "variable")
    monkeypatch.setenv("GPUSTATE_BECOME", "0")
    assert (parsed()["user"], parsed()["become"]) == ("variable", False)
    assert parsed("-u", "option", "-b")["user"] == "option"


def test_paths_are_relative_to_their_file(home: Path) -> None:
    write(home / "config/gpustate/gpustate.toml", 'private_key = "id"\nvault_password_file = "pw"')
    folder = home / "config/gpustate"
    assert parsed()["private_key"] == str(folder / "id")
    assert parsed()["vault_password_file"] == (str(folder / "pw"),)


@pytest.mark.parametrize("key", ["vault_password_file", "vault_id"])
def test_a_file_names_no_program(home: Path, key: str) -> None:
    program = home / "work/get-password"
    program.write_text("#!/bin/sh\ntouch ran\n")
    program.chmod(0o755)
    value = "prod@get-password" if key == "vault_id" else "get-password"
    write(home / "work/gpustate.toml", f'{key} = "{value}"')
    with pytest.raises(UsageError, match=f"{key} names a program: .*/get-password"):
        parsed()
    assert not (home / "work/ran").exists()


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_can_write_is_refused(home: Path, mode: int) -> None:
    write(home / "work/gpustate.toml", 'user = "ops"', mode)
    with pytest.raises(UsageError, match="another user can write this file"):
        parsed()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('usr = "x"', "has no 'usr'"),
        ("user = 7", "user is not a str"),
        ('become = "yes"', "become is not a bool"),
        ("vault_id = [1]", "vault_id is not a list"),
        ('user = "-oProxyCommand=sh"', "user is not a name"),
        ("user = ", "is not TOML"),
    ],
)
def test_a_wrong_setting_is_named(home: Path, text: str, message: str) -> None:
    write(home / "work/gpustate.toml", text)
    with pytest.raises(UsageError, match=message):
        parsed()


def test_help_has_them_once(gpustate: Cli) -> None:
    page = gpustate("help", "connection").out
    verb = gpustate("facts", "--help").out
    for name in connection.parameters():
        assert f"--{name.replace('_', '-')}" in page
        assert f"GPUSTATE_{name.upper()}" in page
        assert f"--{name.replace('_', '-')}" not in verb
