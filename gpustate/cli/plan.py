"""``gpustate plan``: what would change, and what it would cost each node."""

from __future__ import annotations

from typing import Any

import click

from gpustate.cli import common
from gpustate.errors import EXIT_PENDING


@click.command()
@click.argument("policy")
@common.inventory_options
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Save the plan, to be applied later.",
)
@click.option(
    "--diff", is_flag=True, help="Show the content of files that change; secrets stay masked."
)
@click.option("--all", "whole", is_flag=True, help="List unchanged states too.")
@click.option("--detailed-exitcode", is_flag=True, help="End with 2 when something would change.")
def plan(
    policy: str,
    output: str,
    out: str | None,
    diff: bool,
    whole: bool,
    detailed_exitcode: bool,
    **options: Any,
) -> None:
    """Say what POLICY would change on the nodes; nothing is written there.

    POLICY is a Python file, an Operator file (ClusterPolicy), or the name of a state.
    """
    result, _ = make_plan(policy, options, output=output, out=out, diff=diff, whole=whole)
    codes = [result.exit_code]
    if detailed_exitcode and result.pending:
        codes.append(EXIT_PENDING)
    common.finish(*codes)


def make_plan(
    source: str,
    options: dict[str, Any],
    *,
    output: str,
    out: str | None = None,
    diff: bool = False,
    whole: bool = False,
    ensure: str | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Plan and print; return the run's result and the document."""
    from gpustate.cli.show import show
    from gpustate.plan import document, render
    from gpustate.run.fleet import Request

    if out is not None:
        common.check_out(out)
    policy = common.load_policy(source)
    if ensure is not None:
        policy = policy.with_ensure(ensure)
    inventory = common.load_inventory(options)
    request = Request(policy, inventory, known=common.known_states(), forks=options["forks"])
    result = common.run(request, verb="plan", quiet=output == "json")
    made = document.plan_document(
        policy, source, result.nodes, run=result.run, created=common.now()
    )
    if out is not None:
        common.write_out(common.as_json(made), out)
    if output == "json":
        common.write_out(common.as_json(made))
    else:
        show(render.nodes_page(made, diff=diff, whole=whole))
        show(render.notes_page(policy.notes))
        click.echo(render.plan_sentence(made))
        if out is not None:
            click.echo(
                f"Saved to {out}; apply it with: gpustate apply {out} -i {options['inventory']}"
            )
        click.echo(result.summary())
    return result, made
