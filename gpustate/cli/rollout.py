"""Options of rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from gpustate.cli import common

#: Options beside ``--serial`` and ``--max-failures``.
rollout_options = (
    click.option(
        "--canary",
        metavar="PATTERN",
        default="",
        callback=common.not_empty,
        help="Process these nodes first, in a wave of their own; a pattern as for --limit.",
    ),
    click.option(
        "--soak",
        metavar="TIME",
        default="",
        callback=common.not_empty,
        help="Wait this long between two waves (30m, 2h), and check the nodes changed so far meanwhile.",
    ),
    click.option(
        "--soak-alerts",
        metavar="URL",
        default="",
        callback=common.not_empty,
        help="Stop the rollout if this Alertmanager or Prometheus has a critical alert of a changed node during the soak time.",
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
)


def strategy_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """What these options say; an older record of a run says nothing."""
    keys = ("canary", "soak", "soak_alerts", "window", "spread")
    texts = {key: str(options.get(key) or "") for key in keys}
    return {**texts, "soak_pods": bool(options.get("soak_pods"))}
