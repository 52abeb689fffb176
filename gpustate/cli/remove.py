"""``gpustate remove``: remove everything a policy installed."""

from __future__ import annotations

from typing import Any

import click

from gpustate.cli import common
from gpustate.cli.apply import apply_options, apply_policy
from gpustate.cli.objects import object_options


@click.command(cls=common.Verb)
@common.policy_argument
@common.inventory_options
@common.set_option
@apply_options
@object_options
def remove(policy: str, **options: Any) -> None:
    """Remove everything that POLICY's states installed on nodes, in reverse order.

    Files that existed before gpustate are restored to their original content.
    """
    apply_policy(policy, options, verb="remove", ensure="absent")
