"""Verbs that installed packages add through entry points::

    [project.entry-points."gpustate.verbs"]
    lab = "gpustate_lab.verb:group"

Surprising: entry points are read only for ``--help`` and for verbs that gpustate itself does not have, so its
own verbs are not slowed down.

Sources:
    Python Packaging User Guide, "Entry points specification".
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import click

from gpustate.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "gpustate.verbs"
#: Folders, in gpustate's repository, of the packages that add verbs; for a hint if they are not installed.
FOLDERS = {"lab": "./lab"}


def verbs(names: Collection[str]) -> dict[str, EntryPoint]:
    """Verbs of installed packages, by name.

    Raises:
        UsageError: two packages define one verb, or one defines a verb of gpustate's ``own``.
    """
    from importlib import metadata  # which a verb of gpustate's own does without

    points: dict[str, EntryPoint] = {}
    for point in metadata.entry_points(group=GROUP):
        owner = "gpustate" if point.name in names else _owner(points.get(point.name))
        if owner:
            raise UsageError(
                f"verb {point.name!r} is defined by both {owner} and {_owner(point)}",
                fix="uninstall one of them",
            )
        points[point.name] = point
    return points


def load(point: EntryPoint) -> click.Command:
    """Import a verb.

    Raises:
        UsageError: its package is broken.
    """
    try:
        command = point.load()
    except Exception as error:
        raise UsageError(
            f"verb {point.name!r} of {_owner(point)} cannot be imported: {type(error).__name__}: {error}",
            fix="reinstall or uninstall the package",
        ) from error
    if not isinstance(command, click.Command):
        raise UsageError(f"verb {point.name!r} of {_owner(point)}: {point.value} is not a command")
    return command


def summary(point: EntryPoint) -> str:
    """One line of help, or the error of a broken package."""
    try:
        return load(point).get_short_help_str(limit=200)
    except UsageError as error:
        return f"unavailable: {error.message}"


def _owner(point: EntryPoint | None) -> str:
    if point is None:
        return ""
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value
