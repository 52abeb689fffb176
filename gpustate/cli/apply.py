"""``gpustate apply``: make nodes as the policy says, or carry out a saved plan."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common, rules
from gpustate.cli.context import context
from gpustate.errors import PolicyError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpustate.engine.fleet import FleetResult


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


def apply_options(function: common.F) -> common.F:
    """Options of everything that changes nodes."""
    for option in reversed(
        (
            click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True),
            click.option("-y", "--yes", is_flag=True, help="Do not ask."),
            click.option(
                "--max-disruption",
                type=LEVEL,
                default="reboot",
                show_default=True,
                metavar="LEVEL",
                help="Refuse nodes whose plan may cost more: none, reload, restart, drain, reset, reboot.",
            ),
            click.option(
                "--all-or-nothing",
                is_flag=True,
                help="Leave a node alone where one of its states is refused or fails to plan.",
            ),
            click.option(
                "--serial",
                metavar="SIZES",
                help="Nodes in batches, one after the other: 1,10%,50%.",
            ),
            click.option(
                "--reason",
                metavar="TEXT",
                help="Ticket or reason, for the nodes' locks and the records of the run.",
            ),
            click.option(
                "--diff",
                is_flag=True,
                help="Show the content of files that change; secrets stay masked.",
            ),
        )
    ):
        function = option(function)
    return function


@click.command()
@click.argument("policy", metavar="POLICY|PLAN")
@common.inventory_options
@common.policy_options
@common.lock_options
@apply_options
def apply(policy: str, **options: Any) -> None:
    """Make nodes as POLICY says, or carry out a saved PLAN exactly as it stands.

    A node whose observed state is no longer the one a PLAN was made from is refused (exit 5).
    """
    from gpustate import policies

    if policies.kind(policy) == "plan":
        if common.changes_of(options):
            raise UsageError(
                "a saved plan is applied as it stands, and options would change it",
                place=policy,
                fix="plan the policy again with them",
            )
        _apply_plan(policy, options)
    else:
        apply_policy(policy, options, verb="apply")


def apply_policy(
    source: str, options: dict[str, Any], *, verb: str, ensure: str | None = None
) -> None:
    """Apply a policy: ask first on a terminal, unless ``--yes``."""
    rules.read()
    if not options["yes"]:
        if not sys.stdin.isatty():
            raise UsageError(
                "nobody is there to say yes", fix="look with `gpustate plan`, then give --yes"
            )
        from gpustate.cli.plan import make_plan

        planned, document = make_plan(
            source,
            options,
            output="text",
            diff=options["diff"],
            ensure=ensure,
            estimate=True,
            verb=verb,
        )
        if not document["fleet"]["nodes"]["change"]:
            common.finish(planned.exit_code)
            return
        _confirm(verb, document, options, document["policy"].get("pace", ()))
        carry_out(source, options, verb=verb, ensure=ensure, document=document)
        return
    carry_out(source, options, verb=verb, ensure=ensure)


def _apply_plan(path: str, options: dict[str, Any]) -> None:
    from gpustate.plan.document import read_plan

    document = read_plan(read_json(path), place=path)
    rules.read()
    if not options["yes"]:
        if not sys.stdin.isatty():
            raise UsageError("nobody is there to say yes", fix="give --yes")
        from gpustate.cli.show import show
        from gpustate.plan import render

        show(render.nodes_page(document, diff=options["diff"]))
        show(render.fleet_page(document))
        show(render.troubles_page(document, diff=options["diff"]))
        click.echo(render.plan_sentence(document))
        _confirm("apply", document, options, document["policy"].get("pace", ()))
    carry_out(path, options, verb="apply", document=document)


def _confirm(
    verb: str, document: dict[str, Any], options: dict[str, Any], pace: Sequence[str]
) -> None:
    """Ask, with the nodes, the worst it costs them and the batches in the question."""
    from gpustate.engine import fleet
    from gpustate.plan import render
    from gpustate.plan.overview import overview

    if not overview(document).counts["change"]:
        return  # what the plan does not say is not done
    names = [str(row["name"]) for row in document["nodes"]]
    sizes = common.serial(options["serial"], pace, len(names))
    batches = len(fleet.batches(names, sizes)) if sizes else 0
    forks = min(int(options["forks"]), len(names))
    question = render.question(document, verb, forks=forks, batches=batches, sizes=sizes)
    click.confirm(question, abort=True, err=True)


def carry_plan_on(path: str, options: dict[str, Any]) -> None:
    """Go on with a saved plan that was applied in part.

    Its nodes have moved by our own doing, so they are not held against the plan's observations;
    what each state may cost still is.
    """
    from gpustate.plan.document import read_plan

    document = read_plan(read_json(path), place=path)
    carry_out(path, options, verb="apply", document=document, moved_by_us=True)


def read_json(path: str) -> Any:
    """Read a file that should be a plan."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PolicyError(
            f"cannot be read as a plan ({error})", place=path, fix="plan again"
        ) from error


def _policy_of(document: dict[str, Any], options: dict[str, Any], place: str) -> Any:
    from gpustate import registry
    from gpustate.core.policy import Policy, build

    made = _with_secrets(document["policy"], options, place)
    states = [
        build(registry.get(row["state"]), row["parameters"], place=place) for row in made["states"]
    ]
    notes = tuple(document.get("notes", ()))
    layers = {key: made.get(key) or {} for key in ("groups", "nodes")}
    try:
        return Policy(
            *states,
            name=made.get("name"),
            notes=notes,
            allow=made.get("allow"),
            last=made.get("last", ()),
            pace=made.get("pace", ()),
            **layers,
        )
    except PolicyError as error:
        raise PolicyError(f"the plan is damaged: {error.message}", place=place) from None


