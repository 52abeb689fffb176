"""The start-up taint of Nodes, as verbs take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gpustate.manifests.settings import STARTUP_TAINT

if TYPE_CHECKING:
    from gpustate.core.policy import Policy

startup_taint_option = click.option(
    "--startup-taint",
    metavar="KEY",
    help=f"Key of a taint that your kubelets or node groups give new Nodes: components tolerate it, and it is removed once a Node passes validation [default: the policy's, {STARTUP_TAINT}].",
)


def taint_of(policy: Policy, options: Mapping[str, Any]) -> str:
    """The key of the start-up taint.

    Raises:
        PolicyError: it is not the key of a taint.
    """
    from gpustate.manifests.cluster_part import settings_of

    settings = settings_of(policy)
    key = options.get("startup_taint") or settings.startup_taint
    return replace(settings, startup_taint=key).startup_taint
