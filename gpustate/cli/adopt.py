"""``gpustate cluster adopt`` and ``gpustate cluster release``: take a cluster over from the GPU Operator, and release it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import click

from gpustate.cli import common, notes, show
from gpustate.cluster.kubeconfig import Kubeconfig, kubeconfig_of
from gpustate.errors import ClusterError, UsageError
from gpustate.manifests.kinds import title
from gpustate.plan.render import Page
from gpustate.reconcile import planning, takeover
from gpustate.reconcile.adopting import Adopted, Adopter, plan_adoption
from gpustate.reconcile.applying import Applier
from gpustate.reconcile.planning import Target
from gpustate.reconcile.releasing import Releaser, plan_release
from gpustate.reconcile.takeover import exit_codes

_STOP_S, _ROLLOUT_S = 120.0, 300.0
_cluster_options = common.options(
    common.kubeconfig_option("The cluster, by this file's current context"),
    click.option("--dry-run", is_flag=True, help="Show what would happen; change nothing."),
    click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation."),
    click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True),
)


@click.command()
@common.policy_argument
@common.inventory_options
@common.policy_options
@_cluster_options
@click.option(
    "--force-conflicts",
    is_flag=True,
    help="Adopt an Operator even if Argo CD or Flux manages it. They are not suspended: do that first, or they start the Operator again.",
)
@click.option(
    "--restart",
    is_flag=True,
    help="Afterwards, apply the policy's objects; pods whose template differs are restarted. Nothing is deleted.",
)
def adopt(policy: str, **options: Any) -> None:
    """Take all objects of an installed GPU Operator over, one by one, without restarting a pod.

    -i and -l only find the clusters: each cluster of a selected node is taken over entirely. The Operator is scaled to 0, its objects become gpustate's as they stand, also those that POLICY does not have, and its ClusterPolicy is deleted. How they differ from POLICY is shown; the next `gpustate apply --cluster-objects` changes and deletes what differs. An
    interrupted run is continued by the next one; `gpustate cluster release --start-operator` returns everything to the Operator.
    """
    from gpustate.api.cluster_settings import object_settings
    from gpustate.manifests.build import build

    loaded = common.load_policy(policy, options)
    notes.report_warnings(loaded)
    settings = object_settings(loaded, policy, release=options["release"] or "")
    items = build(settings, {})
    namespace = settings.namespace

    def look(objects: Any) -> Any:
        states = [state.name for state in loaded.states]
        force = options["force_conflicts"]
        return plan_adoption(objects, items, namespace, force=force, states=states)

    def plan(objects: Any) -> dict[str, Any]:
        return takeover.adoption_data(objects.server, namespace, look(objects))

    def carry_out(objects: Any, stop: Callable[[], bool]) -> dict[str, Any]:
        adoption = look(objects)
        adopted = None
        if adoption is not None:
            adopted = Adopter(objects, _STOP_S, _say, stop).adopt(adoption)
            if options["restart"] and not adopted.failures:
                _apply(objects, Target(items, namespace, prune=False), adopted, stop)
        return takeover.adoption_data(objects.server, namespace, adoption, adopted)

    _run(
        ("adopt", "gpustate.adopt/1"),
        options,
        plan,
        carry_out,
        (takeover.adoption_lines, takeover.adopted_lines),
        lambda data: bool(data.get("operator")) and not data["refusals"],
    )


@click.command()
@common.inventory_options
@_cluster_options
@click.option(
    "--namespace",
    metavar="NAME",
    default="gpu-operator",
    show_default=True,
    callback=common.not_empty,
    help="Namespace of the installed Operator.",
)
@click.option(
    "--start-operator",
    is_flag=True,
    help="Afterwards, scale the Operator back to its previous number of replicas.",
)
def release(**options: Any) -> None:
    """Release a cluster's objects to the GPU Operator.

    -i and -l only find the clusters: in each cluster of a selected node, all objects are released. They lose
    gpustate's labels and field manager and stay as they are; the ClusterPolicy that `gpustate cluster adopt` has deleted is created again. Without --start-operator the
    Operator stays scaled to 0.
    """
    namespace = options["namespace"]

    def plan(objects: Any) -> dict[str, Any]:
        return takeover.release_data(objects.server, plan_release(objects, namespace))

    def carry_out(objects: Any, stop: Callable[[], bool]) -> dict[str, Any]:
        handover = plan_release(objects, namespace)
        released = Releaser(objects, _say, stop).release(handover, start=options["start_operator"])
        return takeover.release_data(objects.server, handover, released)

    _run(
        ("release", "gpustate.release/1"),
        options,
        plan,
        carry_out,
        (takeover.release_lines, takeover.released_lines),
        lambda data: bool(data["objects"] or data["created"]),
    )


def _say(text: str) -> None:
    click.echo(f"cluster: {text}", err=True)


def _apply(objects: Any, target: Target, adopted: Adopted, stop: Callable[[], bool]) -> None:
    """Apply the policy's objects, wait for their pods, and add the result."""
    try:
        applied = Applier(objects, target, _ROLLOUT_S, _say, stop).apply(
            planning.plan(objects, target)
        )
    except ClusterError as error:
        adopted.failures.append(str(error))
        return
    adopted.applied = [title(row.item) for row in applied.changes if row.action in planning.PENDING]
    adopted.failures += [*applied.failures, *applied.unready]
    refused = [row for row in applied.changes if row.action is planning.Action.REFUSED]
    adopted.failures += [f"{title(row.item)}: {row.reason}" for row in refused]


