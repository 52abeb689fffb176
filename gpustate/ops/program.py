"""The sh program that the steps of a stage are compiled into."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Required, TypedDict

from gpustate.core.step import Step
from gpustate.formats.masking import contains_secret, mask
from gpustate.ops.steps import Reboot


class Entry(TypedDict, total=False):
    """A line of a program's journal: its kind ``e``, the number ``i`` of its step, and what the kind says.

    ``bytes`` is the length of the line, which the reader adds.
    """

    e: Required[str]
    i: int
    t: int
    did: str
    rc: int
    out: str
    state: str
    because: str
    stopped: bool
    pid: int
    rule: str
    reason: str
    bytes: int


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


@dataclass(frozen=True, slots=True)
class Before:
    """What a run changes from, kept on the node for a rollback.

    Args:
        run: its id.
        text: the record.
    """

    run: str
    text: str


def _divide(blocks: Sequence[Block]) -> tuple[list[Block], list[tuple[str, str]]]:
    """Blocks whose packages come in one transaction, and the packages that it takes along (:attr:`Step.along`).

    That transaction is the first one. What later blocks do before theirs moves ahead of it where that disturbs nothing:
    such a block is in two parts, of which the second needs the first.
    """
    carriers = [n for n, block in enumerate(blocks) if any(s.takes_along for s in block.steps)]
    if not carriers:
        return list(blocks), []
    first = carriers[0]
    ahead: list[Block] = []
    behind: list[Block] = []
    packages: list[tuple[str, str]] = []
    for block in blocks[first + 1 :]:
        place = next((n for n, step in enumerate(block.steps) if step.along), 0)
        before, after = block.steps[:place], block.steps[place:]
        joins = bool(after and after[0].along) and all(step.early for step in before)
        if joins and not (before and block.needs):
            packages += after[0].along
            if before:
                ahead.append(Block(block.state, (), before))
                block = Block(block.state, (block.state,), after)
        behind.append(block)
    return [*blocks[:first], *ahead, blocks[first], *behind], packages


def compile_program(
    blocks: tuple[Block, ...],
    allowed: Mapping[str, str] | None = None,
    before: Before | None = None,
) -> Program:
    """Put the steps of some states, in order, into one program. Reboots are left out.

    Args:
        blocks: the steps of each state.
        allowed: rules of the matrix that were overridden, each with the reason; the journal tells.
        before: kept ahead of the first step.
    """
    lines = ["sweep"]
    if before is not None:
        lines.append(f"keep_before {shlex.quote(before.run)}")
    for rule, reason in sorted((allowed or {}).items()):
        reason_line = json.dumps({"e": "allowed", "rule": rule, "reason": mask(reason)})
        lines.append(f"entry {shlex.quote(reason_line)}")
    files: dict[str, str] = {} if before is None else {"before": before.text}
    divided, along = _divide(blocks)
    if along:
        files["along"] = "".join(f"{package} {word}\n" for package, word in along)
    steps: list[tuple[str, Step]] = []
    for block in divided:
        lines.append(f"block {shlex.quote(block.state)} {shlex.join(block.needs)}".rstrip())
        for step in block.steps:
            if isinstance(step, Reboot):
                continue
            steps.append((block.state, step))
            number = len(steps)
            script = step.script()
            files[f"step.{number}"] = f'. "$R/library"\nset -e\n{script}\n'
            secret = _is_secret(step, script)
            if secret:
                files["secrets"] = files.get("secrets", "") + f"{number}\n"
            lines.append(f"step {number} {step.timeout_s}{' secret' if secret else ''}")
    lines.append("finish 0")
    return Program("\n".join(lines) + "\n", files, tuple(steps))


def _is_secret(step: Step, script: str) -> bool:
    """Something in a step must not stay on the node outside of the file it is for."""
    if getattr(step, "secret", False) or contains_secret(script):
        return True
    text = getattr(step, "text", "")  # its script may have it encoded
    return isinstance(text, str) and contains_secret(text)
