"""Build a :class:`Connection` from Ansible's variables.

Precedence is that of the command line Ansible would build: ``ansible_ssh_args``, then the ``ansible_...``
variables, then ``ansible_ssh_common_args``, then ``ansible_ssh_extra_args``; the first takes precedence, as in
``ssh``. A node named ``localhost`` without an address is this machine.

Sources:
    ``ansible.builtin.ssh`` and ``ansible.builtin.sudo`` of ansible-core 2.19, their options.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TypeVar

from gpustate.core.inventory import Connection, Sealed, alive_interval
from gpustate.errors import InventoryError
from gpustate.formats.numbers import parse_uint
from gpustate.formats.words import quote
from gpustate.inventory.fields import HOST, USER, Fields
from gpustate.inventory.ranges import parse_port
from gpustate.inventory.secrets import quote_value
from gpustate.inventory.sshargs import USED, Option, parse
from gpustate.inventory.store import Value
from gpustate.inventory.templates import Scope

T = TypeVar("T")

_SSH = {"ssh", "smart", "paramiko", "paramiko_ssh"}
_STRICT = {"yes": "yes", "ask": "yes", "on": "yes", "accept-new": "accept-new"}
_STRICT |= {"no": "no", "off": "no"}
#: Variables that change how Ansible connects, and that are unsupported here.
_UNUSED = (
    *("ansible_become_exe", "ansible_become_flags", "ansible_private_key"),
    *("ansible_private_key_passphrase", "ansible_ssh_executable"),
    *("ansible_ssh_pkcs11_provider", "ansible_ssh_private_key"),
    *("ansible_ssh_private_key_passphrase", "ansible_sudo_exe", "ansible_sudo_flags"),
)


def build(name: str, scope: Scope, note: Callable[[str], None]) -> Connection:
    """Return the connection of the node ``name``.

    Raises:
        InventoryError: an invalid variable, with its place.
    """
    fields = Fields(scope, name)
    kind = _kind(name, fields)
    become, become_user, become_password = _become(fields, note)
    if kind == "local":
        return Connection(
            kind, become=become, become_user=become_user, become_password=become_password
        )
    for variable in _UNUSED:
        if variable in scope.variables:
            note(f"{scope.variables[variable].origin}: {variable} is not used")
    options = _Options(fields, note)
    options.add("ansible_ssh_args")
    options.put("stricthostkeychecking", _strict(fields), "ansible_host_key_checking")
    port = fields.port("ansible_port", "ansible_ssh_port")
    options.put("port", None if port is None else str(port), "ansible_port")
    key = fields.path("ansible_private_key_file", "ansible_ssh_private_key_file")
    options.put("identityfile", key, "ansible_ssh_private_key_file")
    options.put("user", fields.user("ansible_user", "ansible_ssh_user"), "ansible_user")
    timeout_s = fields.seconds("ansible_timeout", "ansible_ssh_timeout")
    options.put("connecttimeout", None if timeout_s is None else str(timeout_s), "ansible_timeout")
    options.add("ansible_ssh_common_args")
    options.add("ansible_ssh_extra_args")
    host = fields.host("ansible_host", "ansible_ssh_host")
    return Connection(
        kind="ssh",
        host=options.checked("hostname", HOST) or host or name,
        port=options.port(),
        user=options.checked("user", USER),
        key_file=options.path("identityfile"),
        password=fields.password("ansible_password", "ansible_ssh_pass", "ansible_ssh_password"),
        known_hosts_file=options.path("userknownhostsfile"),
        strict_host_key=options.strict(),
        ssh_config_file=options.path("-F"),
        proxy_jump=options.hop("proxyjump"),
        proxy_command=options.hop("proxycommand"),
        become=become,
        become_user=become_user,
        become_password=become_password,
        timeout_s=options.seconds(),
        alive_interval_s=options.interval(),
        alive_count=options.count(),
    )


def _kind(name: str, fields: Fields) -> str:
    kind = fields.text("ansible_connection")
    if kind is None:
        addressed = {"ansible_host", "ansible_ssh_host", "ansible_port", "ansible_ssh_port"}
        is_local = name == "localhost" and not addressed & fields.scope.variables.keys()
        return "local" if is_local else "ssh"
    short = kind.removeprefix("ansible.builtin.")
    if short == "local":
        return "local"
    if short in _SSH:
        return "ssh"
    place = fields.scope.variables["ansible_connection"].origin
    raise fields.error(
        "ansible_connection",
        f"is {fields.quote('ansible_connection', kind, place)}, wanted ssh or local",
        place,
        "exclude the node (-l '!NODE'), or connect to it with ssh",
    )


def _become(fields: Fields, note: Callable[[str], None]) -> tuple[bool, str, str | Sealed | None]:
    """Return whether to become another user, the user, and the password.

    User and password are returned even without become, because the command line may enable it. Then
    invalid values are only noted.
    """
    become = bool(fields.flag("ansible_become", "ansible_sudo"))
    try:
        return become, *_sudo(fields)
    except InventoryError as error:
        if become:
            raise
        # Without the node's name: one note for the fleet, not one per node.
        note(f"{error.place}: not used: {error.message.removeprefix(fields.node + ': ')}")
        return False, "root", None


def _sudo(fields: Fields) -> tuple[str, str | Sealed | None]:
    method = fields.text("ansible_become_method")
    if method is not None and method.removeprefix("ansible.builtin.") != "sudo":
        raise fields.error(
            "ansible_become_method",
            f"is {quote(method)}, and only sudo is supported",
            fields.scope.variables["ansible_become_method"].origin,
        )
    user = fields.text("ansible_become_user", "ansible_sudo_user") or "root"
    password = fields.password(
        "ansible_become_password", "ansible_become_pass", "ansible_sudo_pass"
    )
    return user, password


def _strict(fields: Fields) -> str | None:
    """Ansible adds an option only if the check is disabled; otherwise the arguments decide."""
    checked = fields.flag("ansible_host_key_checking", "ansible_ssh_host_key_checking")
    return "no" if checked is False else None


class _Options:
    """Options of ``ssh`` from several places; the first of each name takes precedence."""

    def __init__(self, fields: Fields, note: Callable[[str], None]) -> None:
        self.fields = fields
        self.note = note
        self.values: dict[str, Value] = {}

    def put(self, name: str, value: str | None, variable: str) -> None:
        """Add the option of a variable."""
        if value is not None:
            origin = self.fields.scope.variables.get(variable)
            self.values.setdefault(name, Value(value, origin.origin if origin else variable))

    def add(self, variable: str) -> None:
        """Add the options of a variable with arguments."""
        text = self.fields.text(variable)
        if text is None:
            return
        place = self.fields.scope.variables[variable].origin
        try:
            options = parse(text)
        except InventoryError as error:
            raise self.fields.error(variable, f"holds {error.message}", place) from error
        for option in options:
            self._add(option, variable, place)

    def _add(self, option: Option, variable: str, place: str) -> None:
        name = option.name
        if name not in USED and name != "-F":
            written = name if name.startswith("-") else f"-o {name}"
            self.note(f"{place}: {variable}: {written} is not used")
            return
        # OpenSSH makes one of these two decide: whichever comes first.
        rival = {"proxyjump": "proxycommand", "proxycommand": "proxyjump"}.get(name)
        if rival in self.values:
            self.note(f"{place}: {variable}: {name} is not used together with {rival}")
            return
        if name == "identityfile" and self.values.get(name, Value(option.value, "")).value not in {
            option.value,
            os.path.expanduser(option.value),
        }:
            self.note(f"{place}: {variable}: a second identity file is not used")
        self.values.setdefault(name, Value(option.value, place))

    def text(self, name: str) -> str | None:
        setting = self.values.get(name)
        return None if setting is None else setting.value

    def checked(self, name: str, pattern: re.Pattern[str]) -> str | None:
        """Return a text that ssh accepts."""
        setting = self.values.get(name)
        if setting is None:
            return None
        value = str(setting.value)
        if value[:1] == "-" or not pattern.fullmatch(value):
            raise self.fields.error(
                name,
                f"is {quote_value(value, name, setting.origin)}, which ssh does not accept",
                setting.origin,
            )
        return value

    def path(self, name: str) -> str | None:
        """Return a path, of several in one value the first."""
        setting = self.values.get(name)
        if setting is None:
            return None
        value = str(setting.value)
        if name == "userknownhostsfile" and len(value.split()) > 1:
            self.note(f"{setting.origin}: of several UserKnownHostsFile only the first is used")
            value = value.split()[0]
        # ssh_config's keyword for "no file".
        if value.lower() == "none":
            return None if name == "identityfile" else os.devnull
        return os.path.expanduser(value)

    def hop(self, name: str) -> str | None:
        value = self.text(name)
        return None if value is None or value.lower() == "none" else value

    def port(self) -> int | None:
        setting = self.values.get("port")
        if setting is None:
            return None
        return parse_port(setting.value, f"the port of {self.fields.node}", setting.origin)

    def strict(self) -> str:
        return (
            self._parsed(
                "StrictHostKeyChecking",
                lambda text: _STRICT.get(text.lower()),
                "yes, accept-new or no",
            )
            or "yes"
        )

    def seconds(self) -> float:
        timeout_s = self._parsed("ConnectTimeout", _above_zero, "seconds above zero")
        return Connection().timeout_s if timeout_s is None else timeout_s

    def interval(self) -> float | None:
        """Return the keepalive interval."""
        return self._parsed("ServerAliveInterval", alive_interval, "a time such as 15 or 1m")

    def count(self) -> int | None:
        """Return how many keepalives may stay unanswered."""
        return self._parsed("ServerAliveCountMax", parse_uint, "a number")

    def _parsed(self, keyword: str, parse: Callable[[str], T | None], wanted: str) -> T | None:
        """The value of a keyword; ``None`` where it is not set."""
        setting = self.values.get(keyword.lower())
        if setting is None:
            return None
        value = parse(str(setting.value))
        if value is None:
            text = quote_value(setting.value, "", setting.origin)
            raise self.fields.error(keyword, f"is {text}, wanted {wanted}", setting.origin)
        return value


def _above_zero(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None
