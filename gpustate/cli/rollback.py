"""``gpustate rollback``: take nodes back to before a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common, rules, watching
from gpustate.cli.apply import apply_options, carry_out, confirm
from gpustate.cli.context import context
from gpustate.cli.schedulers import scheduler_options, schedulers_of
from gpustate.errors import EXIT_UNREACHABLE, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpustate.core.inventory import Inventory
    from gpustate.engine.before import RunBefore


@click.command()
@click.argument("run", required=False, default="")
@common.inventory_options
@apply_options
@click.option("--list", "listed", is_flag=True, help="List the runs that changed nodes and exit.")
@click.option("--dry-run", is_flag=True, help="Only show pending changes.")
@scheduler_options
@watching.watch_options
def rollback(run: str, listed: bool, **options: Any) -> None:
    """Roll nodes back to their state before RUN, later runs included; without RUN, before each node's last change.

    Restores packages, module parameters, files, services and the MIG layout. The plan is shown first, with its
    disruption. A second rollback changes nothing; name the rollback's own run to undo it. A default that is the
    policy's is that of the run's policy.
    """
    if listed:
        _show(common.load_inventory(options), options)
        return
    if not (options["dry_run"] or options["yes"] or sys.stdin.isatty()):
        raise UsageError("stdin is not a terminal", fix="review with --dry-run, then pass --yes")
    roll_back(run, options)


def roll_back(run: str, options: dict[str, Any]) -> None:
    """Plan, confirm and carry out a rollback."""
    from gpustate import api
    from gpustate.cli import reports
    from gpustate.engine import fleet
    from gpustate.reporting.runs import run_of

    rules.read()
    reports.check(options.get("reports") or (), options["serial"])
    inventory = common.load_inventory(options)
    quiet = options["output"] == "json"
    with common.watched(inventory, quiet=quiet) as (listen, stop):
        planned = api.plan_rollback(
            inventory,
            run,
            forks=options["forks"],
            all_or_nothing=bool(options.get("all_or_nothing")),
            serial=common.serial(options["serial"]),
            schedulers=schedulers_of(options),
            events=listen,
            stop=stop,
            context=context("rollback", run, options),
        )
    pace = planned.document["policy"].get("pace", ())
    if options.get("dry_run"):
        reports.show_plan(
            planned.document,
            options["output"],
            diff=options["diff"],
            whole=False,
            reports=options.get("reports") or (),
            verb="rollback",
        )
        if not quiet:
            click.echo(planned.summary)
        common.finish(planned.exit_code)
        return
    if not options["yes"]:
        reports.show_plan(
            planned.document, "text", diff=options["diff"], whole=False, verb="rollback"
        )
        if not planned.document["fleet"]["nodes"]["change"]:
            click.echo(planned.summary)
            common.finish(planned.exit_code)
            return
        confirm("rollback", planned.document, options, pace)
    serial = common.serial(options["serial"])
    about = run_of(
        fleet.new_run_id(),
        "rollback",
        run,
        context("rollback", run, options),
        reason=options.get("reason") or "",
        nodes=len(inventory.nodes),
        waves=watching.wave_sizes(serial, pace, inventory, options),
        plan=str(planned.document["id"]),
    )
    carry_out(
        about,
        "rollback",
        run,
        options,
        inventory,
        lambda **shared: api.rollback(planned, **shared),
    )


def _show(inventory: Inventory, options: Mapping[str, Any]) -> None:
    """Print the runs that changed nodes, newest first, with their nodes and the states they changed."""
    from gpustate.api import rollbacks
    from gpustate.formats.words import printable
    from gpustate.plan.render import names_line

    runs, errors = rollbacks.runs_of(inventory, options["forks"])
    nodes: dict[str, list[str]] = {}
    found: dict[str, RunBefore] = {}
    changed: dict[str, dict[str, None]] = {}
    for name, records in runs.items():
        for one in records:
            nodes.setdefault(one.run, []).append(name)
            found[one.run] = one
            changed.setdefault(one.run, {}).update(dict.fromkeys(one.changes))
    for run, one in sorted(found.items(), reverse=True):
        states = ", ".join(changed[run]) or "nothing"
        what = f"rollback of {one.undoes}" if one.undoes else f"changed {states}"
        why = f"  reason: {one.reason}" if one.reason else ""
        click.echo(printable(f"{run}  {names_line(nodes[run])}  {one.person}  {what}{why}"))
    for name, error in sorted(errors.items()):
        click.echo(printable(f"gpustate: {name}: {error}"), err=True)
    if runs and not nodes:
        click.echo("no run is recorded on these nodes")
    common.finish(*(EXIT_UNREACHABLE for _ in errors))
