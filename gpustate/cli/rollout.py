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
        help="Nodes of a wave of their own before all others, by a pattern as of -l.",
    ),
    click.option(
        "--soak",
        metavar="TIME",
        default="",
        callback=common.not_empty,
        help="Time between two waves in which the nodes done so far are validated again: 30m, 2h.",
    ),
    click.option(
        "--soak-alerts",
        metavar="URL",
        default="",
        callback=common.not_empty,
        help="Alertmanager or Prometheus: a critical alert of a node that fires during the soak time stops the rollout.",
    ),
    click.option(
        "--soak-pods",
        is_flag=True,
        help="At the end of the soak time run a pod with a GPU on each Node that was changed, as validate does.",
    ),
    click.option(
        "--window",
        metavar="TIMES",
        default="",
        callback=common.not_empty,
        help="Begin nodes only in these hours: 'Mon-Fri 22:00-05:00 Europe/Berlin'; several are separated by ; [default time zone: UTC].",
    ),
    click.option(
        "--spread",
        metavar="VARIABLE",
        default="",
        callback=common.not_empty,
        help="At most one node at a time with the same value of this inventory variable or Node label, for example gpustate_rack.",
    ),
)


def strategy_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """What these options say; an older record of a run says nothing."""
    keys = ("canary", "soak", "soak_alerts", "window", "spread")
    texts = {key: str(options.get(key) or "") for key in keys}
    return {**texts, "soak_pods": bool(options.get("soak_pods"))}
