"""Units that somebody has masked: systemd starts them for nobody, whatever enables them.

Sources:
    systemctl(1), ``mask``; systemd.unit(5): a unit file that is empty, or a link to ``/dev/null``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpustate.model.asks import Answer, Ask
from gpustate.model.step import Step


@dataclass(frozen=True, slots=True)
class AskMasked(Ask[frozenset[str]]):
    """Names of the units that are masked, for good or until the next boot; starts no program."""

    def script(self) -> str:
        return (
            "for f in /etc/systemd/system/*.* /run/systemd/system/*.*; do\n"
            '  [ -s "$f" ] || [ ! -e "$f" ] || [ -d "$f" ] || echo "${f##*/}"\ndone; :'
        )

    def parse(self, answer: Answer) -> frozenset[str]:
        return frozenset(answer.text.split())

    def stand_in(self) -> frozenset[str]:
        return frozenset()


def in_the_way(steps: Iterable[Step], masked: frozenset[str]) -> str | None:
    """Why steps that start units cannot do it, and the next move; ``None`` where nothing is masked.

    Args:
        steps: of one state.
        masked: names of units.
    """
    steps = tuple(steps)
    left = masked.difference(one for step in steps for one in step.unmasks)
    found = list(dict.fromkeys(one for step in steps for one in step.starts if one in left))
    if not found:
        return None
    return f"{_names(found)} masked; systemctl unmask {' '.join(found)}, or leave the state out"


def _names(units: Sequence[str]) -> str:
    return f"{', '.join(units)} {'is' if len(units) == 1 else 'are'}"
