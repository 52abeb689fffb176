"""``gpustate plan``: show pending changes and their disruption per node."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common, notes, objects, reports, rules, watching
from gpustate.cli.context import context
from gpustate.cli.rollout import rollout_options, strategy_of, wave_sizes
from gpustate.cli.schedulers import scheduler_options, schedulers_of
from gpustate.core.outcome import Outcome, StateResult
from gpustate.errors import EXIT_PENDING, RefusedError, UsageError
from gpustate.plan.objects import pending_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpustate import api


def _version_or_branch(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """Refuse ``latest`` and its like, which keep what is installed."""
    value = common.not_empty(context, parameter, value)
    if value is not None and value.startswith("latest"):
        raise UsageError(
            f"--driver {value} keeps the installed driver",
            fix="name a version (580.65.06) or a branch (580)",
        )
    return value


def driver_option(*, required: bool = False) -> Callable[[common.F], common.F]:
    """``--driver``."""
    more = "" if required else " The plan is that of `gpustate upgrade`."
    option = click.option(
        "--driver",
        required=required,
        metavar="VERSION",
        callback=_version_or_branch,
        help=f"Driver version (580.65.06), or a branch (580): the newest version of it that is offered.{more}",
    )
    return common.options(option, heading="Policy")


#: What a forecast says of a driver that will be refused.
_AHEAD = "will be refused: "


@click.command(cls=common.Verb)
@common.policy_argument
@common.inventory_options
@common.policy_options
@common.lock_options
@driver_option()
@rollout_options
@scheduler_options
@objects.object_options
@reports.output_options(reports.FORMATS)
@common.options(watching.events_option, heading="Output")
@common.out_option("Save the plan to apply it later.")
@click.option("--all", "whole", is_flag=True, help="Include unchanged states.")
@click.option("--detailed-exitcode", is_flag=True, help="Exit 2 if there are pending changes.")
@click.option(
    "--remove",
    "removal",
    is_flag=True,
    help="Plan the removal of everything POLICY installed (see `gpustate remove`).",
)
def plan(
    policy: str,
    output: str,
    out: str | None,
    diff: bool,
    whole: bool,
    detailed_exitcode: bool,
    **options: Any,
) -> None:
    """Show pending changes and their disruption per node; nothing is written.

    POLICY is a Python file, a YAML file with "preset:" or "states:", a GPU Operator file
    (ClusterPolicy, NVIDIADriver, Helm values), or the name of a state. A saved plan is displayed again without contacting nodes.
    """
    from gpustate import policies

    if policy and policies.kind(policy) == "plan":
        _show_saved(policy, options, output=output, out=out, diff=diff, whole=whole)
        return
    verb, check = "plan", None
    if options["driver"]:
        verb, check = "upgrade", check_accepted if out else None
        options |= {"lock": common.NO_LOCK, "dry_run": True}
    result, document = make_plan(
        policy,
        options,
        output=output,
        out=out,
        diff=diff,
        whole=whole,
        ensure="absent" if options["removal"] else None,
        verb=verb,
        check=check,
    )
    pending = detailed_exitcode and (result.pending or bool(pending_of(document)))
    common.finish(result.exit_code, *[EXIT_PENDING] * pending)


def make_plan(
    source: str,
    options: dict[str, Any],
    *,
    output: str,
    out: str | None = None,
    diff: bool = False,
    whole: bool = False,
    ensure: str | None = None,
    verb: str = "plan",
    shown: bool = True,
    check: Callable[[api.PlanResult], None] | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Plan, save and print; return the run's result and the document.

    Args:
        source, options: of the command line.
        output, diff, whole: how it is shown.
        out: file that it is saved in.
        ensure: ``absent`` plans a removal.
        verb: of the command line. That of ``rollback`` has a run for its source.
        shown: print it.
        check: called with the plan before it is saved and shown; raises an error to stop.
    """
    from gpustate import api
    from gpustate.engine import fleet
    from gpustate.reporting.runs import Outcome, run_of

    rules.read()
    report_files = options.get("reports", ())
    reports.check(report_files)
    if out is not None:
        common.check_out(out)
    policy = api.Policy() if verb == "rollback" else common.load_policy(source, options)
    inventory = common.load_inventory(options)
    notes.report_unknown_targets(inventory, policy, source, options)
    notes.report_left_out_objects(policy, options)
    clusters = objects.clusters(policy, source, inventory, options, absent=ensure == "absent")
    extra = context(verb, source, options)
    strategy = strategy_of(options)
    waves = wave_sizes(strategy.beside(policy.rollout), inventory)
    count = len(inventory.nodes)
    about = run_of(fleet.new_run_id(), verb, source, extra, nodes=count, waves=waves)
    shared: dict[str, Any] = {
        "forks": options["forks"],
        "schedulers": schedulers_of(options),
        "context": extra,
    }
    of_policy: dict[str, Any] = {
        "lock": common.lock_file(source, options) or False,
        "run": about.run,
        "source": source,
    }
    of_plan: dict[str, Any] = {
        "all_or_nothing": bool(options.get("all_or_nothing")),
        "strategy": strategy,
    }
    result: api.PlanResult | api.DriftResult
    with watching.watching(about, options, inventory, output=output) as watchers:
        watchers.begin()
        with common.watched(inventory, quiet=output != "text") as (progress, stop):
            listen = watching.listener(watchers, progress)
            if not shown:
                click.echo("gpustate: planning; nothing is changed yet", err=True)
            shared |= {"events": listen, "stop": stop}
            if verb == "drift":
                result = api.drift(
                    policy, inventory, cluster_objects=clusters or False, **shared, **of_policy
                )
            elif verb == "rollback":
                result = api.plan_rollback(
                    inventory, source, new_run=about.run, **shared, **of_plan
                )
            else:
                absent = ensure == "absent"
                result = api.plan(
                    policy,
                    inventory,
                    remove=absent,
                    cluster_objects=clusters or False,
                    **shared,
                    **of_policy,
                    **of_plan,
                )
        document = result.document
        watchers.end(
            Outcome(result.exit_code, result.summary, result.nodes, interrupted=result.interrupted)
        )
        if check is not None and isinstance(result, api.PlanResult):
            check(result)
        if out is not None:
            common.write_out(common.as_json(document), out)
        if not shown:
            return result, document
        shown_as = "plan" if options.get("dry_run") else verb
        reports.show_plan(
            document, output, diff=diff, whole=whole, reports=report_files, verb=shown_as
        )
        if output == "text":
            if out is not None:
                words = ["gpustate", "apply", out, "-i", options["inventory"]]
                words += ["--kubeconfig", path] if (path := options.get("kubeconfig")) else []
                click.echo(f"Saved to {out}; apply it with: {shlex.join(words)}")
            if isinstance(result, api.DriftResult):
                pending = any(node.pending for node in result.nodes)
                if result.drifted and not pending:
                    click.echo("An apply would be refused: each refusal names what to do first.")
                if pending or pending_of(document):
                    command = ["gpustate", "apply", *extra["retry"][2:]]
                    command += ["-l", limit] if (limit := options.get("limit")) else []
                    click.echo(f"Apply the policy with: {shlex.join(command)}")
                click.echo(_drift_sentence(result))
            click.echo(result.summary)
    return result, document


