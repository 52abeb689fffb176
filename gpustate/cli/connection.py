"""How nodes are connected: options that every verb has and no help repeats, and ``gpustate help connection``.

Sources:
    ansible, "Avoiding security risks with ansible.cfg in the current directory": why files of others are refused.
"""

from __future__ import annotations

import os
import re
import stat
from functools import cache
from pathlib import Path
from typing import Any

import click

from gpustate.errors import UsageError

FILE = "gpustate.toml"
TABLE = "connection"
_USER = re.compile(r"\w[\w.@+-]*")


class ConnectionOption(click.Option):
    """An option that verbs accept and do not list; its default is in the environment or in ``gpustate.toml``."""

    def __init__(self, declarations: Any, **attributes: Any) -> None:
        super().__init__(declarations, hidden=True, **attributes)
        self.envvar = f"GPUSTATE_{(self.name or '').upper()}"

    def get_default(self, ctx: click.Context, call: bool = True) -> Any:
        value = settings().get(self.name or "")
        return super().get_default(ctx, call) if value is None else value

    def row(self, ctx: click.Context) -> tuple[str, str]:
        """Its line in ``gpustate help connection``."""
        self.hidden = False
        names, text = self.get_help_record(ctx) or ("", "")
        self.hidden = True
        return names, f"{text} [{self.envvar}]"


def _option(*names: str, **attributes: Any) -> Any:
    return click.option(*names, cls=ConnectionOption, **attributes)


OPTIONS = (
    _option("-u", "--user", help="SSH user, if the inventory sets none."),
    _option(
        "--private-key", type=click.Path(), help="SSH private key, if the inventory sets none."
    ),
    _option(
        "--host-key-checking",
        type=click.Choice(["yes", "accept-new", "no"]),
        help="Unknown host keys: refuse (default), save, or accept any.",
    ),
    _option(
        "-b", "--become", is_flag=True, help="Use sudo, even if the inventory does not set it."
    ),
    _option("-K", "--ask-become-pass", is_flag=True, help="Prompt once for the sudo password."),
    _option(
        "--vault-password-file",
        multiple=True,
        metavar="FILE",
        help="File, or program, with the password of Ansible Vault [env: ANSIBLE_VAULT_PASSWORD_FILE].",
    ),
    _option(
        "--vault-id",
        multiple=True,
        metavar="LABEL@SOURCE",
        help="Password of a vault id: LABEL@FILE or LABEL@prompt; repeatable.",
    ),
    _option("-J", "--ask-vault-pass", is_flag=True, help="Prompt once for the vault password."),
)


def parameters() -> dict[str, ConnectionOption]:
    """The options by name."""
    command = click.Command("options")
    for decorate in OPTIONS:
        command = decorate(command)
    options = (option for option in command.params if isinstance(option, ConnectionOption))
    return {str(option.name): option for option in options}


@cache
def settings() -> dict[str, Any]:
    """The table ``[connection]`` of ``gpustate.toml`` here, over that of ``~/.config/gpustate``.

    Raises:
        UsageError: a file has one and is not only one's own to write, or a value is wrong.
    """
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return {**_table(Path(home, "gpustate", FILE)), **_table(Path.cwd() / FILE)}


def _table(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    if f"[{TABLE}]" not in text:
        return {}  # states alone, which the registry reads
    import tomllib

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"is not TOML: {error}", place=str(path)) from error
    _refuse_others(path)
    options = parameters()
    values: dict[str, Any] = {}
    for key, value in data.get(TABLE, {}).items():
        option = options.get(key)
        if option is None:
            names = ", ".join(options)
            raise UsageError(f"[{TABLE}] has no {key!r}", place=str(path), fix=f"it has: {names}")
        expected = list if option.multiple else bool if option.is_flag else str
        if expected is list and isinstance(value, str):
            value = [value]
        if not isinstance(value, expected) or (
            isinstance(value, list) and not all(isinstance(item, str) for item in value)
        ):
            raise UsageError(f"[{TABLE}] {key} is not a {expected.__name__}", place=str(path))
        if key == "user" and not _USER.fullmatch(str(value)):  # it becomes a word of a ProxyCommand
            raise UsageError(f"[{TABLE}] user is not a name", place=str(path))
        values[key] = _located(key, value, path)
    return values


def _refuse_others(path: Path) -> None:
    """Refuse a file that someone else can write: it would choose keys and users for this one."""
    status = path.stat()
    writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if writable or status.st_uid not in (os.geteuid(), 0):
        raise UsageError(
            f"[{TABLE}] is not read: another user can write this file",
            place=str(path),
            fix=f"chown and chmod it: chmod 644 {path}",
        )


def _located(key: str, value: Any, path: Path) -> Any:
    """A value with its paths relative to its file; no program is named in a file."""
    if key == "private_key":
        return str(path.parent / os.path.expanduser(value))
    if key not in ("vault_password_file", "vault_id"):
        return value
    sources: list[str] = []
    for text in value:
        label, at, source = text.rpartition("@") if key == "vault_id" else ("", "", text)
        if source != "prompt" or not at:
            source = str(path.parent / os.path.expanduser(source))
            if os.access(source, os.X_OK):
                raise UsageError(
                    f"[{TABLE}] {key} names a program: {source}",
                    place=str(path),
                    fix=f"name a file that is not executable, or pass --{key.replace('_', '-')}",
                )
        sources.append(f"{label}{at}{source}")
    return sources


@click.command()
@click.pass_context
def connection(ctx: click.Context) -> None:
    """Show how nodes are connected: options of every verb that reaches nodes.

    Each option is also an environment variable, and a key of the table [connection] of gpustate.toml in this
    directory or in ~/.config/gpustate (user = "ops", become = true). The first of command line, environment and
    file counts. The inventory's own variables (ansible_user, ansible_become and others) are per node.
    """
    formatter = ctx.make_formatter()
    connection.format_help_text(ctx, formatter)
    with formatter.section("Options"):
        formatter.write_dl([option.row(ctx) for option in parameters().values()])
    click.echo(formatter.getvalue().strip())
