"""A state that is a word in a file, and costs as much as it is told to: a GPU reset, or a reboot, which it then needs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gpustate import Disruption, Node, Plan, State, Step, diff, ops

PATH = "/etc/gpustate-test-word"
#: Gone with the next boot.
UNBOOTED = "/run/gpustate-test-unbooted"


@dataclass(frozen=True, slots=True)
class Word:
    """Text of a file; ``None`` where there is none. Whether it needs a boot yet."""

    word: str | None
    unbooted: bool


class Changed(State[Word]):
    """The file has the word in it."""

    word: str = ""
    reboots: bool = False
    name: ClassVar[str] = "test-changed"
    worst: ClassVar[Disruption] = Disruption.REBOOT

    def probe(self, node: Node) -> Word:
        text = node.read_text(PATH)
        unbooted = node.read_text(UNBOOTED) is not None
        return Word(None if text is None else text.strip(), unbooted)

    def desired(self, observed: Word) -> Word:
        return Word(self.word, unbooted=False)

    def plan(self, observed: Word) -> Plan:
        cost = Disruption.REBOOT if self.reboots else Disruption.RESET
        return diff(
            observed, self.desired(observed), costs=dict.fromkeys(("word", "unbooted"), cost)
        )

    def apply(self, observed: Word, plan: Plan) -> Iterator[Step]:
        if "word" in plan.fields:
            yield ops.PutText(PATH, f"{self.word}\n")
            if self.reboots:
                yield ops.PutText(UNBOOTED, "yes\n")
        if self.reboots:
            yield ops.Reboot("boot with the word")


def write_policy(folder: Path, word: str, *, reboots: bool = False) -> Path:
    """Write a policy of this state."""
    shutil.copy(__file__, folder)
    (folder / "gpustate.toml").write_text('states = ["changedstate:Changed"]\n')
    path = folder / "changed.py"
    path.write_text(
        "from changedstate import Changed\nfrom gpustate import Policy\n"
        f"policy = Policy(Changed(word={word!r}, reboots={reboots}))\n"
    )
    return path
