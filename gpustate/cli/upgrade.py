"""``gpustate upgrade``: upgrade the driver in waves, with a rollback where it fails."""

from __future__ import annotations

from typing import Any

import click

from gpustate.cli import common, objects
from gpustate.cli.apply import apply_options, apply_policy
from gpustate.cli.plan import check_accepted, driver_option


@click.command(cls=common.Verb)
@common.policy_argument
@driver_option(required=True)
@common.inventory_options
@common.policy_options
@apply_options
@objects.object_options
def upgrade(policy: str, **options: Any) -> None:
    """Apply POLICY with another driver version, and roll back a wave in which a node fails, unless
    `--set rollout.rollback_on_failure=false`.

    What has to match the driver (Fabric Manager, IMEX, CDI) follows it. Nothing is changed if a node would refuse
    that driver, for example because its repository does not offer it. POLICY's version and a lock file are ignored
    and stay as they are: set the new version there too, or the next apply goes back to theirs.
    """
    apply_policy(
        policy,
        {**options, "lock": common.NO_LOCK, "upgrade": True},
        verb="upgrade",
        check=check_accepted,
    )
