"""``gpustate drift``: detect drift from a policy."""

from __future__ import annotations

from typing import Any

import click

from gpustate.cli import common, objects, reports, watching
from gpustate.errors import EXIT_PENDING


@click.command(cls=common.Verb)
@common.policy_argument
@common.inventory_options
@common.policy_options
@common.lock_options
@common.kubeconfig_option(
    "Cluster of the nodes, to read labels of Nodes and, with --cluster-objects, its objects"
)
@objects.object_options
@common.options(
    click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True),
    reports.diff_option,
    click.option("--all", "whole", is_flag=True, help="Include states without drift."),
    heading="Output",
)
@watching.watch_options
@click.option("--exit-zero-on-changes", is_flag=True, help="Exit 0 even if there is drift.")
def drift(
    policy: str, output: str, diff: bool, whole: bool, exit_zero_on_changes: bool, **options: Any
) -> None:
    """Detect drift from POLICY: exit 0 if there is none, 2 if there is any.

    Exit 5 if a refusal prevents comparing a node, or a part of it, with POLICY.
    """
    from gpustate.cli.plan import make_plan

    result, document = make_plan(
        policy, options, output=output, diff=diff, whole=whole, verb="drift"
    )
    drifted = result.drifted or objects.has_drifted(document)
    pending = drifted and not exit_zero_on_changes
    common.finish(result.exit_code, *[EXIT_PENDING] * pending)
