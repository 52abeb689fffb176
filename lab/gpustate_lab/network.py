"""The network of a lab: one bridge, a network namespace for each node, no route to the outside.

Namespaces are created with ``ip netns``, not by nspawn, so that a node keeps its address while it is off or
reboots. Nodes have no default route: they reach one another and the controller's bridge address.

Kernel names are global and short (15 characters for an interface), so they contain a hash of the lab's
directory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from gpustate.errors import LabError
from gpustate_lab.command import run

#: Rarely routed private ranges; a lab gets the first /24 that overlaps no route.
POOLS = ("10.217.0.0/16", "172.29.0.0/16", "192.168.0.0/16")
#: Range for pods and services: a cluster's /18 is chosen by the third byte of its lab's /24.
CLUSTERS = IPv4Network("100.64.0.0/10")


@dataclass(frozen=True, slots=True)
class Network:
    """Addresses and kernel names of a lab.

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

    @property
    def cluster(self) -> IPv4Network:
        """Addresses of pods and services of a Kubernetes cluster."""
        third = self.subnet.network_address.packed[2]
        return IPv4Network((int(CLUSTERS.network_address) + (third << 14), 18))

    @property
    def services(self) -> IPv4Network:
        """The last /24 of :attr:`cluster`, after the pods."""
        return IPv4Network((int(self.cluster.broadcast_address) - 255, 24))

    @property
    def api_address(self) -> IPv4Address:
        """The first address of :attr:`services`, which Kubernetes assigns to its API."""
        return self.services.network_address + 1

    def pods(self, number: int) -> IPv4Network:
        """The /26 of the pods of a node."""
        return IPv4Network((int(self.cluster.network_address) + (number << 6), 26))

    def veth(self, number: int) -> str:
        return f"gl{self.tag}n{number}"

    def namespace(self, node: str) -> str:
        return f"gpustate-{self.tag}-{node}"


def tag_of(directory: Path) -> str:
    return hashlib.sha256(str(directory).encode()).hexdigest()[:8]


def choose_subnet(taken: Iterable[IPv4Network], *, cluster: bool = False) -> IPv4Network:
    """Return the first /24 that overlaps nothing in ``taken``. Pure.

    Args:
        cluster: the addresses of pods and services must be free too.
    """
    taken = list(taken)
    for pool in POOLS:
        for subnet in IPv4Network(pool).subnets(new_prefix=24):
            ranges = [subnet, Network("", subnet).cluster] if cluster else [subnet]
            if not any(own.overlaps(other) for own in ranges for other in taken):
                return subnet
    raise LabError(
        f"no free /24 in {', '.join(POOLS)}: all overlap routes of this machine",
        fix="check: ip route",
    )


def networks_in_use() -> list[IPv4Network]:
    """Return the networks of all addresses and routes of this machine, without the default route."""
    routes = json.loads(run(["ip", "-json", "-4", "route", "show", "table", "all"]).stdout or "[]")
    return list(parse_routes(routes))


def parse_routes(routes: Iterable[dict[str, str]]) -> Iterator[IPv4Network]:
    """Yield the destinations of ``ip -json route``, which include local addresses."""
    for route in routes:
        destination = route.get("dst", "default")
        if destination != "default":
            yield IPv4Network(destination, strict=False)


def link_exists(name: str) -> bool:
    return Path("/sys/class/net", name).exists()


def namespace_path(name: str) -> Path:
    return Path("/run/netns", name)


def make_bridge(network: Network, *, cluster: bool = False) -> None:
    """Create the bridge with the controller's address, unless it exists.

    Args:
        cluster: add the API server's address and a route to pods.
    """
    if not link_exists(network.bridge):
        run(["ip", "link", "add", "name", network.bridge, "type", "bridge"])
        run(["ip", "address", "add", f"{network.gateway}/24", "dev", network.bridge])
        run(["ip", "link", "set", network.bridge, "up"])
    if cluster:
        run(["ip", "address", "replace", f"{network.api_address}/32", "dev", network.bridge])
        route = ["ip", "route", "replace", str(network.cluster), "dev", network.bridge]
        run([*route, "src", str(network.gateway)])


def attach(network: Network, node: str, number: int, *, cluster: bool = False) -> None:
    """Create the node's namespace and its veth pair to the bridge, unless both exist.

    Args:
        cluster: route all pods of the cluster to the bridge. Each node answers for its own pods there
            (proxy ARP), so no node needs routes to the pods of others.
    """
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
    if cluster:
        run(["ip", "-n", name, "route", "add", str(network.cluster), "dev", "eth0"])
        settings = ("ip_forward=1", "conf.eth0.proxy_arp=1", "neigh.eth0.proxy_delay=0")
        for setting in settings:
            key, value = setting.split("=")
            path = f"/proc/sys/net/ipv4/{key.replace('.', '/')}"
            run(["ip", "netns", "exec", name, "sh", "-c", f"echo {value} > {path}"])


def detach(network: Network, node: str, number: int) -> list[str]:
    """Remove namespace and veth pair; return the names of those that existed."""
    removed = []
    # The veth pair first: after deleting only the namespace it stays until the last process in it ends.
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
