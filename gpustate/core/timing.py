"""How long steps took on a node, and which steps a plan would take: what estimates are made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """One step that was done on a node, as its own journal has it.

    Args:
        state: whose step; empty for a reboot, which is nobody's alone.
        label: what it did, as :attr:`gpustate.core.step.Step.label` said then.
        seconds: how long it took; journals have whole seconds.
        run: in which run.
    """

    state: str
    label: str
    seconds: int
    run: str = ""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step that a plan would take.

    Args:
        state: whose step.
        label: what it does.
        kind: name of its class: ``PutText``, ``AptInstall``, ``Reboot``.
        timeout_s: after so long it would be killed.
    """

    state: str
    label: str
    kind: str
    timeout_s: int
