"""Options for nodes that a scheduler fills with work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common
from gpustate.cli.rollout import sections_of
from gpustate.errors import UsageError

if TYPE_CHECKING:
    from gpustate.rollout.options import Schedulers


#: Options of everything that may take nodes out of service.
scheduler_options = common.options(
    common.kubeconfig_option("Cluster of the nodes"),
    click.option("--ignore-scheduler", is_flag=True, help="Neither cordon nor drain nodes."),
    heading="Rollout",
)


def schedulers_of(options: Mapping[str, Any]) -> Schedulers:
    """What these options say; an older record of a run says nothing."""
    from gpustate.core.drain import drain_overrides
    from gpustate.rollout.options import Schedulers

    data, places = sections_of(options)
    overrides = drain_overrides(data.get("drain"), places)
    _check(options, data.get("drain"))
    return Schedulers(
        kubeconfig=options.get("kubeconfig") or "",
        ignore=bool(options.get("ignore_scheduler")),
        overrides=overrides,
    )


def _check(options: Mapping[str, Any], drain: object) -> None:
    """Refuse settings of a drain where no node is drained, and a kubeconfig that is not there."""
    if options.get("ignore_scheduler") and drain:
        raise UsageError(
            "--set drain has no effect with --ignore-scheduler, which drains no node",
            fix="leave out one of them",
        )
    from gpustate.inventory.kubernetes import IN_CLUSTER

    path = options.get("kubeconfig")
    if path and path != IN_CLUSTER:
        common.check_readable(os.path.expanduser(path), "kubeconfig", "--kubeconfig")