def _with_secrets(made: dict[str, Any], options: dict[str, Any], place: str) -> dict[str, Any]:
    """What a plan says of its policy, with the secrets that it does not hold, from the policy's own file.

    Raises:
        PolicyError: one of them is not there.
    """
    from gpustate.formats.masking import missing_secrets

    missing = missing_secrets(made)
    if not missing:
        return made
    from gpustate.formats.masking import with_secrets
    from gpustate.plan.document import policy_parameters

    source = str(made.get("source", ""))
    fix = "set it in the inventory instead, in the variable gpustate: it is read again with every apply"
    name = ".".join(map(str, missing[0]))
    try:
        given = policy_parameters(common.load_policy(source, options))
    except (PolicyError, UsageError) as error:
        raise PolicyError(
            f"a saved plan holds no secrets, and {name} cannot be read from {source} ({error.message})",
            place=place,
            fix=f"apply the plan where {source} can be read, or {fix}",
        ) from error
    filled: dict[str, Any] = with_secrets(made, given)
    left = missing_secrets(filled)
    if left:
        name = ".".join(map(str, left[0]))
        raise PolicyError(
            f"a saved plan holds no secrets, and {source} has none for {name}", place=place, fix=fix
        )
    return filled


def carry_out(
    source: str,
    options: dict[str, Any],
    *,
    verb: str,
    ensure: str | None = None,
    document: dict[str, Any] | None = None,
    moved_by_us: bool = False,
) -> None:
    """Run an apply and print what became of it."""
    from gpustate.cli.show import show
    from gpustate.engine import fleet, records
    from gpustate.plan import document as documents
    from gpustate.plan import render

    if document is not None:
        policy = _policy_of(document, options, source)
    else:
        policy = common.load_policy(source, options)
        policy = policy.with_ensure(ensure) if ensure is not None else policy
    inventory = common.load_inventory(options)
    if document is None:
        inventory, _ = common.locked(inventory, policy, source, options)
    else:
        inventory = _only_planned(inventory, document, source)
        inventory = _as_locked(inventory, policy, document, source)
    request = fleet.Request(
        policy,
        inventory,
        apply=True,
        known=common.known_states(),
        forks=options["forks"],
        max_disruption=options["max_disruption"],
        planned=documents.planned_observations(document) if document and not moved_by_us else None,
        announced=documents.announced_disruptions(document) if document else None,
        plan_id=str(document["id"]) if document else "",
        serial=common.serial(options["serial"], policy.pace, len(inventory.nodes)),
        run=fleet.new_run_id(),
        ticket=" ".join((options.get("reason") or "").split()),
        all_or_nothing=bool(options.get("all_or_nothing")),
    )
    # Errors of the user's text come before anything is recorded.
    fleet.resolve_all(request)
    fleet.batches((), request.serial)
    person, born = fleet.person(), fleet.born(os.getpid())
    record = records.begin(
        request.run, verb, source, options, person=person, born=born, created=common.now()
    )
    result = common.run(request, verb=verb, quiet=options["output"] == "json")
    records.end(
        record,
        interrupted=result.interrupted or bool(result.skipped),
        outcome={
            "exit_code": result.exit_code,
            "summary": result.summary(),
            "nodes": {node.name: node.status.value for node in result.nodes},
            "skipped": list(result.skipped),
            "ended": common.now(),
        },
    )
    made = documents.result_document(
        result.nodes,
        run=result.run,
        created=common.now(),
        verb=verb,
        summary=result.summary(),
        exit_code=result.exit_code,
        notes=policy.notes,
        skipped=result.skipped,
        context=_context(verb, source, options, document, result),
    )
    if options["output"] == "json":
        common.write_out(common.as_json(made))
    else:
        show(render.nodes_page(made, diff=options["diff"]))
        show(render.troubles_page(made, diff=options["diff"]))
        if result.skipped:
            click.echo(f"Not begun: {render.names_line(result.skipped)}")
        if result.interrupted:
            click.echo(f"Interrupted. Go on with: gpustate resume {result.run}")
        click.echo(result.summary())
    common.finish(result.exit_code)


def _context(
    verb: str,
    source: str,
    options: dict[str, Any],
    document: dict[str, Any] | None,
    result: FleetResult,
) -> dict[str, Any]:
    """Where a result comes from; nodes that were changed by a part of a saved plan need a new one."""
    from gpustate.core.outcome import NodeStatus

    made = context(verb, source, options)
    untouched = (NodeStatus.OK, NodeStatus.UNREACHABLE, NodeStatus.LOCKED)
    if document is not None and any(node.status not in untouched for node in result.nodes):
        made["retry"] = (document.get("context") or made).get("retry", made["retry"])
    return made


def _as_locked(inventory: Any, policy: Any, document: dict[str, Any], source: str) -> Any:
    """What was locked when the plan was made is locked for it still."""
    if "lock" not in document:
        return inventory
    from gpustate.resolver import lock_layers
    from gpustate.solve import lock

    made = lock.from_text(json.dumps(document["lock"]), f"{source}: lock")
    return lock_layers.onto(inventory, policy, made, source, common.known_states())


def _only_planned(inventory: Any, document: dict[str, Any], source: str) -> Any:
    from dataclasses import replace

    names = {row["name"] for row in document["nodes"]}
    nodes = tuple(node for node in inventory.nodes if node.name in names)
    if not nodes:
        raise UsageError(
            "the inventory has none of the plan's nodes",
            place=source,
            fix="give the inventory it was made with",
        )
    return replace(inventory, nodes=nodes)
