"""IMEX's list of nodes, and the state of its daemon on a node.

Sources:
    NVIDIA IMEX guide: nodes_config.cfg has an IP address or a host name per line; output of
    nvidia-imex-ctl; the label nvidia.com/gpu.clique (NVIDIA/k8s-device-plugin, internal/lm) for the domain.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpustate import shell
from gpustate.formats import keyed
from gpustate.formats.numbers import parse_uint

_HOST = re.compile(
    r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)
_DOMAIN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9]{1,10}")

#: Prints ``key=value`` lines; the daemon is queried only if its tool exists.
SCRIPT = shell.load("imex", "gpustate.formats")


@dataclass(frozen=True, slots=True)
class ImexReport:
    """Output of :data:`SCRIPT`."""

    masked: bool = False
    library: str = ""  # version of the driver's libraries
    addresses: tuple[str, ...] = ()
    channels: int = 0
    status: str = ""


def parse(text: str) -> ImexReport:
    """Parse the output of :data:`SCRIPT`."""
    values = keyed.lists(text)
    return ImexReport(
        masked="masked" in values,
        library=keyed.first(values, "library"),
        addresses=tuple(dict.fromkeys(values.get("address", []))),
        channels=parse_uint(keyed.first(values, "channels")) or 0,
        status=keyed.first(values, "status")[:80],
    )


def parse_nodes(text: str) -> tuple[str, ...]:
    """The nodes of a list, in their order."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(line for line in lines if line)


def render(nodes: tuple[str, ...]) -> str:
    """The list, an address per line. No comment, as the daemon's handling of comments is undocumented."""
    return "".join(f"{node}\n" for node in nodes)


def checked_nodes(nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Validate and normalise addresses.

    Raises:
        ValueError: one is not an address or host name, or is defined twice.
    """
    checked: list[str] = []
    for node in nodes:
        address = _address(node) or (node if _is_host(node) else None)
        if address is None:
            raise ValueError(f"{node[:60]!r} is neither an IP address nor a host name")
        if address in checked:
            raise ValueError(f"{address} is listed twice")
        checked.append(address)
    return tuple(checked)


def checked_domains(domains: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    """Validate domains, and convert UUIDs to lower case.

    Raises:
        ValueError: a name is not ``CLUSTER-UUID.CLIQUE``, or a domain has no nodes.
    """
    checked: dict[str, tuple[str, ...]] = {}
    owner: dict[str, str] = {}
    for name, nodes in domains.items():
        key = name.lower()
        if not _DOMAIN.fullmatch(key) or key in checked:
            raise ValueError(f"{name[:80]!r} is not CLUSTER-UUID.CLIQUE, or is defined twice")
        if not nodes:
            raise ValueError(f"domain {key} has no nodes")
        checked[key] = checked_nodes(nodes)
        for node in checked[key]:
            if owner.setdefault(node, key) != key:
                raise ValueError(f"{node} is in two domains, {owner[node]} and {key}")
    return checked


def has_own(nodes: tuple[str, ...], addresses: tuple[str, ...]) -> bool:
    """Whether a node with these addresses and names is, or may be, in the list."""
    own_names = {_address(address) or address.lower() for address in addresses}
    for node in nodes:
        if _address(node) is None:
            # A name may be an alias of this node, which only its resolver knows.
            if node.lower() in own_names or node.partition(".")[0].lower() in own_names:
                return True
        elif _address(node) in own_names:
            return True
    return any(_address(node) is None for node in nodes)


def _is_host(text: str) -> bool:
    # Only digits and dots is a mistyped address.
    named = _HOST.fullmatch(text) is not None and len(text) < 254
    return named and re.fullmatch(r"[0-9.]+", text) is None


def _address(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None
