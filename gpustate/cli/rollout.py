"""Options of rollouts, and what ``--set`` says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common

if TYPE_CHECKING:
    from gpustate.core.inventory import Inventory
    from gpustate.rollout.strategy import Strategy

#: Values of the section ``rollout`` that have options of their own.
rollout_options = common.options(
    click.option(
        "--serial",
        metavar="SIZES",
        default="",
        callback=common.not_empty,
        help="Sizes of waves; the last repeats [default: 1,10%,50% if nodes are drained, else one].",
    ),
    click.option(
        "--max-failures",
        type=common.Number(1),
        metavar="N",
        help="Start no further node once N have failed.",
    ),
    click.option(
        "--max-unavailable",
        metavar="N|N%",
        default="",
        callback=common.not_empty,
        help="Nodes of a cluster out of service [default: 25%].",
    ),
    heading="Rollout",
)


def sections_of(options: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[tuple[str, ...], str]]:
    """What ``--set`` says of ``rollout`` and ``drain``, as plain data, and its places."""
    changes = common.changes_of(options)
    return changes.sections() if changes else ({}, {})


def strategy_of(options: Mapping[str, Any]) -> Strategy:
    """What these options say; an older record of a run, and a verb without waves, say nothing."""
    from gpustate.core.rollout import overridden
    from gpustate.rollout.strategy import Strategy

    data, places = sections_of(options)
    strategy = overridden(Strategy(), data.get("rollout"), places)
    return replace(
        strategy,
        serial=common.serial(options.get("serial")) or strategy.serial,
        max_failures=int(options.get("max_failures") or strategy.max_failures),
        max_unavailable=str(options.get("max_unavailable") or "").strip()
        or strategy.max_unavailable,
    )


def rolls_back(strategy: Strategy, options: Mapping[str, Any]) -> bool:
    """Whether nodes that fail are rolled back: those of an upgrade are, unless something says otherwise."""
    value = strategy.rollback_on_failure
    return bool(options.get("upgrade")) if value is None else value


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
