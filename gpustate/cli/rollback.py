"""``gpustate rollback``: take nodes back to before a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common
from gpustate.cli.apply import apply_options, apply_policy
from gpustate.errors import EXIT_UNREACHABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpustate.core.inventory import Inventory
    from gpustate.engine.before import RunBefore


@click.command(cls=common.Verb)
@click.argument("run", required=False, default="")
@common.inventory_options
@click.option("--list", "listed", is_flag=True, help="List the runs that changed nodes and exit.")
@click.option("--dry-run", is_flag=True, help="Only show the plan; with --report, its report.")
@common.out_option("Only save the plan: `gpustate apply FILE` carries it out.")
@common.set_option
@apply_options
def rollback(run: str, listed: bool, **options: Any) -> None:
    """Roll nodes back to their state before RUN, later runs included; without RUN, before each node's last change.

    Restores packages, module parameters, files, services and the MIG layout. The plan is shown first, with its
    disruption. A second rollback changes nothing; name the rollback's own run to undo it. A default that is the
    policy's is that of the run's policy.
    """
    if listed:
        _show(common.load_inventory(options), options)
    else:
        common.check_sections_alone(options, "a rollback has no policy of its own")
        apply_policy(run, options, verb="rollback")


def _show(inventory: Inventory, options: Mapping[str, Any]) -> None:
    """Print the runs that changed nodes, newest first, with their nodes and the states they changed."""
    from gpustate.api import rollbacks
    from gpustate.formats.words import printable
    from gpustate.plan.render import names_line

    runs, errors = rollbacks.runs_of(inventory, options["forks"])
    nodes: dict[str, list[str]] = {}
    by_run: dict[str, RunBefore] = {}
    changed: dict[str, dict[str, None]] = {}
    for name, records in runs.items():
        for record in records:
            nodes.setdefault(record.run, []).append(name)
            by_run[record.run] = record
            changed.setdefault(record.run, {}).update(dict.fromkeys(record.changed))
    for run, record in sorted(by_run.items(), reverse=True):
        states = ", ".join(changed[run]) or "nothing"
        title = f"rollback of {record.undoes}" if record.undoes else f"changed {states}"
        why = f"  reason: {record.reason}" if record.reason else ""
        click.echo(printable(f"{run}  {names_line(nodes[run])}  {record.person}  {title}{why}"))
    for name, error in sorted(errors.items()):
        click.echo(printable(f"gpustate: {name}: {error}"), err=True)
    if runs and not nodes:
        click.echo("no run is recorded on these nodes")
    common.finish(*(EXIT_UNREACHABLE for _ in errors))
