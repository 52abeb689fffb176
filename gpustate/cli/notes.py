"""Notes on standard error: settings without effect that need not be mistakes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from gpustate.errors import UsageError

if TYPE_CHECKING:
    from gpustate.core.inventory import Inventory
    from gpustate.core.policy import Policy


def print_notes(lines: Iterable[str]) -> None:
    """Print each as a note."""
    from gpustate.formats.words import printable

    for line in lines:
        click.echo(printable(f"gpustate: note: {line}"), err=True)


def report_warnings(policy: Policy) -> None:
    """Print what the policy's file says and nobody carries out, such as a misspelt key."""
    from gpustate.formats.words import printable

    for note in policy.notes:
        if ": warning: " in note:
            click.echo(printable(f"gpustate: {note}"), err=True)


def report_left_out_objects(policy: Policy, options: Mapping[str, Any]) -> None:
    """Print that a policy's objects of the cluster are not part of the run; notes of an Operator file say so themselves."""
    if policy.cluster is not None and not policy.release and not options.get("cluster_objects"):
        print_notes(["objects of the cluster (cluster:) are left out; add --cluster-objects"])


def report_unknown_targets(
    inventory: Inventory, policy: Policy, source: str, options: Mapping[str, Any]
) -> None:
    """Print groups and nodes that the policy names and the inventory does not have.

    Raises:
        UsageError: the command line names one, which is for this inventory alone.
    """
    from gpustate.core.unknown_targets import describe_unknown_targets

    files = [*(options.get("values") or ()), *(text[1:] for text in options.get("patch") or ())]
    lines = describe_unknown_targets(policy, inventory, source)
    for line in lines:
        if line.startswith(("--set ", "--patch", *(f"{file}:" for file in files))):
            raise UsageError(line)
    print_notes(lines)
