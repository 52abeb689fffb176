"""``gpustate apply``: apply a policy or a saved plan."""

from __future__ import annotations

import os
import shlex
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import click

from gpustate import clock
from gpustate.cli import common, next_steps, notes, objects, reports, rules, watching
from gpustate.cli.context import context, words
from gpustate.cli.rollout import rollout_options, rolls_back, sections_of, strategy_of, wave_sizes
from gpustate.cli.schedulers import scheduler_options, schedulers_of
from gpustate.errors import UsageError
from gpustate.plan.objects import NO_GPUS, pending_of, takes_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpustate import api
    from gpustate.api import saved
    from gpustate.api.clusters import Clusters
    from gpustate.core.inventory import Inventory
    from gpustate.core.policy import Policy
    from gpustate.reporting.runs import Run


class _Level(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    name = "level"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from gpustate.core.change import Disruption

        if isinstance(value, Disruption):
            return value
        try:
            return Disruption.parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


LEVEL = _Level()

max_disruption_option = click.option(
    "--max-disruption",
    type=LEVEL,
    default="reboot",
    show_default=True,
    metavar="LEVEL",
    help="Refuse nodes whose plan may exceed it: none, reload, restart, drain, reset, reboot.",
)
_RUN = common.options(
    click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation."),
    max_disruption_option,
    click.option(
        "--all-or-nothing", is_flag=True, help="Leave a node alone if any of its states is refused."
    ),
    click.option("--reason", metavar="TEXT", help="Ticket or reason, for locks and records."),
)
#: Options of verbs that change nodes.
apply_options = common.options(
    _RUN,
    rollout_options,
    scheduler_options,
    reports.output_options(common.FORMATS),
    watching.watch_options,
)


@click.command(cls=common.Verb)
@click.argument("policy", cls=common.PolicyArgument, metavar="POLICY|PLAN")
@common.inventory_options
@common.policy_options
@common.lock_options
@apply_options
@objects.object_options
def apply(policy: str, **options: Any) -> None:
    """Apply POLICY, or a saved PLAN exactly as it was saved.

    PLAN keeps options not given here; a node changed since is refused (exit 5).
    """
    from gpustate import policies

    if policies.kind(policy) == "plan":
        common.check_sections_alone(options, "a saved plan is applied exactly as it was saved")
        _apply_plan(policy, options)
    else:
        apply_policy(policy, options, verb="apply")


def apply_policy(
    source: str,
    options: dict[str, Any],
    *,
    verb: str,
    ensure: str | None = None,
    check: Callable[[api.PlanResult], None] | None = None,
) -> None:
    """Apply a policy or go back to before a run, after confirmation on a terminal unless ``--yes`` is given.

    Args:
        source, options: of the command line.
        verb: its verb.
        ensure: ``absent`` removes.
        check: called with the plan before anything is changed or saved; raises an error to stop.
    """
    from gpustate.cli.plan import make_plan

    rules.read()
    files = options.get("reports") or ()
    reports.check(files)
    if options.get("dry_run") or options.get("out"):
        plan_options = {**options, "dry_run": True, "reports": files}
        result, _ = make_plan(
            source,
            plan_options,
            output=options["output"],
            out=options.get("out"),
            diff=options["diff"],
            ensure=ensure,
            verb=verb,
            check=check,
        )
        common.finish(result.exit_code)
        return
    asks = not options["yes"]
    if asks and not sys.stdin.isatty():
        if verb != "rollback":
            common.load_policy(source, options)
        common.load_inventory({**options, "ask_become_pass": False}, reach=False)
        raise UsageError(
            "stdin is not a terminal", fix="review with gpustate plan, then pass --yes"
        )
    if not asks and check is None and verb != "rollback":
        execute(source, options, verb=verb, ensure=ensure)
        return
    planned, document = make_plan(
        source,
        watching.recorded(options),
        output="text",
        diff=options["diff"],
        ensure=ensure,
        verb=verb,
        shown=asks,
        check=check,
    )
    if not asks:
        click.echo("gpustate: planned; changing the nodes", err=True)
    elif not document["fleet"]["nodes"]["change"] and not pending_of(document):
        common.finish(planned.exit_code)
        return
    else:
        confirm(verb, document, options)
    execute(source, options, verb=verb, ensure=ensure, plan=planned)


def _apply_plan(path: str, options: dict[str, Any]) -> None:
    from gpustate.api import saved

    objects.check_saved(path, options)
    document = saved.read(path)
    options = {**options, **_of_plan(document, options)}
    rules.read()
    reports.check(options.get("reports") or ())
    if not options["yes"]:
        from gpustate.api.rolling import add_rollout

        inventory = saved.only_planned(common.load_inventory(options), document, path)
        if not sys.stdin.isatty():
            raise UsageError("stdin is not a terminal", fix="pass --yes")
        rollout = saved.rollout_of(document)
        add_rollout(document, inventory, strategy_of(options).beside(rollout))
        reports.show_plan(document, "text", diff=options["diff"], whole=False, verb="apply")
        objects.show(document)
        confirm("apply", document, options)
    execute(path, options, verb="apply", plan=document)


#: Options that a saved plan is applied with, unless ``apply`` has its own.
_PLANNED = ("serial", "max_failures", "max_unavailable", "all_or_nothing")


def _of_plan(document: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of waves and schedulers that a plan was made with, unless ``apply`` has its own."""
    from gpustate.cli.main import cli

    retry = [str(word) for word in (document.get("context") or {}).get("retry") or ("", "")]
    retry = [word for word in retry if word != "--dry-run"]  # of a plan, by itself
    try:
        command = cli.get_command(click.get_current_context(), retry[1])
        if command is None:
            return {}
        planned = command.make_context(retry[1], retry[2:], resilient_parsing=True).params
    except click.ClickException:  # of another version
        return {}
    # One of them here replaces the other kind there: both together are refused.
    names = [*_PLANNED, *(() if "drain" in sections_of(options)[0] else ("ignore_scheduler",))]
    recorded = {n: planned[n] for n in names if planned.get(n) and not options.get(n)}
    if recorded:
        click.echo(f"gpustate: as planned: {shlex.join(words('plan', recorded))}", err=True)
    return {**recorded, "upgrade": retry[1] == "upgrade"}


def confirm(verb: str, document: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Ask for confirmation, with nodes, worst disruption and waves in the question."""
    from gpustate.plan import render
    from gpustate.plan.overview import overview

    objects_change = pending_of(document)
    if overview(document).counts["change"]:
        common.confirm(render.question(document, verb, forks=int(options["forks"])))
    elif objects_change:
        lost = f"; {NO_GPUS}" if takes_gpus(document["clusters"]) else ""
        common.confirm(f"{verb.capitalize()} {objects_change} objects{lost}?")


def resume_plan(path: str, options: dict[str, Any]) -> None:
    """Resume a saved plan that was applied in part.

    gpustate itself has changed the nodes since, so they are not compared with the plan's observations. The
    announced disruption of each state is still enforced.
    """
    from gpustate.api import saved

    reports.check(options.get("reports") or ())
    execute(path, options, verb="apply", plan=saved.read(path), partly_applied=True)


def execute(
    source: str,
    options: dict[str, Any],
    *,
    verb: str,
    ensure: str | None = None,
    plan: saved.Plan | api.PlanResult | None = None,
    partly_applied: bool = False,
) -> None:
    """Run an apply and print its result."""
    from gpustate import api
    from gpustate.api import saved
    from gpustate.engine import fleet
    from gpustate.reporting.runs import run_of

    def read_policy(name: str) -> Policy:
        return common.load_policy(name, options)

    target = read_policy(source) if plan is None else plan
    inventory = common.load_inventory(options)
    if isinstance(target, api.Policy):
        notes.report_unknown_targets(inventory, target, source, options)
        if ensure is None:
            notes.report_warnings(target)
        notes.report_left_out_objects(target, options)
    else:
        inventory = saved.only_planned(inventory, saved.document_of(target), source)
    absent = ensure == "absent"
    clusters: Clusters | None
    if isinstance(target, saved.Plan):
        clusters = objects.clusters_of_plan(
            target, read_policy, source, inventory, options, resumed=partly_applied
        )
        absent = absent or (clusters is not None and clusters.absent)
    else:
        policy = target.policy if isinstance(target, api.PlanResult) else target
        clusters = objects.clusters(policy, source, inventory, options, absent=absent)
    document = None if isinstance(target, api.Policy) else saved.document_of(target)
    rollout = target.rollout if isinstance(target, api.Policy) else saved.rollout_of(document or {})
    strategy = strategy_of(options).beside(rollout)
    about = run_of(
        fleet.new_run_id(),
        verb,
        source,
        context(verb, source, options),
        reason=options.get("reason") or "",
        nodes=len(inventory.nodes),
        waves=wave_sizes(strategy, inventory, document),
        plan="" if document is None else str(document["id"]),
    )

    def run(**shared: Any) -> api.ApplyResult:
        result = api.apply(
            target,
            inventory,
            lock=common.lock_file(source, options) or False,
            remove=absent,
            cluster_objects=clusters or False,
            rollback_on_failure=rolls_back(strategy, options),
            source=source,
            read_policy=read_policy,
            partly_applied=partly_applied,
            **shared,
        )
        if absent and "clusters" not in result.document and not options.get("ignore_scheduler"):
            objects.remove_records(inventory, options, result.nodes)
        return result

    carry_out(about, verb, source, options, inventory, run)


def carry_out(
    about: Run,
    verb: str,
    source: str,
    options: dict[str, Any],
    inventory: Inventory,
    run: Callable[..., api.ApplyResult],
) -> None:
    """Record, watch and run what changes nodes, print its result, and exit with its code.

    Args:
        about: the run.
        verb, source, options: of the command line.
        inventory: the nodes.
        run: does it, with the arguments that every such function of :mod:`gpustate.api` takes.
    """
    from gpustate.engine import fleet, records
    from gpustate.reporting.runs import Outcome

    with watching.watching(
        about, options, inventory, output=options["output"], audited=True
    ) as watchers:
        record: Any = None

        @cache
        def started(run: str) -> None:
            nonlocal record
            person, born = fleet.person(), fleet.born(os.getpid())
            recorded = watching.recorded(options)
            record = records.begin(
                run,
                verb,
                source,
                recorded,
                person=person,
                born=born,
                created=clock.now(),
                digest=about.digest,
                nodes=[node.name for node in inventory.nodes],
            )
            watchers.begin()

        quiet, resume = options["output"] == "json", f"gpustate rollout resume {about.run}"
        with common.watched(inventory, quiet=quiet, resume=resume) as (listen, stop):
            result = run(
                forks=options["forks"],
                max_disruption=options["max_disruption"],
                all_or_nothing=bool(options.get("all_or_nothing")),
                strategy=strategy_of(options),
                reason=options.get("reason") or "",
                resumes=options.get("resumes") or "",
                schedulers=schedulers_of(options),
                events=watching.listener(watchers, listen),
                stop=stop,
                started=started,
                run=about.run,
                context=context(verb, source, options),
            )
        code = result.exit_code
        records.end(
            record,
            interrupted=result.interrupted or bool(result.skipped or result.stopped),
            outcome={
                "exit_code": code,
                "summary": result.summary,
                "nodes": {node.name: node.status.value for node in result.nodes},
                "skipped": list(result.skipped),
                "ended": clock.now(),
            },
        )
        outcome = Outcome(
            code,
            result.summary,
            result.nodes,
            result.skipped,
            interrupted=result.interrupted,
            stopped="" if result.interrupted else result.stopped,
        )
        watchers.end(outcome)
        policy = source if verb != "rollback" else ""
        next_steps.Target(str(options["inventory"]), policy).complete_result(result.document)
        show_result(result, options)
        reports.write_result(result.document, options, watchers, outcome)
    common.finish(code)


def show_result(result: api.ApplyResult, options: dict[str, Any]) -> None:
    """Print the result of an apply."""
    from gpustate.cli.show import show
    from gpustate.engine.maintenance import out_of_service
    from gpustate.plan import render
    from gpustate.plan.context import context_rows, way_back

    document = result.document
    if options["output"] == "json":
        common.write_out(common.as_json(document))
        return
    show(render.nodes_page(document, diff=options["diff"]))
    show(render.troubles_page(document, diff=options["diff"]))
    objects.show(document)
    command = dict(context_rows(document)).get("command")
    if command and any(data.get("unready") for data in document.get("clusters", ())):
        click.echo(f"Fix what keeps these pods from running, then: {command}")
    if result.stopped:
        click.echo(f"Stopped: {result.stopped}")
    if result.skipped:
        click.echo(f"Not started: {render.names_line(result.skipped)}")
        if not result.interrupted:
            click.echo(
                f"Continue with these and the failed nodes: gpustate rollout resume {result.run}"
            )
    if result.interrupted:
        held = [node.name for node in result.nodes if out_of_service(node)]
        out = f"; out of service: {render.names_line(held)}" if held else ""
        click.echo(f"Interrupted{out}. Resume it with: gpustate rollout resume {result.run}")
    elif any(node.changed for node in result.nodes) and (undo := way_back(document, result.run)):
        click.echo(f"Way back: {undo}{objects.way_back_note(document)}")
        if result.document["verb"] == "upgrade":
            click.echo("Set the version in the policy too: the next apply installs what it names.")
    click.echo(result.summary)
