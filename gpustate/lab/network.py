"""One bridge a lab, one network namespace a node, and nowhere else to go.

The namespace is made with ``ip netns``, not by nspawn, so it stays while the node is off or
rebooting and the node keeps its address. Nodes have no default route: they reach the controller's
bridge address and one another.

Names in the kernel are global and short (15 characters for an interface), so they carry a hash of
the lab's directory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from gpustate.errors import LabError
from gpustate.lab.command import run

#: Private ranges that few people route; the first /24 that clashes with nothing is taken.
POOLS = ("10.217.0.0/16", "172.29.0.0/16", "192.168.0.0/16")


@dataclass(frozen=True, slots=True)
class Network:
    """Addresses and kernel names of one lab.

    Args:
        tag: eight hexadecimal digits, from the lab's directory.
        subnet: a /24; its first address is the controller's.
    """

    tag: str
    subnet: IPv4Network

    @property
    def bridge(self) -> str:
        return f"gl{self.tag}"

    @property
    def gateway(self) -> IPv4Address:
        return self.subnet.network_address + 1

    def address(self, number: int) -> IPv4Address:
        return self.subnet.network_address + 10 + number

    def veth(self, number: int) -> str:
        return f"gl{self.tag}n{number}"

    def namespace(self, node: str) -> str:
        return f"gpustate-{self.tag}-{node}"


def tag_of(directory: Path) -> str:
    return hashlib.sha256(str(directory).encode()).hexdigest()[:8]


def choose_subnet(taken: Iterable[IPv4Network]) -> IPv4Network:
    """The first /24 of the pools that overlaps nothing in ``taken``. Pure."""
    taken = list(taken)
    for pool in POOLS:
        for subnet in IPv4Network(pool).subnets(new_prefix=24):
            if not any(subnet.overlaps(other) for other in taken):
                return subnet
    raise LabError(
        f"no free /24 in {', '.join(POOLS)}: every one clashes with a route", fix="ip route"
    )


def networks_in_use() -> list[IPv4Network]:
    """What this machine has addresses in or routes to, the default route left out."""
    routes = json.loads(run(["ip", "-json", "-4", "route", "show", "table", "all"]).stdout or "[]")
    return list(parse_routes(routes))


def parse_routes(routes: Iterable[dict[str, str]]) -> Iterator[IPv4Network]:
    """Destinations of ``ip -json route``, which local addresses are among."""
    for route in routes:
        destination = route.get("dst", "default")
        if destination != "default":
            yield IPv4Network(destination, strict=False)


def link_exists(name: str) -> bool:
    return Path("/sys/class/net", name).exists()


def namespace_path(name: str) -> Path:
    return Path("/run/netns", name)


def make_bridge(network: Network) -> None:
    """Make the bridge with the controller's address, unless it is there."""
    if link_exists(network.bridge):
        return
    run(["ip", "link", "add", "name", network.bridge, "type", "bridge"])
    run(["ip", "address", "add", f"{network.gateway}/24", "dev", network.bridge])
    run(["ip", "link", "set", network.bridge, "up"])


def attach(network: Network, node: str, number: int) -> None:
    """Make the node's namespace and its cable to the bridge, unless both are there."""
    name, veth = network.namespace(node), network.veth(number)
    if namespace_path(name).exists() and link_exists(veth):
        return
    detach(network, node, number)
    run(["ip", "netns", "add", name])
    run(["ip", "link", "add", "name", veth, "type", "veth", "peer", "name", "eth0", "netns", name])
    run(["ip", "link", "set", veth, "master", network.bridge, "up"])
    run(["ip", "-n", name, "address", "add", f"{network.address(number)}/24", "dev", "eth0"])
    run(["ip", "-n", name, "link", "set", "lo", "up"])
    run(["ip", "-n", name, "link", "set", "eth0", "up"])


def detach(network: Network, node: str, number: int) -> list[str]:
    """Remove namespace and cable; return the names of what was there."""
    removed = []
    # The cable first: deleting only the namespace leaves it until the last process in there is gone.
    if link_exists(network.veth(number)):
        run(["ip", "link", "delete", network.veth(number)])
        removed.append(network.veth(number))
    if namespace_path(network.namespace(node)).exists():
        run(["ip", "netns", "delete", network.namespace(node)])
        removed.append(network.namespace(node))
    return removed


def remove_bridge(network: Network) -> bool:
    if not link_exists(network.bridge):
        return False
    run(["ip", "link", "delete", network.bridge])
    return True
