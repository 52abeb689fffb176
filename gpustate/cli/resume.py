"""``gpustate rollout resume``: resume an interrupted run."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common, reports, watching
from gpustate.cli.pause import not_running, unanswered, with_running
from gpustate.errors import ClusterError, InventoryError, RefusedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpustate.engine.records import RunRecord
    from gpustate.rollout.running import Running


_DECLINED = "nothing was resumed"


@click.command()
@click.argument("run", required=False)
@click.option(
    "-i",
    "--inventory",
    metavar="SOURCE",
    envvar="GPUSTATE_INVENTORY",
    help="Only runs of this inventory; a paused run is also found by its clusters.",
)
@common.kubeconfig_option("Find a paused run in this cluster")
@click.option("--list", "listed", is_flag=True, help="List everyone's unfinished runs and exit.")
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
@reports.report_option
@watching.watch_options
def resume(
    run: str | None,
    inventory: str | None,
    kubeconfig: str | None,
    listed: bool,
    yes: bool,
    **overrides: Any,
) -> None:
    """Lift the pause of RUN; or resume an interrupted RUN with the same nodes and options, and the policy as it is now.

    Without RUN, the one that is paused; if none is, your own interrupted run. If there are several, you are asked.
    A paused run of this machine whose process is dead is resumed.

    Node programs that are still running are followed to their end; then the nodes are probed again and
    the remaining changes are made. A run of another person is resumed only if it is named.
    """
    from gpustate.engine import fleet, records

    waiting = records.unfinished(fleet.controller_runs)
    if listed:
        _show(waiting)
        return
    me = fleet.person()
    dead: list[RunRecord] = []

    def lift(running: Running) -> None:
        records = [record for record in waiting if record["run"] == running.run]
        if records:
            dead.append(_choose(records, me, None, yes=yes))
            _lift_dead(running)
        else:
            _lift(running)

    if _lifted(run, inventory, kubeconfig, waiting, lift) and not dead:
        return
    if dead:
        record = dead[0]
    elif run is None:
        record = _choose(waiting, me, inventory, yes=yes)
    else:
        record = records.load(run)
        _check_inventory(record, inventory)
        if record.get("person") != me:
            _confirm(
                f"Run {run} belongs to {_owner(record)}, not to you ({me}). Resume it?",
                run,
                yes=yes,
            )
    _resume(record, overrides)


def _lifted(
    run: str | None,
    inventory: str | None,
    kubeconfig: str | None,
    waiting: Sequence[RunRecord],
    lift: Callable[[Running], None],
) -> bool:
    """Lift the pause of a run; whether one was paused.

    Raises:
        UsageError: the run that is meant is in progress, and not paused.
    """
    from gpustate.engine import records
    from gpustate.rollout.running import running_here

    recorded = run is not None and records.path_of(run).is_file()
    if recorded and all(running.run != run for running in running_here()):
        return False  # it was of this machine, and is in progress nowhere
    try:
        search = with_running(run, inventory, kubeconfig, lift, paused=True)
    except (ClusterError, InventoryError) as error:
        if run is not None or not waiting:
            raise
        click.echo(f"gpustate: looked for no paused run of a cluster: {error}", err=True)
        return False
    if search.asked:
        return True
    if search.running and (run is not None or not waiting):
        names = ", ".join(f"{running.run} of {running.person}" for running in search.running)
        raise UsageError(
            f"run {names} is in progress, and not paused",
            fix="see what it waits for: gpustate status -i INVENTORY",
        )
    if search.looked and (run is not None or not waiting):
        raise not_running("resume", run, inventory, search)
    return False


def _lift(running: Running) -> None:
    from gpustate.rollout.board import ABORT
    from gpustate.rollout.status import after_death

    before = running.control
    if before is not None and before.action == ABORT:
        raise RefusedError(
            f"run {running.run} of {running.person} was {before}: it ends after the nodes in progress",
            fix=f"then run on its machine: gpustate rollout resume {running.run}",
        )
    effect = f"continues; it was {before}"
    if not running.ask(""):
        effect = f"was {before}: {unanswered()}"
    elif running.silent:
        effect = (
            f"is not paused any more, but its controller has not renewed the Lease since {running.silent}; "
            f"if it is dead: {after_death(running.run, '')}"
        )
    click.echo(f"run {running.run} of {running.person} {effect}")


def _lift_dead(running: Running) -> None:
    """Lift the pause of a run whose process on this machine is dead, so that it can be run again."""
    before = running.control
    running.ask("")
    click.echo(
        f"run {running.run} of {running.person} was {before}, and its process is dead", err=True
    )


def _choose(waiting: list[RunRecord], me: str, inventory: str | None, *, yes: bool) -> RunRecord:
    """The run to resume if none is named.

    Raises:
        UsageError: there is none, or several and no terminal to choose on.
    """
    runs = [record for record in waiting if record.get("person") == me]
    if inventory:
        runs = [record for record in runs if _is_of(record, inventory)]
    if not runs:
        whose_text = f" of {me}" + (f" with the inventory {inventory}" if inventory else "")
        if not waiting:
            raise UsageError("there is no run to resume")
        raise UsageError(
            f"there is no run{whose_text} to resume, but {len(waiting)} of other users or inventories",
            fix="list them: gpustate rollout resume --list; then name one: gpustate rollout resume RUN",
        )
    if len(runs) == 1 and yes:
        return runs[0]
    _show(runs)
    names = [str(record["run"]) for record in runs]
    if yes or not sys.stdin.isatty():
        why = "there are several runs to resume" if len(runs) > 1 else "stdin is not a terminal"
        raise UsageError(why, fix=f"name one: gpustate rollout resume {names[-1]}")
    if len(runs) == 1:
        common.confirm(f"Resume {names[0]}?", _DECLINED)
        return runs[0]
    picked = click.prompt("Resume run", type=click.Choice(names), err=True)
    return runs[names.index(str(picked))]


def _confirm(question: str, run: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            question.partition(". ")[0],
            fix=f"take it over with: gpustate rollout resume {run} --yes",
        )
    common.confirm(question, _DECLINED)


def _is_of(record: RunRecord, inventory: str) -> bool:
    from gpustate.engine import records

    return bool(record["options"].get("inventory") == records.inventory_of(inventory))


def _check_inventory(record: RunRecord, inventory: str | None) -> None:
    source = click.get_current_context().get_parameter_source("inventory")
    explicit = source is not None and source.name == "COMMANDLINE"
    if inventory and explicit and not _is_of(record, inventory):
        raise UsageError(
            f"run {record['run']} uses the inventory {record['options'].get('inventory')}, not {inventory}",
            fix=f"omit -i: gpustate rollout resume {record['run']}",
        )


def _owner(record: RunRecord) -> str:
    return str(record.get("person") or "an unknown user")


def _show(records: list[RunRecord]) -> None:
    """Print one line per run: id, user, command, inventory, reason and result."""
    from gpustate.formats.words import printable

    if not records:
        click.echo("there is no run to resume")
    for record in records:
        parts = [
            str(record["run"]),
            _owner(record),
            f"{record['verb']} {record['source']}",
            f"-i {record['options'].get('inventory')}",
        ]
        if record["options"].get("limit"):
            parts.append(f"-l {record['options']['limit']}")
        if reason := record.get("reason"):
            parts.append(f"reason: {reason}")
        outcome = record.get("outcome")
        if isinstance(outcome, dict) and (summary := outcome.get("summary")):
            parts.append(summary)
        click.echo(printable("  ".join(parts)))


def _resume(record: RunRecord, overrides: dict[str, Any]) -> None:
    from gpustate import policies
    from gpustate.cli.apply import LEVEL, apply_policy, resume_plan
    from gpustate.engine import records
    from gpustate.formats.masking import missing_secrets
    from gpustate.reporting.runs import digest_of

    options = dict(record["options"])
    hidden = missing_secrets(options)
    if hidden:
        raise UsageError(
            f"the run was given a secret (--{str(hidden[0][0]).replace('_', '-')}), which records do not contain",
            fix="run the same command again: it continues where the nodes are",
        )
    options["max_disruption"] = LEVEL.convert(options.get("max_disruption", "reboot"), None, None)
    options |= {"yes": True, "resumes": record["run"]}
    options |= overrides  # records do not contain them
    prompts = options.get("ask_become_pass") or options.get("ask_vault_pass")
    if prompts and not os.isatty(0):
        raise UsageError(
            "the run prompts for a password, and stdin is not a terminal",
            fix="resume it on a terminal",
        )
    os.chdir(record["directory"])
    click.echo(f"resuming {record['verb']} {record['source']} (run {record['run']})", err=True)
    before = record.get("digest")
    if before and digest_of(str(record["source"])) != before:
        since = f"since run {record['run']} began ({record.get('created', '')})"
        click.echo(
            f"gpustate: note: {record['source']} has changed {since}; it is applied as it is now",
            err=True,
        )
    # The new run replaces this one in the list of runs to resume.
    records.end(records.path_of(str(record["run"])), interrupted=False)
    source = str(record["source"])
    if policies.kind(source) == "plan":
        resume_plan(source, options)
        return
    # An upgrade checks its driver before it begins; this one has begun.
    ensure = "absent" if record["verb"] == "remove" else None
    apply_policy(source, options, verb=str(record["verb"]), ensure=ensure)
