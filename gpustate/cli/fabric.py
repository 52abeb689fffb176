"""``gpustate node fabric``: show NVLink/NVSwitch topology, the services it needs, and NVLink domains."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common
from gpustate.errors import EXIT_ERROR, EXIT_VALIDATION, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpustate.core.inventory import InventoryNode
    from gpustate.core.node import Node

    Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@click.command()
@common.inventory_options
@click.option("--network", metavar="CIDR", help="With -o domains: use addresses in this network.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "domains"]),
    default="text",
    show_default=True,
    help="domains: the parameters of the state imex, as YAML.",
)
def fabric(output: str, network: str | None, **options: Any) -> None:
    """Show each node's NVLink/NVSwitch topology, the services it needs, and whether the fabric is complete.

    Read-only. -o domains prints the addresses of the nodes of each NVLink domain, for the state imex;
    query all nodes of a rack, because unreachable nodes are missing from the list. Exit 3: a fabric is
    incomplete, or a service that it needs is not running.
    """
    inside = _network(network, output)
    inventory = common.load_inventory(options)
    rows, codes = common.query_nodes(inventory, options["forks"], _topology)
    nodes = {node.name: node for node in inventory.nodes}
    for row in rows:
        if "error" not in row:
            row["address"] = _address(nodes[row["name"]], row, inside)
            # A service may be waiting for these lists, so they are printed anyway.
            if _unfinished(row) or (output != "domains" and _stopped(row)):
                codes.append(EXIT_VALIDATION)
    if output == "json":
        common.write_out(common.as_json({"format": "gpustate.fabric/1", "nodes": rows}))
    elif output == "domains":
        codes += _domains(rows, network)
    else:
        _page(rows)
    common.finish(*codes)


def _network(text: str | None, output: str) -> Network | None:
    if text is None:
        return None
    if output != "domains":
        raise UsageError("--network needs -o domains", fix="add -o domains")
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise UsageError(
            f"--network {text!r} is not a network", fix="write it like 10.0.0.0/16"
        ) from None


def _topology(node: Node) -> dict[str, Any]:
    from gpustate.formats import fabric, imex
    from gpustate.probes import fabric as fabric_probe

    sight = fabric_probe.observe(node)
    facts = node.facts()
    topology = imex.parse(node.shell(imex.SCRIPT).stdout)
    # The subnet manager has no unit: Fabric Manager's starts it.
    daemons = (fabric.FABRIC_MANAGER, fabric.IMEX)
    units = node.units(*(f"{name}.service" for name in daemons))
    return {
        "gpus": len(facts.gpus),
        "nvswitches": sight.nvswitches,
        "bridges": sight.bridges,
        "topology": sight.topology.value,
        "needs": sorted(sight.topology.packages),
        "services": {
            name: unit.active_state if unit and unit.exists else "not installed"
            for name in daemons
            if name in sight.topology.packages
            for unit in (units.get(f"{name}.service"),)
        },
        "fabric": fabric.summary(sight.fabrics),
        "domain": fabric.domain(sight.fabrics),
        "addresses": [address for address in topology.addresses if _ip(address)],
    }


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _address(node: InventoryNode, data: dict[str, Any], inside: Network | None) -> str | None:
    """The address to list: one in ``--network``, else that of its connection, else its first."""
    ips: list[str] = data["addresses"]
    if inside is not None:
        return next((ip for ip in ips if ipaddress.ip_address(ip) in inside), None)
    return node.connection.host if node.connection.host in ips else next(iter(ips), None)


def _domains(rows: Iterable[dict[str, Any]], network: str | None) -> list[int]:
    codes: list[int] = []
    domains: dict[str, list[str]] = {}
    for row in rows:
        if "error" in row:
            click.echo(f"{row['name']}: {row['error']}", err=True)
        elif not row["domain"]:
            if "nvidia-imex" in row["needs"]:
                click.echo(f"{row['name']}: fabric {row['fabric']}, in no domain yet", err=True)
        elif row["address"] is None:
            where = f" in {network}" if network else ""
            click.echo(f"{row['name']}: no address{where}", err=True)
            codes.append(EXIT_ERROR)
        else:
            domains.setdefault(row["domain"], []).append(row["address"])
    lines = ["imex:", "  domains:" if domains else "  domains: {}"]
    for domain, addresses in sorted(domains.items()):
        # Every node must get the same list in the same order.
        addresses.sort(key=lambda one: (_ip(one).version, int(_ip(one))))  # type: ignore[union-attr, arg-type]
        lines.append(f"    {domain}: [{', '.join(addresses)}]")
    common.write_out("\n".join(lines) + "\n")
    return codes


def _unfinished(row: dict[str, Any]) -> bool:
    """The node needs a fabric, and it is not complete."""
    return bool(row["needs"]) and row["fabric"] not in ("complete", "")


def _stopped(row: dict[str, Any]) -> bool:
    """A service that the node needs does not run."""
    return any(state != "active" for state in row["services"].values())


def _page(rows: list[dict[str, Any]]) -> None:
    from gpustate.cli.show import show
    from gpustate.plan.render import Page

    page = Page()
    for row in rows:
        if "error" in row:
            page.add((row["name"], "bold"), "  ", (row["error"], "red"))
            continue
        services: dict[str, str] = row["services"]
        needs = ", ".join(
            f"{name} ({services[name]})" if name in services else name for name in row["needs"]
        )
        state = row["fabric"] or "not reported by NVML"
        page.add(
            (row["name"], "bold"),
            f"  {row['topology']}  needs ",
            (needs or "nothing", "red" if _stopped(row) else ""),
        )
        page.add("  fabric: ", (state, "red" if _unfinished(row) else ""))
        if row["domain"]:
            page.add(f"  NVLink domain {row['domain']}")
    show(page)
