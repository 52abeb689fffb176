"""``gpustate drift``: are nodes still as the policy says."""

from __future__ import annotations

from typing import Any

import click

from gpustate.cli import common
from gpustate.errors import EXIT_PENDING


@click.command()
@click.argument("policy")
@common.inventory_options
@common.policy_options
@common.lock_options
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
@click.option(
    "--diff", is_flag=True, help="Show the content of files that differ; secrets stay masked."
)
@click.option("--all", "whole", is_flag=True, help="List states without drift too.")
@click.option("--exit-zero-on-changes", is_flag=True, help="End with 0 although something differs.")
def drift(
    policy: str, output: str, diff: bool, whole: bool, exit_zero_on_changes: bool, **options: Any
) -> None:
    """Tell whether nodes are as POLICY says: exit 0 when they are, 2 when something differs.

    Exit 5 where a refusal keeps from comparing a node, or a part of it, with POLICY.
    """
    from gpustate.cli.plan import make_plan

    result, _ = make_plan(policy, options, output=output, diff=diff, whole=whole, verb="drift")
    codes = [result.exit_code]
    if result.drifted and not exit_zero_on_changes:
        codes.append(EXIT_PENDING)
    common.finish(*codes)
