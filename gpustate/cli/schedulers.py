"""Options for nodes that a scheduler fills with work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common
from gpustate.errors import UsageError

if TYPE_CHECKING:
    from gpustate.rollout.options import Schedulers


#: Options that say how a node is drained.
OF_DRAINS = (
    *("drain_timeout", "grace_period", "delete_emptydir_data", "drain_force"),
    *("pod_selector", "wait_selector", "wait_timeout"),
)

#: Options of everything that may take nodes out of service.
scheduler_options = common.options(
    common.kubeconfig_option(
        "Cluster whose Nodes are cordoned, drained and uncordoned: the current context of this kubeconfig, or 'in-cluster'"
    ),
    click.option(
        "--ignore-scheduler",
        is_flag=True,
        help="Change nodes without cordoning or draining them, whatever runs there.",
    ),
    click.option(
        "--drain-timeout",
        type=common.Seconds(min=0),
        metavar="SECONDS",
        help="Timeout of a drain: pods that are left keep the node from being changed, Slurm jobs that are left are requeued; 0: no timeout [default: the policy's, else 300 for pods, 0 for jobs].",
    ),
    click.option(
        "--grace-period",
        type=common.Seconds(min=0),
        metavar="SECONDS",
        help="Time that an evicted pod has to terminate [default: the policy's, else the pod's own].",
    ),
    click.option(
        "--delete-emptydir-data/--keep-emptydir-data",
        default=None,
        help="Also evict pods with emptyDir volumes; their data is deleted [default: the policy's, else keep].",
    ),
    click.option(
        "--drain-force/--no-drain-force",
        default=None,
        help="Also delete pods without a controller, which nothing creates again [default: the policy's, else no].",
    ),
    click.option(
        "--pod-selector",
        metavar="SELECTOR",
        help="Evict only pods with these labels [default: the policy's, else all].",
    ),
    click.option(
        "--wait-selector",
        metavar="SELECTOR",
        help="Wait for pods with these labels to complete before any is evicted [default: the policy's, else none].",
    ),
    click.option(
        "--wait-timeout",
        type=common.Seconds(min=0),
        metavar="SECONDS",
        help="Evict pods of --wait-selector after this time; 0: no timeout [default: the policy's, else 0].",
    ),
    heading="Drain",
)


def is_given(options: Mapping[str, Any], name: str) -> bool:
    """Whether an option is given; zero and an empty text count where they replace the policy's value."""
    value = options.get(name)
    return value is not None if name in OF_DRAINS else bool(value)


def schedulers_of(options: Mapping[str, Any]) -> Schedulers:
    """What these options say; an older record of a run says nothing."""
    from gpustate.core.drain import DrainOverrides
    from gpustate.rollout.options import Schedulers

    _check(options)
    return Schedulers(
        kubeconfig=options.get("kubeconfig") or "",
        ignore=bool(options.get("ignore_scheduler")),
        overrides=DrainOverrides(
            force=options.get("drain_force"),
            delete_empty_dir=options.get("delete_emptydir_data"),
            timeout_s=_seconds(options.get("drain_timeout")),
            pod_selector=options.get("pod_selector"),
            wait_selector=options.get("wait_selector"),
            wait_timeout_s=_seconds(options.get("wait_timeout")),
            grace_period_s=options.get("grace_period"),
        ),
    )


def _check(options: Mapping[str, Any]) -> None:
    """Refuse options of a drain where no node is drained, and a kubeconfig that is not there."""
    given = [name for name in OF_DRAINS if is_given(options, name)]
    if options.get("ignore_scheduler") and given:
        flag = f"--{given[0].replace('_', '-')}"
        raise UsageError(
            f"{flag} has no effect with --ignore-scheduler, which drains no node",
            fix="leave out one of them",
        )
    from gpustate.inventory.kubernetes import IN_CLUSTER

    path = options.get("kubeconfig")
    if path and path != IN_CLUSTER:
        common.check_readable(os.path.expanduser(path), "kubeconfig", "--kubeconfig")


def _seconds(value: int | None) -> float | None:
    return None if value is None else float(value)
