"""The sh program that the steps of a stage are compiled into."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpustate.core.step import Step
from gpustate.formats.masking import contains_secret, mask
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


@dataclass(frozen=True, slots=True)
class Before:
    """What a run changes from, kept on the node for a rollback.

    Args:
        run: its id.
        text: the record.
    """

    run: str
    text: str


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
        told = json.dumps({"e": "allowed", "rule": rule, "reason": mask(reason)})
        lines.append(f"entry {shlex.quote(told)}")
    files: dict[str, str] = {} if before is None else {"before": before.text}
    steps: list[tuple[str, Step]] = []
    for block in blocks:
        lines.append(f"block {shlex.quote(block.state)} {shlex.join(block.needs)}".rstrip())
        for one in block.steps:
            if isinstance(one, Reboot):
                continue
            steps.append((block.state, one))
            number = len(steps)
            script = one.script()
            files[f"step.{number}"] = f'. "$R/library"\nset -e\n{script}\n'
            secret = _is_secret(one, script)
            if secret:
                files["secrets"] = files.get("secrets", "") + f"{number}\n"
            lines.append(f"step {number} {one.timeout_s}{' secret' if secret else ''}")
    lines.append("finish 0")
    return Program("\n".join(lines) + "\n", files, tuple(steps))


def _is_secret(step: Step, script: str) -> bool:
    """Something in a step must not stay on the node outside of the file it is for."""
    if getattr(step, "secret", False) or contains_secret(script):
        return True
    text = getattr(step, "text", "")  # its script may have it encoded
    return isinstance(text, str) and contains_secret(text)
