"""pyinfra's ``@connector/name``: nodes with another connection than SSH by name.

| name | node |
| --- | --- |
| ``@ssh/NAME`` | as ``NAME`` |
| ``@local`` | this machine |
| ``@docker/NAME``, ``@podman/NAME`` | a running container on this machine |
| ``@chroot/FOLDER`` | the root of an image on this machine |
| ``@vagrant``, ``@vagrant/NAME`` | every running Vagrant machine of this folder, or one |

Unlike pyinfra, no container is started from an image, and none is committed to one. A Vagrant machine's host
key is accepted at the first connection and stored next to the machine.

Sources:
    pyinfra 3.10, ``connectors/docker.py``, ``chroot.py``, ``local.py`` and ``vagrant.py``.
    Vagrant, "Machine Readable Output"; ``vagrant ssh-config``.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpustate.documents import Json
from gpustate.errors import InventoryError
from gpustate.formats.words import quote
from gpustate.inventory import executable
from gpustate.inventory.documents import parse_json
from gpustate.inventory.files import read_text
from gpustate.inventory.ranges import check_name

#: The variable with the connector, if it is not SSH.
CONNECTION = "ansible_connection"
SUPPORTED = ("ssh", "local", "docker", "podman", "chroot", "vagrant")
_CONTAINER = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
_OPTIONS = "@vagrant.json"


@dataclass(frozen=True, slots=True)
class Named:
    """One node of a name.

    Args:
        name: of the node.
        data: its variables.
        groups: its additional groups.
    """

    name: str
    data: Json = field(default_factory=Json)
    groups: tuple[str, ...] = ()


def nodes_of(text: str, place: str) -> tuple[Named, ...]:
    """The nodes of a name with or without a connector.

    Raises:
        InventoryError: the connector is unsupported, or no such machine is running.
    """
    if not text.startswith("@"):
        return (Named(check_name(text, place)),)
    connector, _, argument = text[1:].partition("/")
    if connector == "local" and not argument:
        return (Named("localhost", {CONNECTION: "local"}),)
    if connector == "ssh" and argument:
        return (Named(check_name(argument, place)),)
    if connector in ("docker", "podman") and argument:
        return (_container(connector, argument, place),)
    if connector == "chroot" and argument:
        folder = f"/{argument.strip('/')}"
        name = re.sub(r"[^\w.-]", "-", argument.strip("/"))
        return (Named(check_name(name, place), {CONNECTION: "chroot", "chroot_directory": folder}),)
    if connector == "vagrant":
        return tuple(_vagrant(argument, place))
    named = ", ".join(f"@{name}" for name in SUPPORTED)
    if connector in SUPPORTED:
        raise InventoryError(
            f"{quote(text)}: a name is missing", place=place, fix=f"write @{connector}/NAME"
        )
    raise InventoryError(
        f"{quote(text)}: the connector @{connector[:40]} is not supported",
        place=place,
        fix=f"use one of {named}",
    )


def _container(connector: str, name: str, place: str) -> Named:
    if not _CONTAINER.fullmatch(name):
        raise InventoryError(
            f"{quote(name)} is an image, not the name of a container",
            place=place,
            fix=f"start one: {connector} run -d --name NAME {shlex.quote(name)} tail -f /dev/null, and use its name",
        )
    return Named(name, {CONNECTION: connector, "docker_identifier": name})


# --- Vagrant -------------------------------------------------------------------------------


def _vagrant(name: str, place: str) -> Iterator[Named]:
    running = [
        target
        for target in _running(executable.shell("vagrant status --machine-readable"))
        if not name or target == name
    ]
    if not running:
        title = f"no Vagrant machine {quote(name)}" if name else "no Vagrant machine"
        raise InventoryError(
            f"{title} is running in this folder", place=place, fix="run vagrant up"
        )
    options = _options()
    text = executable.shell(f"vagrant ssh-config {shlex.join(running)}")
    for host, settings in _ssh_config(text).items():
        data: Json = {
            "ssh_hostname": settings.get("hostname", host),
            "ssh_strict_host_key_checking": "accept-new",
            "ssh_known_hosts_file": os.path.abspath(f".vagrant/known_hosts-{host}"),
            "_sudo": settings.get("user") != "root",
        }
        for key, variable in (
            ("port", "ssh_port"),
            ("user", "ssh_user"),
            ("identityfile", "ssh_key"),
        ):
            if key in settings:
                data[variable] = settings[key]
        data |= _mapping(_mapping(options.get("data")).get(host))
        groups = _mapping(options.get("groups")).get(host, ())
        yield Named(check_name(host, place), data, ("vagrant", *map(str, groups)))


def _running(text: str) -> Iterator[str]:
    """Machines that run: lines of ``timestamp,target,type,data``."""
    for line in text.splitlines():
        words = line.strip().split(",", 3)
        if len(words) == 4 and words[2:] == ["state", "running"]:
            yield words[1]


def _ssh_config(text: str) -> dict[str, dict[str, str]]:
    """Hosts and their options, by name in lower case."""
    hosts: dict[str, dict[str, str]] = {}
    options: dict[str, str] = {}
    for line in text.splitlines():
        words = shlex.split(line)
        if len(words) < 2:
            continue
        if words[0].lower() == "host":
            options = hosts.setdefault(words[1], {})
        else:
            options.setdefault(words[0].lower(), words[1])
    return hosts


def _options() -> Json:
    """``@vagrant.json`` next to the Vagrantfile: data and groups of its machines."""
    if not os.path.exists(_OPTIONS):
        return {}
    return _mapping(parse_json(read_text(_OPTIONS), _OPTIONS))


def _mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
