"""Packages that nodes keep for a rollback, and which of them no repository offers any more.

``apt_keep`` of the node program keeps what an installation replaces. A rollback is offered them beside the packages
of the repositories.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from gpustate import shell
from gpustate.core.building import parameters
from gpustate.core.queries import Answer, Query
from gpustate.core.state import AnyState
from gpustate.formats import dpkg


@dataclass(frozen=True, slots=True)
class KeptPackages:
    """What a node keeps.

    Args:
        alone: name and version of those that no repository offers and that are not installed.
    """

    alone: tuple[tuple[str, str], ...] = ()

    def needed(self, states: Iterable[AnyState]) -> tuple[str, ...]:
        """Those that states of a rollback name, as ``NAME VERSION``: by ``locked``, or else by a version in their parameters."""
        pairs: set[tuple[str, str]] = set()
        words: set[str] = set()
        for given in map(parameters, states):
            locked = given.get("locked")
            if locked:
                pairs |= set(locked.items())
            else:
                words |= set(_texts(given))
        return tuple(
            f"{name} {version}"
            for name, version in self.alone
            if (name, version) in pairs or words & {version, dpkg.upstream_version(version)}
        )


def _texts(value: object) -> Iterable[str]:
    """Every text in plain data."""
    return json.dumps(value).split('"')[1::2]


@dataclass(frozen=True, slots=True)
class KeptPackagesQuery(Query[KeptPackages]):
    """The packages that a node keeps."""

    def script(self) -> str:
        return shell.load("kept_packages", "gpustate.engine")

    def parse(self, answer: Answer) -> KeptPackages:
        kept, others = (
            {
                (name, one.version)
                for name, candidates in dpkg.parse_madison(rows).items()
                for one in candidates
            }
            for rows in answer.text.partition("=others\n")[::2]
        )
        return KeptPackages(tuple(sorted(kept - others)))

    def placeholder(self) -> KeptPackages:
        return KeptPackages()
