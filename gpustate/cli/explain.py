"""``gpustate explain``: the first broken link between a node and a usable GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from gpustate.cli import common
from gpustate.errors import EXIT_VALIDATION
from gpustate.plan.render import Page

_SIGNS = {"ok": ("=", "green"), "failed": ("x", "red"), "not applicable": ("-", "dim")}


def checks_page(page: Page, checks: list[dict[str, Any]]) -> None:
    """Lines for a chain of checks: all links, the first broken one with its remedy."""
    width = max((len(check["name"]) for check in checks), default=0)
    told = False
    for check in checks:
        sign, style = _SIGNS[check["outcome"]]
        page.add("  ", (sign, style), f" {check['name']:<{width}}  {check['evidence']}")
        if check["outcome"] == "failed" and not told:
            page.add("  ", " " * (width + 4), (f"next: {check['remedy']}", "bold"))
            told = True


@click.command()
@click.argument("node")
@common.inventory_options
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
def explain(node: str, output: str, **options: Any) -> None:
    """Walk the chain from PCI to CUDA on NODE and name the first broken link, with evidence and remedy.

    NODE is a name or pattern of the inventory. Nothing is changed, and no kernel is run on the
    GPUs: what CUDA said last is taken from the proof that the validator keeps on the node.
    """
    from gpustate.cli.show import show
    from gpustate.model import chain
    from gpustate.model.chain_ask import ask_chain
    from gpustate.model.encode import plain
    from gpustate.model.node import Node
    from gpustate.run import fleet

    def question(asked: Node) -> tuple[chain.Seen, str]:
        return ask_chain(asked), asked.facts().first_boot

    options["limit"] = node if not options.get("limit") else f"{options['limit']}:&{node}"
    inventory = common.load_inventory(options)
    rows: list[dict[str, Any]] = []
    codes: list[int] = []
    page = Page()
    for one, answer, error in fleet.question(inventory.nodes, options["forks"], question):
        if error is not None or answer is None:
            codes.append(error.exit_code if error else 1)
            rows.append({"name": one.name, "error": str(error)})
            page.add((one.name, "bold"), "  ", (str(error), "red"))
            continue
        seen, first_boot = answer
        checks = tuple(
            # No kernel was run now: say whose word it is, so that nobody takes it for today's.
            replace(c, evidence=f"{c.evidence} (by the kept proof; prove anew: gpustate validate)")
            if c.name == "cuda" and seen.cuda is not None
            else c
            for c in chain.evaluate(seen)
        )
        broken = chain.first_broken(checks)
        if broken is not None:
            codes.append(EXIT_VALIDATION)
        rows.append(
            {
                "name": one.name,
                "broken": None if broken is None else broken.name,
                "checks": plain(checks),
                **({"first_boot": first_boot} if first_boot else {}),
            }
        )
        page.add(
            (one.name, "bold"),
            "  ",
            ("every link holds", "green") if broken is None else (f"broken: {broken.name}", "red"),
        )
        checks_page(page, plain(checks))
        if first_boot not in ("", "done"):
            page.add("  ", (f"the first boot of its image: {first_boot}", "yellow"))
    if output == "json":
        common.write_out(common.as_json({"format": "gpustate.explain/1", "nodes": rows}))
    else:
        show(page)
    common.finish(*codes)
