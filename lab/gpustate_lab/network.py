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
from gpustate_lab.command import run

#: Private ranges that few people route; the first /24 that clashes with nothing is taken.
POOLS = ("10.217.0.0/16", "172.29.0.0/16", "192.168.0.0/16")
#: Pods and services of a lab's cluster: a /18 of it for each third byte of a lab's /24.
CLUSTERS = IPv4Network("100.64.0.0/10")


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

    @property
    def cluster(self) -> IPv4Network:
        """Addresses of pods and services, where the lab has a Kubernetes cluster."""
        third = self.subnet.network_address.packed[2]
        return IPv4Network((int(CLUSTERS.network_address) + (third << 14), 18))

    @property
    def services(self) -> IPv4Network:
        """The last /24 of :attr:`cluster`; the nodes' are before it."""
        return IPv4Network((int(self.cluster.broadcast_address) - 255, 24))

    @property
    def api_address(self) -> IPv4Address:
        """The first address of :attr:`services`, which Kubernetes gives to its own API."""
        return self.services.network_address + 1

    def pods(self, number: int) -> IPv4Network:
        """The /26 of one node's pods."""
        return IPv4Network((int(self.cluster.network_address) + (number << 6), 26))

    def veth(self, number: int) -> str:
        return f"gl{self.tag}n{number}"

    def namespace(self, node: str) -> str:
        return f"gpustate-{self.tag}-{node}"


def tag_of(directory: Path) -> str:
    return hashlib.sha256(str(directory).encode()).hexdigest()[:8]


def choose_subnet(taken: Iterable[IPv4Network], *, cluster: bool = False) -> IPv4Network:
    """The first /24 of the pools that overlaps nothing in ``taken``. Pure.

    Args:
        cluster: the addresses of its pods and services must be free too.
    """
    taken = list(taken)
    for pool in POOLS:
        for subnet in IPv4Network(pool).subnets(new_prefix=24):
            wanted = [subnet, Network("", subnet).cluster] if cluster else [subnet]
            if not any(own.overlaps(other) for own in wanted for other in taken):
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


def make_bridge(network: Network, *, cluster: bool = False) -> None:
    """Make the bridge with the controller's address, unless it is there.

    Args:
        cluster: it has the API server's address too, and leads to pods.
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
    """Make the node's namespace and its cable to the bridge, unless both are there.

    Args:
        cluster: the node has pods. All pods of the cluster are looked for on the bridge, and each node
            answers there for its own (proxy ARP): no node needs to know where another one's pods are.
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
