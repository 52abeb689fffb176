"""``gpustate resume``: go on with a run that was interrupted."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from gpustate.errors import UsageError


@click.command()
@click.argument("run", required=False)
@click.option(
    "-i",
    "--inventory",
    metavar="SOURCE",
    envvar="GPUSTATE_INVENTORY",
    help="Only runs of this inventory.",
)
@click.option("--list", "listed", is_flag=True, help="List everyone's unfinished runs and exit.")
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
def resume(run: str | None, inventory: str | None, listed: bool, yes: bool) -> None:
    """Resume RUN with the same policy, nodes and options; without RUN, your own last interrupted run.

    Node programs that are still running are followed to their end; then the nodes are probed again and
    the remaining changes are made. A run of another person is resumed only if it is named.
    """
    from gpustate.engine import fleet, records

    waiting = records.unfinished(_at_work)
    if listed:
        _show(waiting)
        return
    me = fleet.person()
    if run is None:
        record = _chosen(waiting, me, inventory, yes=yes)
    else:
        record = records.load(run)
        _check_inventory(record, inventory)
        if record.get("person") != me:
            _ask(f"Run {run} is {_owner(record)}'s, not yours ({me}). Go on with it?", run, yes=yes)
    _go_on(record)


def _at_work(pid: int, since: str) -> bool:
    """The controller of a run is still there."""
    from gpustate.engine import fleet

    return bool(since) and pid > 0 and pid != os.getpid() and fleet.born(pid) == since


def _chosen(
    waiting: list[dict[str, Any]], me: str, inventory: str | None, *, yes: bool
) -> dict[str, Any]:
    """The run somebody means who names none.

    Raises:
        UsageError: there is none, or nobody is there to say which.
    """
    mine = [record for record in waiting if record.get("person") == me]
    if inventory:
        mine = [record for record in mine if _is_of(record, inventory)]
    if not mine:
        what = f" of {me}" + (f" with the inventory {inventory}" if inventory else "")
        if not waiting:
            raise UsageError("no run is waiting to be resumed")
        raise UsageError(
            f"no run{what} is waiting to be resumed, {len(waiting)} of others or of other inventories",
            fix="gpustate resume --list shows them; name the one you mean",
        )
    if len(mine) == 1 and yes:
        return mine[0]
    _show(mine)
    names = [str(record["run"]) for record in mine]
    if yes or not sys.stdin.isatty():
        why = "several runs wait" if len(mine) > 1 else "stdin is not a terminal"
        raise UsageError(why, fix=f"name the one you mean: gpustate resume {names[-1]}")
    if len(mine) == 1:
        click.confirm(f"Go on with {names[0]}?", abort=True, err=True)
        return mine[0]
    picked = click.prompt("Go on with", type=click.Choice(names), err=True)
    return mine[names.index(str(picked))]


def _ask(question: str, run: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            question.partition(". ")[0], fix=f"gpustate resume {run} --yes takes it over"
        )
    click.confirm(question, abort=True, err=True)


def _is_of(record: dict[str, Any], inventory: str) -> bool:
    from gpustate.engine import records

    return bool(record["options"].get("inventory") == records.inventory_of(inventory))


def _check_inventory(record: dict[str, Any], inventory: str | None) -> None:
    source = click.get_current_context().get_parameter_source("inventory")
    given = source is not None and source.name == "COMMANDLINE"
    if inventory and given and not _is_of(record, inventory):
        raise UsageError(
            f"run {record['run']} is of the inventory {record['options'].get('inventory')}, not {inventory}",
            fix="leave -i away: a run goes on with its own inventory",
        )


def _owner(record: dict[str, Any]) -> str:
    return str(record.get("person") or "somebody unknown")


def _show(found: list[dict[str, Any]]) -> None:
    """One line a run: name, person, what it does, with which inventory, since when, why."""
    from gpustate.formats.words import printable

    if not found:
        click.echo("no run is waiting to be resumed")
    for record in found:
        parts = [
            str(record["run"]),
            _owner(record),
            f"{record['verb']} {record['source']}",
            f"-i {record['options'].get('inventory')}",
        ]
        if record["options"].get("limit"):
            parts.append(f"-l {record['options']['limit']}")
        if record.get("reason"):
            parts.append(f"reason: {record['reason']}")
        outcome = record.get("outcome")
        if isinstance(outcome, dict) and outcome.get("summary"):
            parts.append(str(outcome["summary"]))
        click.echo(printable("  ".join(parts)))


def _go_on(record: dict[str, Any]) -> None:
    from gpustate import policies
    from gpustate.cli.apply import LEVEL, apply_policy, carry_plan_on
    from gpustate.engine import records
    from gpustate.formats.masking import missing_secrets

    options = dict(record["options"])
    hidden = missing_secrets(options)
    if hidden:
        raise UsageError(
            f"the run was given a secret (--{str(hidden[0][0]).replace('_', '-')}), which no record holds",
            fix="run the same command again: it takes up where the nodes are",
        )
    options["max_disruption"] = LEVEL.convert(options.get("max_disruption", "reboot"), None, None)
    options["yes"] = True
    asked = options.get("ask_become_pass") or options.get("ask_vault_pass")
    if asked and not os.isatty(0):
        raise UsageError(
            "the run needs a password that is asked for", fix="resume it on a terminal"
        )
    os.chdir(record["directory"])
    click.echo(f"going on with {record['verb']} {record['source']} (run {record['run']})", err=True)
    # From here on it is the new run that can be resumed.
    records.end(records.path_of(str(record["run"])), interrupted=False)
    source = str(record["source"])
    if policies.kind(source) == "plan":
        carry_plan_on(source, options)
        return
    ensure = "absent" if record["verb"] == "remove" else None
    apply_policy(source, options, verb=str(record["verb"]), ensure=ensure)
