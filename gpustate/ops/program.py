"""The sh program that the steps of a stage are compiled into."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from gpustate.model.step import Step
from gpustate.ops.steps import Reboot


@dataclass(frozen=True, slots=True)
class Block:
    """The steps of one state, and the states whose failure keeps them from running."""

    state: str
    needs: tuple[str, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """What runs on a node, and what each of its step numbers means.

    Args:
        text: the sh program.
        files: further files of the run's folder: one script a step.
        steps: state and step by number; numbers start at 1.
    """

    text: str
    files: dict[str, str]
    steps: tuple[tuple[str, Step], ...] = field(default_factory=tuple[tuple[str, Step], ...])


def compile_program(blocks: tuple[Block, ...]) -> Program:
    """Put the steps of some states, in order, into one program. Reboots are left out."""
    lines = ["sweep"]
    files: dict[str, str] = {}
    steps: list[tuple[str, Step]] = []
    for block in blocks:
        lines.append(f"block {shlex.quote(block.state)} {shlex.join(block.needs)}".rstrip())
        for one in block.steps:
            if isinstance(one, Reboot):
                continue
            steps.append((block.state, one))
            number = len(steps)
            files[f"step.{number}"] = f'. "$R/library"\nset -e\n{one.script()}\n'
            lines.append(f"step {number} {one.timeout_s}")
    lines.append("finish 0")
    return Program("\n".join(lines) + "\n", files, tuple(steps))
