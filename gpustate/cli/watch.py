"""``gpustate watch``: apply a policy to Nodes that join, reboot, or get another label."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gpustate import clock
from gpustate.cli import common, objects, rules, watch_service
from gpustate.cli.apply import max_disruption_option
from gpustate.cli.context import context
from gpustate.cli.rollout import rollout_options, strategy_of
from gpustate.cli.schedulers import scheduler_options, schedulers_of
from gpustate.core.outcome import NodeStatus
from gpustate.errors import ClusterError, GpustateError, UsageError

if TYPE_CHECKING:
    from gpustate.api import ApplyResult
    from gpustate.cluster.kubeconfig import Kubeconfig
    from gpustate.core.inventory import Inventory
    from gpustate.watch.watcher import Round, Signals


@click.command(cls=common.Verb)
@common.policy_argument
@common.inventory_options
@common.policy_options
@common.lock_options
@max_disruption_option
@rollout_options
@scheduler_options
@objects.object_options
@click.option(
    "--print",
    "printed",
    type=click.Choice(watch_service.KINDS),
    help="Print a systemd unit with these options, the objects of a Deployment, or the recipe of its image; nothing is watched.",
)
@click.option(
    "--image",
    metavar="REF",
    default="",
    help="Image of the Deployment [default: gpustate:VERSION].",
)
def watch(policy: str, printed: str | None, image: str, **options: Any) -> None:
    """Watch the clusters of the nodes, and apply POLICY to nodes that need it.

    A node needs it if no watcher has applied it there, so that all selected nodes do when the first watcher starts;
    after it has rebooted; or when its label nvidia.com/mig.config or nvidia.com/device-plugin.config changes. POLICY
    is read again each time, but a changed POLICY alone is no reason to apply it. There is no confirmation: limit it
    with --serial, --max-unavailable, --max-disruption or `--set rollout.window=...`. One watcher works in a cluster at a time; another
    one waits. SIGTERM ends it after the nodes in progress.
    """
    if printed is not None:
        common.write_out(watch_service.text_of(printed, policy, image, options))
        return
    from gpustate.watch.watcher import Signals, Watcher

    rules.read()
    if options["ignore_scheduler"]:
        raise UsageError("watch needs the nodes' cluster", fix="omit --ignore-scheduler")
    # Errors come before the first connection.
    window = strategy_of(options).beside(common.load_policy(policy, options).rollout).window
    paths = _clusters(common.load_inventory(options, empty=True), options)
    signals = Signals()
    _arm(signals)
    watchers = [
        Watcher(
            path,
            lambda: common.load_inventory(options, reach=False, empty=True, notes_shown=False),
            lambda this: _apply(policy, options, this),
            window,
            _Lines(str(path) if len(paths) > 1 else "").say,
            signals,
            f"watch {policy}",
            options["kubeconfig"] or "",
        )
        for path in paths
    ]
    common.raise_all(_run_all([watcher.run for watcher in watchers], signals))


def _clusters(inventory: Inventory, options: Mapping[str, Any]) -> list[Kubeconfig]:
    """Kubeconfigs of the clusters of an inventory.

    Raises:
        UsageError: there is none.
    """
    from gpustate.cluster.kubeconfig import Kubeconfig, kubeconfig_of

    listed = (Kubeconfig(*cluster) for cluster in inventory.clusters)
    kubeconfigs = (kubeconfig_of(node, options["kubeconfig"] or "") for node in inventory)
    paths = [path for path in dict.fromkeys((*listed, *kubeconfigs)) if path]
    if not paths:
        raise UsageError(
            "no node has a kubeconfig",
            fix="pass --kubeconfig FILE, set the inventory variable gpustate_kubeconfig, or use -i kubernetes:",
        )
    return paths


def _run_all(works: list[Callable[[], None]], signals: Signals) -> list[GpustateError]:
    """Watch every cluster; once one watcher fails, the others end as well. Their errors."""
    errors: list[GpustateError] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except GpustateError as error:
            errors.append(error)
        except Exception as error:  # noqa: BLE001  a thread's exception would only be printed
            errors.append(GpustateError(f"{type(error).__name__}: {error} (a bug in gpustate)"))
        finally:
            signals.ending = True

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # signals are handled between two looks
            thread.join(0.5)
    return errors


def _arm(signals: Signals) -> None:
    """End on SIGTERM and SIGINT."""

    def hit(number: int, frame: object) -> None:
        signals.end()

    signal.signal(signal.SIGINT, hit)
    signal.signal(signal.SIGTERM, hit)


def _apply(source: str, options: dict[str, Any], this: Round) -> ApplyResult:
    """One round, recorded as the apply that it is."""
    from gpustate import api
    from gpustate.engine import fleet, records

    policy = common.load_policy(source, options)
    run_options = {**options, "limit": ",".join(node.name for node in this.inventory.nodes)}
    clusters = objects.clusters(policy, source, this.inventory, options, absent=False)
    clusters = clusters and replace(clusters, run=this.run)
    record: Any = None

    def started(run: str) -> None:
        nonlocal record
        record = records.begin(
            run,
            "apply",
            source,
            run_options,
            person=fleet.person(),
            born=fleet.born(fleet.controller().pid),
            created=clock.now(),
        )

    # Nodes that join are out of service until they are set up.
    strategy = strategy_of(options).beside(policy.rollout)
    result = api.apply(
        policy,
        this.inventory,
        lock=common.lock_file(source, options) or False,
        forks=options["forks"],
        max_disruption=options["max_disruption"],
        strategy=replace(
            strategy,
            serial=strategy.serial or ("100%",),
            max_unavailable=strategy.max_unavailable or "100%",
        ),
        schedulers=replace(schedulers_of(options), fence=this.fence),
        stop=this.stop,
        started=started,
        run=this.run,
        source=source,
        context=context("apply", source, run_options),
        before_change=clusters.stage if clusters is not None else None,
        before_return=clusters.label if clusters is not None else None,
    )
    over = not (result.interrupted or result.skipped or result.stopped)
    records.end(
        record,
        interrupted=not over,
        outcome={"exit_code": result.exit_code, "summary": result.summary, "ended": clock.now()},
    )
    if clusters is not None and not result.interrupted:
        this.fence()
        good = [node.name for node in result.nodes if node.status is NodeStatus.OK]
        pods_on = frozenset(this.names[name] for name in good)
        _check(clusters.apply(result.nodes, this.stop, pods_on))
    return result


def _check(applied: list[dict[str, Any]]) -> None:
    """Refuse objects that were not applied.

    Raises:
        ClusterError: they were not.
    """
    from gpustate.api.objects import codes

    if not codes({"clusters": applied}):
        return
    words = [
        text
        for data in applied
        for name in ("failures", "refusals", "unready")
        for text in data.get(name, ())
    ]
    refused = [
        f"{row['object']}: {row.get('reason', 'refused')}"
        for data in applied
        for row in data["objects"]
        if row["action"] == "refused"
    ]
    raise ClusterError(f"objects of the cluster: {'; '.join([*words, *refused][:4])}")


class _Lines:
    """Lines for a log, each with the time.

    Args:
        cluster: which of several; empty: there is one.
    """

    def __init__(self, cluster: str) -> None:
        self._lead = f"{cluster}: " if cluster else ""

    def say(self, text: str) -> None:
        """Print a line."""
        from gpustate.formats.masking import mask
        from gpustate.formats.words import printable

        click.echo(f"{clock.now()} {printable(mask(self._lead + text))}")
