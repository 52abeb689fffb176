"""``gpustate explain``: diagnose a node: the first failed check, its cause and the fix."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common
from gpustate.errors import EXIT_VALIDATION, GpustateError, InventoryError
from gpustate.plan.render import Page

if TYPE_CHECKING:
    from gpustate.core.inventory import Inventory
    from gpustate.explain.walk import Diagnosis

_SIGNS = {"ok": ("=", "green"), "failed": ("x", "red"), "not applicable": ("-", "dim")}


def checks_page(page: Page, checks: list[dict[str, Any]]) -> None:
    """Add a line per check; the first failed one with its remedy."""
    width = max((len(check["name"]) for check in checks), default=0)
    remedy_shown = False
    for check in checks:
        sign, style = _SIGNS[check["outcome"]]
        page.add("  ", (sign, style), f" {check['name']:<{width}}  {check['evidence']}")
        if check["outcome"] == "failed" and not remedy_shown:
            page.add("  ", " " * (width + 4), (f"next: {check['remedy']}", "bold"))
            remedy_shown = True


def _with_commands(found: Diagnosis, node: str, options: dict[str, Any]) -> Diagnosis:
    """The diagnosis with commands that can be pasted, except for the policy."""

    def fill(text: str) -> str:
        return common.complete_command(text, node, options)

    checks = (
        replace(one, evidence=fill(one.evidence), remedy=fill(one.remedy)) for one in found.checks
    )
    return replace(found, checks=tuple(checks), warnings=tuple(map(fill, found.warnings)))


def diagnosis_data(found: Diagnosis) -> dict[str, Any]:
    """A diagnosis as plain data."""
    from gpustate.core.encode import plain

    cause = found.cause
    return {
        "broken": None if found.broken is None else found.broken.name,
        "cause": found.name or None,
        "repaired_by": (cause.state or None) if cause else None,
        "seen_before": list(cause.threads) if cause else [],
        "checks": plain(found.checks),
        "not_judged": list(found.open),
        "warnings": list(found.warnings),
        "cuda_proven": found.validated,
    }


def verdict(found: Diagnosis) -> tuple[str, str]:
    """The headline; without a validation record the result of CUDA is unknown."""
    if found.broken is not None:
        return f"failed: {found.broken.name} ({found.name})", "red"
    if found.validated:
        return "all checks passed", "green"
    return "no check failed; CUDA is not validated", "yellow"


def diagnosis_page(page: Page, found: Diagnosis, row: dict[str, Any]) -> None:
    """Add the checks up to the first failed one, its cause, and warnings."""
    checks_page(page, row["checks"])
    if found.broken is not None:
        _cause_page(page, found, row)
    for warning in found.warnings:
        page.add("  ", ("!", "yellow"), f" {warning}")


def _cause_page(page: Page, found: Diagnosis, row: dict[str, Any]) -> None:
    indent = " " * (max(len(check["name"]) for check in row["checks"]) + 6)
    if row["repaired_by"]:
        page.add(indent, f"fixed by an apply of the state {row['repaired_by']}")
    if row["seen_before"]:
        page.add(indent, (f"seen before: {', '.join(row['seen_before'])}", "dim"))
    if found.open:
        page.add(
            "  ", ("-", "dim"), f" not checked, because they depend on it: {', '.join(found.open)}"
        )


def _inventory(node: str, options: dict[str, Any]) -> Inventory:
    """The nodes to diagnose; an error in NODE is not reported as one of ``--limit``."""
    if options.get("limit"):
        return common.load_inventory({**options, "limit": f"{options['limit']}:&{node}"})
    try:
        return common.load_inventory({**options, "limit": node})
    except InventoryError as error:
        message = re.sub(r"^the limit(?:'s)? ", "", error.message)
        fix = "name a node or a group" if error.fix == "widen the limit" else error.fix
        raise InventoryError(message, place=error.place, fix=fix) from None


@click.command()
@click.argument("node")
@common.inventory_options
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
def explain(node: str, output: str, **options: Any) -> None:
    """Diagnose NODE: the first failing layer from PCI to the scheduler, its cause and the fix.

    NODE is a name or pattern of the inventory. Read-only, and no kernel runs on the GPUs: the last CUDA
    result is the one that the validator keeps on the node.
    """
    from gpustate.cli.show import show
    from gpustate.core.node import Node
    from gpustate.engine import fleet
    from gpustate.engine.ledger import LedgerQuery
    from gpustate.explain import walk
    from gpustate.explain.causes import View

    def question(on: Node) -> tuple[View, str, str]:
        try:
            unfinished = on.query(LedgerQuery()).unfinished()
        except GpustateError as damaged:
            unfinished = str(damaged)
        return walk.query(on), on.facts().first_boot, unfinished

    inventory = _inventory(node, options)
    rows: list[dict[str, Any]] = []
    codes: list[int] = []
    page = Page()
    for one, answer, error in fleet.question(inventory.nodes, options["forks"], question):
        if error is not None or answer is None:
            codes.append(error.exit_code if error else 1)
            rows.append({"name": one.name, "error": str(error)})
            page.add((one.name, "bold"), "  ", (str(error), "red"))
            continue
        view, first_boot, unfinished = answer
        found = _with_commands(walk.diagnose(view), one.name, options)
        unfinished = common.complete_command(unfinished, one.name, options)
        if found.broken is not None:
            codes.append(EXIT_VALIDATION)
        row = {
            "name": one.name,
            **diagnosis_data(found),
            **({"cut_short": True} if view.cut_short else {}),
        }
        row = {**row, **({"first_boot": first_boot} if first_boot else {})}
        rows.append({**row, **({"unfinished": unfinished} if unfinished else {})})
        page.add((one.name, "bold"), "  ", verdict(found))
        if unfinished:
            page.add("  ", (unfinished, "yellow"))
        diagnosis_page(page, found, row)
        if view.cut_short:
            page.add(
                "  ",
                (
                    "the search for causes timed out: a program hangs, or the node is overloaded",
                    "yellow",
                ),
            )
        if first_boot not in ("", "done"):
            page.add("  ", (f"first boot of its image: {first_boot}", "yellow"))
    if output == "json":
        common.write_out(common.as_json({"format": "gpustate.explain/1", "nodes": rows}))
    else:
        show(page)
    common.finish(*codes)
