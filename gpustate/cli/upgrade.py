"""``gpustate upgrade``: upgrade the driver in waves, with a rollback where it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common
from gpustate.cli.apply import apply_options, apply_policy
from gpustate.cli.plan import driver_option
from gpustate.core.outcome import Outcome, StateResult
from gpustate.errors import RefusedError

if TYPE_CHECKING:
    from gpustate import api

#: What a forecast says of a driver that will be refused.
_AHEAD = "will be refused: "


@click.command(cls=common.Verb)
@common.policy_argument
@driver_option(required=True)
@common.inventory_options
@common.policy_options
@apply_options
@common.options(
    click.option(
        "--rollback-on-failure/--no-rollback-on-failure",
        default=True,
        show_default=True,
        help="Roll back a node whose change failed and, if that stops the run, the other nodes of its wave (exit 7).",
    ),
    heading="Waves",
)
def upgrade(policy: str, **options: Any) -> None:
    """Apply POLICY with another driver version, and roll back a wave in which a node fails.

    What has to match the driver (Fabric Manager, IMEX, CDI) follows it. Nothing is changed if a node would refuse
    that driver, for example because its repository does not offer it. POLICY's version and a lock file are ignored
    and stay as they are: set the new version there too, or the next apply goes back to theirs.
    """
    apply_policy(policy, {**options, "no_lock": True}, verb="upgrade", check=check_accepted)


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
            fix="name another version, or leave these nodes out with --exclude",
        )


def _refusal(state: StateResult) -> str:
    """Why a driver cannot be installed, as far as it is known yet; empty if nothing speaks against it."""
    if state.outcome is Outcome.REFUSED:
        return state.reason
    ahead = (note.partition(_AHEAD)[2] for note in state.plan.notes if note.startswith(_AHEAD))
    return next(ahead, "")
