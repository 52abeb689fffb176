"""Options of rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common

if TYPE_CHECKING:
    from gpustate.core.inventory import Inventory
    from gpustate.rollout.strategy import Strategy

#: Sizes of waves and limits, which a plan has too.
wave_options = common.options(
    click.option(
        "--serial",
        metavar="SIZES",
        default="",
        callback=common.not_empty,
        help="Sizes of the waves, as numbers or percentages of all nodes; the last one repeats [default: the policy's, else 1,10%,50% for a change that costs drain or more, else one wave].",
    ),
    click.option(
        "--canary",
        metavar="N|PATTERN",
        default="",
        callback=common.not_empty,
        help="Process N nodes, or these nodes, first, in a wave of their own; a pattern as for --limit [default: the policy's].",
    ),
    click.option(
        "--max-failures",
        type=common.WholeNumber(min=1),
        metavar="N",
        help="Start no further node once N have failed, were refused or could not be reached [default: the policy's, else finish the wave of the first failure, then stop].",
    ),
    click.option(
        "--max-unavailable",
        metavar="N|N%",
        default="",
        callback=common.not_empty,
        help="Nodes with GPUs of a Kubernetes or Slurm cluster, or percentage of all of them, that may be out of service at a time, including those that are cordoned, drained or not ready for other reasons; nodes of no cluster are only limited by --serial and --forks [default: the policy's, else 25%].",
    ),
    heading="Waves",
)

#: All options of a rollout.
rollout_options = common.options(
    wave_options,
    click.option(
        "--soak",
        metavar="TIME",
        default="",
        callback=common.not_empty,
        help="Wait this long between two waves (30m, 2h), and check the nodes changed so far meanwhile.",
    ),
    click.option(
        "--soak-pods",
        is_flag=True,
        help="At the end of the soak time, run a pod with a GPU on each changed Node, as validate does.",
    ),
    click.option(
        "--window",
        metavar="TIMES",
        default="",
        callback=common.not_empty,
        help="Start nodes only in this maintenance window, and wait for it otherwise; nodes in progress finish: 'Mon-Fri 22:00-05:00 Europe/Berlin'; separate several by ';' [default time zone: UTC].",
    ),
    click.option(
        "--spread",
        metavar="VARIABLE",
        default="",
        callback=common.not_empty,
        help="Process one node at a time per value of this inventory variable or Node label, for example gpustate_rack.",
    ),
    heading="Waves",
)


def strategy_of(options: Mapping[str, Any]) -> Strategy:
    """What these options say; an older record of a run, and a verb without waves, say nothing."""
    from gpustate.rollout.strategy import Strategy

    names = ("canary", "soak", "window", "spread", "max_unavailable")
    return Strategy(
        serial=common.serial(options.get("serial")),
        max_failures=int(options.get("max_failures") or 0),
        soak_pods=bool(options.get("soak_pods")),
        **{name: str(options.get(name) or "").strip() for name in names},
    )


def wave_sizes(
    strategy: Strategy, inventory: Inventory, document: Mapping[str, Any] | None = None
) -> tuple[int, ...]:
    """Number of nodes of each wave; empty: there is one, or that depends on what the nodes cost.

    Args:
        strategy: with the policy's values.
        inventory: the nodes.
        document: their plan.

    Raises:
        UsageError: an option is invalid.
    """
    from gpustate.plan.document import changing

    cost = None if document is None else changing(document)
    rollout = strategy.foreseen(inventory, cost)
    return rollout.wave_sizes if rollout.words else ()