def _drift_sentence(result: api.DriftResult) -> str:
    """How many nodes and objects differ; nodes that could not be compared are no nodes without drift."""
    uncompared = Counter(
        node.status.value
        for node in result.nodes
        if not node.drifted and (node.drift_unknown or not node.states)
    )
    compared = len(result.nodes) - uncompared.total()
    counts = [f"{len(result.drifted)} of {compared} nodes"]
    counts += [text] if (text := objects.drifted(result.document)) else []
    line = f"Drift: {' and '.join(counts)} differ from the policy"
    if any(data.get("unready") for data in result.document.get("clusters", ())):
        line += "; pods of components do not run, or Nodes are held out of service, as listed above"
    missing = ", ".join(f"{count} {status}" for status, count in uncompared.items())
    return f"{line}; not compared: {missing}." if missing else f"{line}."


def _show_saved(
    source: str, options: dict[str, Any], *, output: str, out: str | None, diff: bool, whole: bool
) -> None:
    """Show a saved plan."""
    from gpustate.api import saved

    beside = {
        "--out": out,
        "--serial": options["serial"],
        "--driver": options["driver"],
        "--remove": options["removal"],
    }
    if any(beside.values()):
        name = next(name for name, value in beside.items() if value)
        raise UsageError(
            f"{source} is a saved plan, and {name} is only for new plans", fix=f"omit {name}"
        )
    objects.check_saved(source, options)
    reports.check(options["reports"])
    document = saved.read(source)
    reports.show_plan(document, output, diff=diff, whole=whole, reports=options["reports"])


def check_accepted(planned: api.PlanResult) -> None:
    """Refuse an upgrade whose driver a node cannot get, before anything is changed.

    Raises:
        RefusedError: with the nodes and the first one's reason.
    """
    refused = {
        node.name: reason
        for node in planned.nodes
        for state in node.states
        if state.state == "driver" and (reason := _refusal(state))
    }
    if refused:
        from gpustate.plan.render import names_line

        raise RefusedError(
            f"{names_line(list(refused))}: {next(iter(refused.values()))}",
            fix="name another version, or leave these nodes out: -l '!NODE'",
        )


def _refusal(state: StateResult) -> str:
    """Why a driver cannot be installed, as far as it is known yet; empty if nothing speaks against it."""
    if state.outcome is Outcome.REFUSED:
        return state.reason
    ahead = (note.partition(_AHEAD)[2] for note in state.plan.notes if note.startswith(_AHEAD))
    return next(ahead, "")
