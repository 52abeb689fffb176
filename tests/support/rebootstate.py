"""A state whose change needs a reboot, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from gpustate import Disruption, Node, Plan, State, Step, diff, ops

PATH = "/etc/gpustate-test-booted"


@dataclass(frozen=True, slots=True)
class Word:
    """Text of a file; ``None`` where there is none."""

    word: str | None


class Booted(State[Word]):
    """A file has a word in it since a boot."""

    word: str = ""
    name: ClassVar[str] = "test-booted"
    worst: ClassVar[Disruption] = Disruption.REBOOT

    def probe(self, node: Node) -> Word:
        text = node.read_text(PATH)
        return Word(None if text is None else text.strip())

    def desired(self, observed: Word) -> Word:
        return Word(self.word)

    def plan(self, observed: Word) -> Plan:
        return diff(observed, self.desired(observed), costs={"word": Disruption.REBOOT})

    def apply(self, observed: Word, plan: Plan) -> Iterator[Step]:
        yield ops.PutText(PATH, f"{self.word}\n")
        yield ops.Reboot("boot with the word")
