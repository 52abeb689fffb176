"""Options for nodes that a scheduler fills with work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common

if TYPE_CHECKING:
    from gpustate.rollout.options import Schedulers

_DRAIN_S = 300


#: Options of everything that may take nodes out of service.
scheduler_options = common.options(
    click.option(
        "--kubeconfig",
        metavar="FILE",
        help="Cordon, drain and uncordon nodes with a kubelet by this file's current context [default: the variable gpustate_kubeconfig].",
    ),
    click.option(
        "--ignore-scheduler",
        is_flag=True,
        help="Change nodes without draining them, whatever runs there.",
    ),
    click.option(
        "--max-unavailable",
        metavar="N|N%",
        default="",
        help="Nodes of a cluster that may be out of service at a time, whoever took them out [default: no limit].",
    ),
    click.option(
        "--drain-timeout",
        type=click.IntRange(min=0),
        default=_DRAIN_S,
        show_default=True,
        metavar="SECONDS",
        help="Give up draining a node after this time; 0 waits forever.",
    ),
    click.option(
        "--grace-period",
        type=click.IntRange(min=0),
        metavar="SECONDS",
        help="Time a pod has to terminate [default: its own].",
    ),
    click.option(
        "--delete-emptydir-data",
        is_flag=True,
        help="Also evict pods with emptyDir volumes; their data is deleted.",
    ),
    click.option(
        "--drain-force",
        is_flag=True,
        help="Also evict pods that no controller would create again.",
    ),
)


def schedulers_of(options: Mapping[str, Any]) -> Schedulers:
    """What these options say; an older record of a run says nothing."""
    from gpustate.rollout.options import Schedulers
    from gpustate.schedulers.base import DrainPolicy

    return Schedulers(
        kubeconfig=options.get("kubeconfig") or "",
        ignore=bool(options.get("ignore_scheduler")),
        max_unavailable=str(options.get("max_unavailable") or "").strip(),
        drain=DrainPolicy(
            force=bool(options.get("drain_force")),
            delete_empty_dir=bool(options.get("delete_emptydir_data")),
            grace_period_s=options.get("grace_period"),
            timeout_s=float(options.get("drain_timeout", _DRAIN_S)),
        ),
    )
