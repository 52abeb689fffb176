"""What somebody put where steps have to write or start something, found before the first of them.

A unit that is masked is started by systemd for nobody, whatever enables it. A symbolic link in the place of
a file is followed by no step: it belongs to whoever manages what it points to.

Sources:
    systemctl(1), ``mask``; systemd.unit(5): a unit file that is empty, or a link to ``/dev/null``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpustate import shell
from gpustate.core.file_queries import behind_link
from gpustate.core.queries import Answer, Query
from gpustate.core.step import Step


@dataclass(frozen=True, slots=True)
class MaskedUnitsQuery(Query[frozenset[str]]):
    """Names of the units that are masked, for good or until the next boot; starts no program."""

    def script(self) -> str:
        return shell.load("masked_units", "gpustate.core")

    def parse(self, answer: Answer) -> frozenset[str]:
        return frozenset(answer.text.split())

    def placeholder(self) -> frozenset[str]:
        return frozenset()


def in_the_way(
    steps: Iterable[Step], masked: frozenset[str], links: Mapping[str, str]
) -> str | None:
    """Why steps cannot be done, and the next move; ``None`` where nothing is in their way.

    Args:
        steps: of one state.
        masked: names of units.
        links: path of a symbolic link where a file of gpustate's belongs, to what it points to.
    """
    steps = tuple(steps)
    for path in dict.fromkeys(path for step in steps for path in step.writes):
        if path in links:
            return str(behind_link(path, links[path]))
    blocked = masked.difference(unit for step in steps for unit in step.unmasks)
    units = list(dict.fromkeys(unit for step in steps for unit in step.starts if unit in blocked))
    if not units:
        return None
    return f"{_names(units)} masked; systemctl unmask {' '.join(units)}, or leave the state out"


def _names(units: Sequence[str]) -> str:
    return f"{', '.join(units)} {'is' if len(units) == 1 else 'are'}"