def _run(
    name: tuple[str, str],
    options: Mapping[str, Any],
    plan: Callable[[Any], dict[str, Any]],
    carry_out: Callable[[Any, Callable[[], bool]], dict[str, Any]],
    lines: tuple[Callable[[Any], Iterator[Any]], Callable[[Any], Iterator[Any]]],
    useful: Callable[[Any], bool],
) -> None:
    """Plan for every cluster, confirm, and carry out; ``name`` is the verb and the format of its document."""
    from gpustate.cluster.objects import opened

    verb, document = name
    paths = _kubeconfigs(options)
    rows: list[dict[str, Any]] = []
    for path in paths:
        with opened(path) as objects:
            rows.append(plan(objects))
    codes = [code for data in rows for code in exit_codes(data)]
    before, after = lines
    if options["output"] == "text":
        _print(rows, before)
    if options["dry_run"] or codes or not any(map(useful, rows)):
        if options["output"] == "json":
            click.echo(common.as_json({"format": document, "clusters": rows}), nl=False)
        common.finish(*codes)
        return
    if not options["yes"]:
        if not sys.stdin.isatty():
            raise UsageError(
                "stdin is not a terminal", fix="review with --dry-run, then pass --yes"
            )
        common.confirm(f"{verb.capitalize()} {len(paths)} clusters?", "nothing was changed")
    stop = common.Interrupt(lambda: _say("interrupted: run it again to continue"), "run it again")
    stop.arm()
    results: list[dict[str, Any]] = []
    for path in paths:
        with opened(path) as objects:
            results.append(carry_out(objects, stop))
    if options["output"] == "json":
        click.echo(common.as_json({"format": document, "clusters": results}), nl=False)
    else:
        _print(results, after)
    common.finish(*(code for data in results for code in exit_codes(data)))


def _kubeconfigs(options: Mapping[str, Any]) -> list[Kubeconfig]:
    """The kubeconfigs of the clusters of an inventory, or that of the option.

    Raises:
        UsageError: there is none.
    """
    if options.get("kubeconfig"):
        return [Kubeconfig(options["kubeconfig"])]
    kubeconfigs: list[Kubeconfig] = []
    if options.get("inventory"):
        nodes = common.load_inventory(dict(options))
        kubeconfigs = list(dict.fromkeys(filter(None, (kubeconfig_of(node, "") for node in nodes))))
    if not kubeconfigs:
        raise UsageError(
            "no kubeconfig",
            fix="pass --kubeconfig FILE, or -i INVENTORY with the variable gpustate_kubeconfig",
        )
    return kubeconfigs


def _print(
    rows: Iterable[Mapping[str, Any]],
    lines: Callable[[Mapping[str, Any]], Iterator[list[tuple[str, str]]]],
) -> None:
    page = Page()
    for data in rows:
        for pieces in lines(data):
            page.add(*pieces)
    show.show(page)
