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
        alone: name and version of those that no repository offers.
    """

    alone: tuple[tuple[str, str], ...] = ()

    def needed(self, states: Iterable[AnyState]) -> tuple[str, ...]:
        """Those that states of a rollback name by their versions, as ``NAME VERSION``."""
        wanted = {word for state in states for word in _texts(parameters(state))}
        return tuple(
            f"{name} {version}"
            for name, version in self.alone
            if wanted & {version, dpkg.upstream_version(version)}
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
        kept, _, offered = answer.text.partition("=offered\n")
        have = {
            (name, one.version)
            for name, candidates in dpkg.parse_madison(offered).items()
            for one in candidates
        }
        found = {
            (name, one.version)
            for name, candidates in dpkg.parse_madison(kept).items()
            for one in candidates
        }
        return KeptPackages(tuple(sorted(found - have)))

    def placeholder(self) -> KeptPackages:
        return KeptPackages()
