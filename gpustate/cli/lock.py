"""``gpustate node lock`` and ``gpustate node unlock``: lock nodes against changes by gpustate."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common
from gpustate.errors import EXIT_LOCKED

if TYPE_CHECKING:
    from gpustate.remote.nodeprogram import LockInfo


def _on_all(options: dict[str, Any], script: str) -> None:
    from gpustate.engine import fleet
    from gpustate.engine.ledger import read_lock
    from gpustate.formats.words import printable

    inventory = common.load_inventory(options)
    codes: list[int] = []

    def work(session: Any) -> str:
        answer = session.shell(script)
        text: str = answer.text.strip()
        if answer.status == EXIT_LOCKED:
            codes.append(EXIT_LOCKED)
            lock = read_lock(text.partition("held ")[2])
            return lock.describe() if lock else "held by an unknown holder"
        if answer.status:
            codes.append(1)
        return text

    for node, text, error in fleet.each(inventory.nodes, options["forks"], work):
        if error is not None:
            codes.append(error.exit_code)
        click.echo(printable(f"{node.name}: {error or text}"), err=error is not None)
    common.finish(*codes)


@click.command()
@common.inventory_options
@click.option("--reason", "-m", required=True, help="Reason, shown to others.")
@click.option(
    "--for",
    "duration",
    default="8h",
    show_default=True,
    metavar="TIME",
    help="Duration: 30m, 8h, 7d.",
)
@click.option("--force", is_flag=True, help="Take over a lock that another person holds.")
def lock(reason: str, duration: str, force: bool, **options: Any) -> None:
    """Lock nodes: runs that would change them, also your own, are refused (exit 8) until the lock expires or is released.

    See locks: gpustate status -i INVENTORY, if it names no scheduler.
    """
    from gpustate.engine.fleet import controller, new_run_id
    from gpustate.engine.ledger import LOCKED, lock_script

    time_s = int(time.time())
    info: LockInfo = {
        "run": new_run_id(),
        "holder": controller().name,
        "pid": 0,
        "reason": f"{LOCKED}{reason}",
        "since": time_s,
        "expires": time_s + common.duration_s(duration),
    }
    _on_all(
        options,
        lock_script(info, force=force)
        + '\necho "locked until $(date -u -d @$(cat $G/lock/expires) +%Y-%m-%dT%H:%M:%SZ)"',
    )


@click.command()
@common.inventory_options
@click.option(
    "--force",
    is_flag=True,
    help="Also release locks that another person or a run holds; first make sure that no run is in progress there.",
)
def unlock(force: bool, **options: Any) -> None:
    """Release your locks that `gpustate node lock` set."""
    from gpustate.engine.fleet import controller
    from gpustate.engine.ledger import unlock_script

    _on_all(options, unlock_script(controller().name, force=force))
