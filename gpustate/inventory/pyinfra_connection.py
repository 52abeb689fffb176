"""Build a :class:`Connection` from the data of a node in a pyinfra inventory.

Sources:
    pyinfra 3.10, "Connectors: SSH" (its data keys) and "Global arguments" (``_sudo`` and its kin).
"""

from __future__ import annotations

from collections.abc import Callable

from gpustate.core.inventory import Connection
from gpustate.inventory.fields import Fields
from gpustate.inventory.pyinfra_connectors import CONNECTION
from gpustate.inventory.templates import Scope

_STRICT = {"yes": "yes", "ask": "yes", "true": "yes", "accept-new": "accept-new"}
_STRICT |= {"no": "no", "off": "no", "false": "no"}
#: Other ways to become another user, without sudo.
_OTHER_BECOME = ("_doas", "_dzdo", "_su_user")
#: Unsupported keys of pyinfra's SSH connector and of its sudo.
_UNUSED = (
    *("_preserve_sudo_env", "_use_sudo_login", "ssh_allow_agent", "ssh_connect_retries"),
    *("ssh_forward_agent", "ssh_key_password", "ssh_look_for_keys"),
    "ssh_paramiko_connect_kwargs",
)


def build(name: str, scope: Scope, note: Callable[[str], None]) -> Connection:
    """Return the connection of the node ``name``.

    Raises:
        InventoryError: an invalid value, with its place.
    """
    fields = Fields(scope, name)
    become = bool(fields.flag("_sudo"))
    for method in _OTHER_BECOME:
        value = scope.variables.get(method)
        if value is not None and value.value:
            raise fields.error(method, "is set, and only sudo is supported", value.origin)
    user = fields.text("_sudo_user") or "root"
    password = fields.password("_sudo_password")
    kind = fields.text(CONNECTION)
    if kind in ("docker", "podman", "chroot"):
        return Connection(
            kind, fields.text("chroot_directory" if kind == "chroot" else "docker_identifier")
        )
    if kind == "local" or (name == "localhost" and "ssh_hostname" not in scope.variables):
        return Connection("local", become=become, become_user=user, become_password=password)
    for variable in _UNUSED:
        if variable in scope.variables:
            note(f"{scope.variables[variable].origin}: {variable} is not used")
    host = fields.host("ssh_hostname") or name
    timeout_s = fields.seconds("ssh_connect_timeout")
    return Connection(
        kind="ssh",
        host=host,
        port=fields.port("ssh_port"),
        user=fields.user("ssh_user"),
        key_file=fields.path("ssh_key"),
        password=fields.password("ssh_password"),
        known_hosts_file=fields.path("ssh_known_hosts_file"),
        strict_host_key=_strict(fields),
        ssh_config_file=fields.path("ssh_config_file"),
        become=become,
        become_user=user,
        become_password=password,
        timeout_s=Connection().timeout_s if timeout_s is None else timeout_s,
    )


def _strict(fields: Fields) -> str:
    """pyinfra's default is ``accept-new``; here host keys are checked by default."""
    declared = fields.first("ssh_strict_host_key_checking")
    if declared is None:
        return "yes"
    name, (value, place) = declared
    strict = _STRICT.get(str(value).lower())
    if strict is None:
        raise fields.error(
            name, f"is {fields.quote(name, value, place)}, wanted yes, accept-new or no", place
        )
    return strict
