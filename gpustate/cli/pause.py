"""``gpustate pause`` and ``gpustate abort``: hold a running rollout, or end it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpustate import clock
from gpustate.cli import common
from gpustate.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpustate.rollout.running import Running


def _options(function: common.F) -> common.F:
    for option in reversed(
        (
            click.argument("run", required=False),
            click.option(
                "-i",
                "--inventory",
                metavar="SOURCE",
                envvar="GPUSTATE_INVENTORY",
                help="Find the run by the clusters of this inventory.",
            ),
            click.option(
                "--kubeconfig",
                metavar="FILE",
                help="Find the run in this cluster [default: the inventory variable gpustate_kubeconfig].",
            ),
        )
    ):
        function = option(function)
    return function


@click.command()
@_options
def pause(run: str | None, inventory: str | None, kubeconfig: str | None) -> None:
    """Pause RUN: no further node is started, those in progress finish. Lift the pause with gpustate resume.

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
    from gpustate.rollout.board import Control

    def ask(found: Running) -> None:
        found.ask(Control(found.run, action, fleet.controller().name, clock.now()).text())
        what = (
            "no further node is started"
            if action == "pause"
            else "it ends after the nodes in progress"
        )
        if found.silent:
            what = f"its controller has not renewed the Lease since {found.silent}, and may be dead"
        click.echo(f"run {found.run} of {found.person}: {what}")

    if not with_running(run, inventory, kubeconfig, ask):
        raise UsageError(
            f"run {run} is not running" if run else "no run is running",
            fix="list runs that can be resumed: gpustate resume --list; name the cluster of a run of another machine with -i or --kubeconfig",
        )


def with_running(
    run: str | None,
    inventory: str | None,
    kubeconfig: str | None,
    ask: Callable[[Running], None],
    *,
    paused: bool = False,
) -> bool:
    """Do something with the run that is meant, while its clusters are connected; whether there is one.

    Args:
        run: its id; ``None``: the only one.
        inventory, kubeconfig: name clusters.
        ask: what is done.
        paused: only a run that is paused.

    Raises:
        UsageError: more than one may be meant.
    """
    from gpustate.core.inventory import Inventory, InventoryNode
    from gpustate.rollout.access import Accesses
    from gpustate.rollout.running import running_here, running_in

    def meant(found: Sequence[Running]) -> list[Running]:
        return [one for one in found if run in (None, one.run) and (one.control or not paused)]

    here = meant(running_here())
    places = Inventory("")
    if inventory and not here:
        from gpustate import api

        places = api.load_inventory(inventory)
    elif kubeconfig and not here:
        places = Inventory("", (InventoryNode("cluster"),))
    access = Accesses(places, kubeconfig or "")
    try:
        found = here or meant(running_in(access))
        names = sorted({one.run for one in found})
        if len(names) > 1:
            raise UsageError("several runs are running", fix=f"name one of: {', '.join(names)}")
        for one in found:
            ask(one)
        return bool(found)
    finally:
        access.close()
