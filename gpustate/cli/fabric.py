"""``gpustate fabric``: what joins the GPUs of nodes, what they need for it, and who is in which rack."""

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
@click.option("--network", metavar="CIDR", help="With -o domains: take the addresses in this one.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "domains"]),
    default="text",
    show_default=True,
    help="domains: the parameters of the state imex, as YAML.",
)
def fabric(output: str, network: str | None, **options: Any) -> None:
    """Show what joins the GPUs of each node, what it needs for that, and whether the fabric is complete.

    Nothing is written. With -o domains: the addresses of the nodes of each NVLink domain, for the state
    imex; ask all nodes of a rack, for one that does not answer is in no list. Exit 3: a node needs a
    fabric that is not complete, or a service that does not run.
    """
    inside = _network(network, output)
    inventory = common.load_inventory(options)
    rows, codes = common.query_nodes(inventory, options["forks"], _look)
    nodes = {node.name: node for node in inventory.nodes}
    for row in rows:
        if "error" not in row:
            row["address"] = _address(nodes[row["name"]], row, inside)
            # The lists are what a service may be waiting for.
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
        raise UsageError("--network chooses addresses for -o domains")
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise UsageError(f"--network {text!r} is not a network, write 10.0.0.0/16") from None


def _look(node: Node) -> dict[str, Any]:
    from gpustate.formats import fabric, imex
    from gpustate.probes import fabric as asking

    sight = asking.look(node)
    facts = node.facts()
    said = imex.parse(node.shell(imex.SCRIPT).stdout)
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
        "addresses": [one for one in said.addresses if _ip(one)],
    }


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _address(node: InventoryNode, data: dict[str, Any], inside: Network | None) -> str | None:
    """The one to list: in the network asked for, else the one it is reached by, else its first."""
    own: list[str] = data["addresses"]
    if inside is not None:
        return next((one for one in own if ipaddress.ip_address(one) in inside), None)
    return node.connection.host if node.connection.host in own else next(iter(own), None)


def _domains(rows: Iterable[dict[str, Any]], network: str | None) -> list[int]:
    codes: list[int] = []
    found: dict[str, list[str]] = {}
    for row in rows:
        if "error" in row:
            click.echo(f"{row['name']}: {row['error']}", err=True)
        elif not row["domain"]:
            if "nvidia-imex" in row["needs"]:
                click.echo(f"{row['name']}: fabric {row['fabric']}, so in no domain yet", err=True)
        elif row["address"] is None:
            where = f" in {network}" if network else ""
            click.echo(f"{row['name']}: no address{where}", err=True)
            codes.append(EXIT_ERROR)
        else:
            found.setdefault(row["domain"], []).append(row["address"])
    lines = ["imex:", "  domains:" if found else "  domains: {}"]
    for domain, addresses in sorted(found.items()):
        # Every node must get the same list in the same order, whoever made it and when.
        addresses.sort(key=lambda one: (_ip(one).version, int(_ip(one))))  # type: ignore[union-attr, arg-type]
        lines.append(f"    {domain}: [{', '.join(addresses)}]")
    common.write_out("\n".join(lines) + "\n")
    return codes


def _unfinished(row: dict[str, Any]) -> bool:
    """A node needs a fabric that is not complete."""
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
        state = row["fabric"] or "NVML says nothing of a fabric"
        page.add(
            (row["name"], "bold"),
            f"  {row['topology']}  needs ",
            (needs or "nothing", "red" if _stopped(row) else ""),
        )
        page.add("  fabric: ", (state, "red" if _unfinished(row) else ""))
        if row["domain"]:
            page.add(f"  NVLink domain {row['domain']}")
    show(page)
