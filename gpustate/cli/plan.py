"""``gpustate plan``: show pending changes and their disruption per node."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common, notes, objects, reports, rules, watching
from gpustate.cli.context import context
from gpustate.cli.schedulers import scheduler_options, schedulers_of
from gpustate.errors import EXIT_PENDING, UsageError

if TYPE_CHECKING:
    from gpustate import api


@click.command()
@common.policy_argument
@common.inventory_options
@common.policy_options
@common.lock_options
@scheduler_options
@objects.object_options
@click.option("-o", "--output", type=reports.FORMATS, default="text", show_default=True)
@reports.report_options
@watching.events_option
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Save the plan to apply it later.",
)
@click.option(
    "--diff",
    is_flag=True,
    help="Show file contents and long lists in full; secrets stay masked.",
)
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

    POLICY is a Python file, a YAML file that begins with "format: gpustate.policy/1", a GPU Operator file
    (ClusterPolicy, NVIDIADriver, Helm values), or the name of a state. A saved plan is displayed again without contacting nodes.
    """
    from gpustate import policies

    if policy and policies.kind(policy) == "plan":
        _show_saved(policy, options, output=output, out=out, diff=diff, whole=whole)
        return
    result, document = make_plan(
        policy,
        options,
        output=output,
        out=out,
        diff=diff,
        whole=whole,
        ensure="absent" if options["removal"] else None,
    )
    codes = [result.exit_code, *objects.codes(document, detailed=detailed_exitcode)]
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
    verb: str = "plan",
    shown: bool = True,
) -> tuple[Any, dict[str, Any]]:
    """Plan and print, unless it is not to be ``shown``; return the run's result and the document."""
    from gpustate import api
    from gpustate.engine import fleet
    from gpustate.reporting.runs import Outcome, run_of

    rules.read()
    serial, report_files = options.get("serial"), options.get("reports", ())
    reports.check(report_files, serial)
    if out is not None:
        common.check_out(out)
    policy = common.load_policy(source, options)
    inventory = common.load_inventory(options)
    notes.report_unknown_targets(inventory, policy, source)
    clusters = objects.clusters(policy, source, inventory, options, absent=ensure == "absent")
    made = context(verb, source, options)
    batches = common.serial(serial)
    count = len(inventory.nodes)
    waves = watching.wave_sizes(batches, policy.pace, inventory, options)
    about = run_of(fleet.new_run_id(), verb, source, made, nodes=count, waves=waves)
    shared: dict[str, Any] = {
        "lock": common.lock_file(source, options) or False,
        "forks": options["forks"],
        "run": about.run,
        "source": source,
        "context": made,
    }
    result: api.PlanResult | api.DriftResult
    with watching.watching(about, options, inventory, output=output) as watchers:
        watchers.begin()
        with common.watched(inventory, quiet=output != "text") as (progress, stop):
            listen = watching.listener(watchers, progress)
            if not shown:
                click.echo("gpustate: planning; nothing is changed yet", err=True)
            if verb == "drift":
                result = api.drift(
                    policy,
                    inventory,
                    schedulers=schedulers_of(options),
                    events=listen,
                    stop=stop,
                    **shared,
                )
            else:
                result = api.plan(
                    policy,
                    inventory,
                    remove=ensure == "absent",
                    all_or_nothing=bool(options.get("all_or_nothing")),
                    serial=batches,
                    schedulers=schedulers_of(options),
                    events=listen,
                    stop=stop,
                    **shared,
                )
        if clusters is not None:
            document = clusters.document(result.document, result.nodes, result.cluster_nodes)
            result = objects.counted(result, document)
        document = result.document
        watchers.end(
            Outcome(result.exit_code, result.summary, result.nodes, interrupted=result.interrupted)
        )
        if out is not None:
            common.write_out(common.as_json(document), out)
        if not shown:
            return result, document
        reports.show_plan(document, output, diff=diff, whole=whole, reports=report_files, verb=verb)
        if output == "text":
            if out is not None:
                words = ["gpustate", "apply", out, "-i", options["inventory"]]
                words += ["--kubeconfig", path] if (path := options.get("kubeconfig")) else []
                click.echo(f"Saved to {out}; apply it with: {shlex.join(words)}")
            if isinstance(result, api.DriftResult):
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
    missing = ", ".join(f"{count} {status}" for status, count in uncompared.items())
    return f"{line}; not compared: {missing}." if missing else f"{line}."


def _show_saved(
    source: str, options: dict[str, Any], *, output: str, out: str | None, diff: bool, whole: bool
) -> None:
    """Show a saved plan."""
    from gpustate.api import saved

    given = {
        "--out": out,
        "--serial": options["serial"],
        "--remove": options["removal"],
    }
    if any(given.values()):
        name = next(name for name, value in given.items() if value)
        raise UsageError(
            f"{source} is a saved plan, and {name} is only for new plans", fix=f"omit {name}"
        )
    objects.check_saved(source, options)
    reports.check(options["reports"], None)
    made = saved.read(source)
    reports.show_plan(made, output, diff=diff, whole=whole, reports=options["reports"])
