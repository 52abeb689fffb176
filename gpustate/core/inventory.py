"""Nodes as an inventory names them: who they are, how to reach them, what is said about them.

Pure data. ``gpustate.inventory`` reads the many formats into it, ``gpustate.remote`` connects by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from gpustate.documents import Json, JsonView
from gpustate.errors import InventoryError

#: A path of the kind that needs no quoting anywhere: in scripts, units, configuration files.
PLAIN_PATH = r"(/[A-Za-z0-9_.+@:-]+)+"
DEFAULT_STATE_FOLDER = "/var/lib/gpustate"


#: Variables with a node's labels, the stronger last.
LABELS = ("node_labels", "gpustate_labels")
#: Seconds without data before a keepalive request, and the number of requests without a reply after which
#: the connection is closed: a minute in total.
ALIVE_INTERVAL_S, ALIVE_COUNT = 15.0, 3
_GOES_BACK = "_gpustate_goes_back"
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def alive_interval(text: str) -> float | None:
    """Read a time as ssh_config writes it (``15``, ``1m``); ``None`` when it is none."""
    match = re.fullmatch("([0-9]{1,6})([smh]?)", text.lower())
    return float(match[1]) * _SECONDS[match[2]] if match else None


@dataclass(frozen=True, slots=True, eq=False)
class Sealed:
    """A password that is only decrypted, or asked a command for, when a connection is made."""

    opened: Callable[[], str | None] = field(repr=False)


def _open(password: str | Sealed | None) -> str | None:
    return password.opened() if isinstance(password, Sealed) else password


@dataclass(frozen=True, slots=True)
class Connection:
    """How one node is reached. ``None`` means "not given": ``~/.ssh/config`` or the default decides.

    Args:
        kind: ``ssh``; ``local`` for the machine gpustate itself runs on; there, ``docker`` or ``podman`` for
            a container and ``chroot`` for the root of an image.
        host: name or address to connect to; the container or the folder.
        port: TCP port, 1 to 65535.
        user: login name.
        key_file: private key.
        password: login password.
        known_hosts_file: where host keys are looked up.
        strict_host_key: ``yes`` refuses unknown keys (default), ``accept-new`` keeps them, ``no`` takes any.
        ssh_config_file: instead of ``~/.ssh/config``.
        proxy_jump: ``user@host:port``, several separated by commas, first hop first.
        proxy_command: a command whose standard input and output is the connection.
        become: run as another user through sudo.
        become_user: that user.
        become_password: sudo's password; never part of a command line.
        timeout_s: to be connected and authenticated, in seconds.
        alive_interval_s: seconds without data before a keepalive request; 0: no requests.
        alive_count: requests without a reply after which the connection is closed.
    """

    kind: str = "ssh"
    host: str | None = None
    port: int | None = None
    user: str | None = None
    key_file: str | None = None
    password: str | Sealed | None = field(default=None, repr=False)
    known_hosts_file: str | None = None
    strict_host_key: str = "yes"
    ssh_config_file: str | None = None
    proxy_jump: str | None = None
    proxy_command: str | None = None
    become: bool = False
    become_user: str = "root"
    become_password: str | Sealed | None = field(default=None, repr=False)
    timeout_s: float = 10.0
    alive_interval_s: float | None = None
    alive_count: int | None = None

    @property
    def login_password(self) -> str | None:
        """The login password as a text; raise ``InventoryError`` when it cannot be decrypted."""
        return _open(self.password)

    @property
    def sudo_password(self) -> str | None:
        """Sudo's password as a text, where sudo is used; the same error."""
        return _open(self.become_password) if self.become else None


@dataclass(frozen=True, slots=True, eq=False)
class VarsLayer:
    """What one scope of an inventory says in the variable ``gpustate``; nodes of one group share it.

    Args:
        scope: ``fleet`` (the group ``all``), ``group`` or ``node``.
        name: of the group or node; empty for the fleet.
        value: as it stands there, templates resolved.
        origin: its place.
        places: places of the values in it, by their keys.
    """

    scope: str
    name: str
    value: Any
    origin: str
    places: Mapping[tuple[str, ...], str] = field(default_factory=dict[tuple[str, ...], str])


def labels_of(variables: JsonView) -> dict[str, str]:
    """Labels in the variables of a node: ``node_labels``, which kubespray has too, and ``gpustate_labels``."""
    labels: dict[str, str] = {}
    for name in LABELS:
        value = variables.get(name)
        for key, text in value.items() if isinstance(value, Mapping) else ():
            labels[str(key)] = str(text).lower() if isinstance(text, bool) else str(text)
    return labels


