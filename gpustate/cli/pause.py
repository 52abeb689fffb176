"""``gpustate rollout pause`` and ``gpustate rollout abort``: hold a running rollout, or end it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from gpustate import clock
from gpustate.cli import common
from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpustate.rollout.running import Running


_options = common.options(
    click.argument("run", required=False),
    click.option(
        "-i",
        "--inventory",
        metavar="SOURCE",
        envvar="GPUSTATE_INVENTORY",
        help="Find the run by the clusters of this inventory.",
    ),
    common.kubeconfig_option("Find the run in this cluster"),
)


@click.command()
@_options
def pause(run: str | None, inventory: str | None, kubeconfig: str | None) -> None:
    """Pause RUN: no further node is started, those in progress finish. Lift the pause with gpustate rollout resume.

    RUN is found on this machine, or by the Lease of its cluster from any machine. Without RUN, the one that is running.
    """
    _ask("pause", run, inventory, kubeconfig)


@click.command()
@_options
def abort(run: str | None, inventory: str | None, kubeconfig: str | None) -> None:
    """Abort RUN: no further node is started, those in progress finish and return to service; RUN exits with code 6.

    Nodes that are being drained return to service unchanged. Changed nodes stay changed: see gpustate rollback.

    RUN is found on this machine, or by the Lease of its cluster from any machine. Without RUN, the one that is running.
    """
    _ask("abort", run, inventory, kubeconfig)


def _ask(action: str, run: str | None, inventory: str | None, kubeconfig: str | None) -> None:
    from gpustate.engine import fleet
    from gpustate.rollout.board import ABORT, Control

    def ask(live: Running) -> None:
        before = live.control
        title = f"run {live.run} of {live.person}"
        if before is not None and before.action == ABORT:
            click.echo(f"{title} was {before} already: it ends after the nodes in progress")
            return
        request = Control(live.run, action, fleet.controller().name, clock.now())
        if before is not None and before.action == action:
            request = before  # it counts from the first time
        answered = live.ask(request.text())
        effect = "no further node is started"
        if action == ABORT:
            effect = "it ends after the nodes in progress"
        elif before is not None:
            effect += f"; it was {before} already"
        if live.silent:
            effect = (
                f"its controller has not renewed the Lease since {live.silent}, and may be dead"
            )
        elif not answered:
            effect = unanswered()
        click.echo(f"{title}: {effect}")

    search = with_running(run, inventory, kubeconfig, ask)
    if not search.asked:
        raise not_running(action, run, inventory, search)


def unanswered() -> str:
    """What is so where a run of this machine has not taken up a request."""
    from gpustate.rollout.running import ANSWER_S

    return (
        f"it has not taken up the request within {ANSWER_S:g} s; see: gpustate status -i INVENTORY"
    )


def not_running(verb: str, run: str | None, inventory: str | None, search: Search) -> UsageError:
    """The error that the run which is meant was not found."""
    problem = f"run {run} is not in progress" if run else "no run is in progress"
    problem += " on this machine"
    beside = f"; in progress: {', '.join(search.others)}" if search.others else ""
    if search.clusters:
        does = "does it hold" if run else "does one hold"
        problem += f", nor {does} the Lease of {', '.join(search.clusters)}"
        fix = f"until a run has cordoned a node, and without a scheduler, {verb} it on its own machine"
    elif search.looked:
        problem += f", and {inventory} names no scheduler"
        fix = f"name its cluster with --kubeconfig FILE, or {verb} it on its own machine"
    else:
        fix = f"if it runs on another machine, name its cluster: gpustate rollout {verb} -i INVENTORY, or --kubeconfig FILE"
    return UsageError(f"{problem}{beside}", fix=fix)


@dataclass(frozen=True, slots=True)
class Search:
    """What was found of the run that is meant.

    Args:
        asked: it was found, and asked.
        running: runs in progress that may be meant, though they are not paused.
        others: other runs in progress, with their persons.
        clusters: whose Leases were read.
        looked: clusters were named.
    """

    asked: bool
    running: Sequence[Running] = ()
    others: Sequence[str] = ()
    clusters: Sequence[str] = ()
    looked: bool = False


def with_running(
    run: str | None,
    inventory: str | None,
    kubeconfig: str | None,
    ask: Callable[[Running], None],
    *,
    paused: bool = False,
) -> Search:
    """Do something with the run that is meant, while its clusters are connected.

    Args:
        run: its id; ``None``: the only one.
        inventory, kubeconfig: name clusters, whose Leases are read where no run of this machine is meant.
        ask: what is done.
        paused: only with a run that is paused or aborted.

    Raises:
        UsageError: more than one may be meant.
    """
    from gpustate.rollout.access import Accesses
    from gpustate.rollout.running import each_once, running_here, running_in

    def meant(runs: Sequence[Running]) -> list[Running]:
        return [live for live in runs if run in (None, live.run) and (live.control or not paused)]

    all_runs = running_here()
    chosen = meant(all_runs)
    looked = not chosen and bool(inventory or kubeconfig)
    access = Accesses(
        clusters_of(inventory, kubeconfig) if looked else Inventory(""), kubeconfig or ""
    )
    try:
        if looked:
            in_clusters = each_once(running_in(access))
            chosen = meant(in_clusters)
            all_runs = each_once([*in_clusters, *all_runs])
        names = [item.run for item in chosen]
        if len(names) > 1:
            phase = "paused" if paused else "running"
            raise UsageError(
                f"several runs are {phase}", fix=f"name one of: {', '.join(sorted(names))}"
            )
        for item in chosen:
            ask(item)
        return Search(
            bool(chosen),
            [item for item in all_runs if run in (None, item.run)],
            [f"{item.run} of {item.person}" for item in all_runs if run not in (None, item.run)],
            [cluster.title for cluster in access.leased()],
            looked,
        )
    finally:
        access.close()


def clusters_of(inventory: str | None, kubeconfig: str | None) -> Inventory:
    """The nodes that name clusters; a kubeconfig alone is enough."""
    if inventory:
        from gpustate import api

        return api.load_inventory(inventory)
    return Inventory("", (InventoryNode("cluster"),) if kubeconfig else ())