class LaterLayers(Sequence[VarsLayer]):
    """Layers that take a decryption or a command to know, and wait until a policy is resolved."""

    def __init__(self, read: Callable[[], Sequence[VarsLayer]]) -> None:
        self._read = read
        self._found: Sequence[VarsLayer] | None = None

    def _layers(self) -> Sequence[VarsLayer]:
        if self._found is None:
            self._found = self._read()
        return self._found

    @overload
    def __getitem__(self, at: int) -> VarsLayer: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[VarsLayer]: ...
    def __getitem__(self, at: int | slice) -> VarsLayer | Sequence[VarsLayer]:
        return self._layers()[at]

    def __len__(self) -> int:
        return len(self._layers())


@dataclass(frozen=True, slots=True)
class InventoryNode:
    """One node of an inventory.

    Args:
        name: as written in the inventory; unique.
        groups: every group it is in, parents included, sorted, without ``all``.
        vars: merged variables, the narrowest scope winning, connection variables included.
        origins: for each variable, the place it came from (``group_vars/gpu.yml``, ``hosts.ini:7``).
        connection: how to reach it.
        groups_by_strength: the same groups, a parent before its children: whose word counts, last.
        layers: what each scope says in the variable ``gpustate``, the strongest last. Unlike other
            variables, of which the narrowest replaces all others, they add up.
    """

    name: str
    groups: tuple[str, ...] = ()
    vars: JsonView = field(default_factory=Json)
    origins: Mapping[str, str] = field(default_factory=dict[str, str])
    connection: Connection = field(default_factory=Connection)
    groups_by_strength: tuple[str, ...] = ()
    layers: Sequence[VarsLayer] = ()

    def text(self, name: str, meaning: str, fix: str) -> str:
        """A variable that is a text; empty where it is not set.

        Raises:
            InventoryError: it is something else; ``meaning`` says what is wanted, ``fix`` what to do.
        """
        value = self.vars.get(name, "")
        if not isinstance(value, str):
            raise InventoryError(
                f"{name} of {self.name} is not {meaning}", place=self.origins.get(name), fix=fix
            )
        return value

    @property
    def labels(self) -> dict[str, str]:
        """The node's labels in Kubernetes, as far as the inventory gives them."""
        return labels_of(self.vars)

    @property
    def proc_root(self) -> str:
        """Where this node's ``/proc`` is read; another place in the lab."""
        return str(self.vars.get("gpustate_proc_root", "/proc"))

    @property
    def state_folder(self) -> str:
        """Where gpustate keeps its own things on this node."""
        return str(self.vars.get("gpustate_state_folder", DEFAULT_STATE_FOLDER))

    @property
    def probe_timeout_s(self) -> float:
        """How long the queries of one exec may take."""
        return float(self.vars.get("gpustate_probe_timeout", 120))

    @property
    def goes_back(self) -> bool:
        """Packages that were kept for a rollback count as offered."""
        return self.vars.get(_GOES_BACK) is True

    def going_back(self) -> InventoryNode:
        """The same node during a rollback."""
        return replace(self, vars={**self.vars, _GOES_BACK: True})

    @property
    def sys_root(self) -> str:
        """Where this node's ``/sys`` is read; another place in the lab."""
        return str(self.vars.get("gpustate_sys_root", "/sys"))


def _none(name: str) -> InventoryNode | None:
    """There are no others."""
    return None


@dataclass(frozen=True, slots=True)
class Inventory:
    """All nodes that were read, in the order of the source, and the place they came from.

    Args:
        source: what the inventory was read from, as the user named it.
        nodes: in the order of the source.
        groups: the nodes of each group, children's included, in the group's own order; ``group[0]``
            of a limit pattern counts by it. Empty for an inventory made by hand.
        notes: what was seen in the source and has no effect, one line each, with its place.
        names: of every node of the source, those beside the limit included. Empty for an inventory
            made by hand.
        clusters: those that it was read from, each as the path of a kubeconfig and a context in it.
        beyond: gives a node of the source by its name, those beside the limit included.
    """

    source: str
    nodes: tuple[InventoryNode, ...] = ()
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    notes: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    clusters: tuple[tuple[str, str], ...] = ()
    beyond: Callable[[str], InventoryNode | None] = field(default=_none, repr=False, compare=False)

    def __iter__(self) -> Iterator[InventoryNode]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)
