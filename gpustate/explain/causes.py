"""Causes: a name, the check that fails, how the cause is detected, and the remedy.

A cause with ``explains`` is considered only if its check has failed, and gives the reason. One without makes
its check fail, so it must not match any healthy node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from gpustate.diagnosis import chain
from gpustate.diagnosis.container_checks import some as some
from gpustate.explain.clues import Clues


@dataclass(frozen=True, slots=True)
class View:
    """Everything that causes are detected from.

    Args:
        observed: the observation that the checks evaluate.
        clues: further traces of problems.
        check: the check itself.
        cut_short: the search for traces timed out; ``clues`` is empty then.
        states: names of the states of the node's policy; ``None``: unknown.
    """

    observed: chain.ChainObservation
    clues: Clues = field(default_factory=Clues)
    check: chain.Check | None = None
    cut_short: bool = False
    states: Collection[str] | None = None

    @property
    def gpu_count(self) -> int:
        """GPUs that NVML answers for."""
        return sum(gpu.error is None for gpu in self.observed.nvml.gpus)

    @property
    def broken(self) -> str:
        """The evidence if the check itself failed; empty if it did not."""
        return self.check.evidence if self.check is not None and self.check.failed else ""


def runtime_down(view: View) -> tuple[str, str]:
    """A runtime that fails the check as it does not run, and the evidence; empty if there is none."""
    for name in view.observed.down:
        evidence = chain.not_running(name)
        if evidence in view.broken:
            return name, view.broken
        if not view.broken and is_missed(view, name):
            return name, f"{evidence}, and gpustate has configured it"
    return "", ""


def is_missed(view: View, runtime: str) -> bool:
    """Gpustate and the policy have configured a runtime beside the one that serves; a disabled one is left alone."""
    validated = view.observed.expected.containers != "none"
    left_alone = view.clues.unit(runtime).enabled == "disabled"
    return (
        runtime in view.observed.registered
        and configured(view, runtime)
        and validated
        and not left_alone
    )


def in_use(view: View, runtime: str) -> bool:
    """A container runtime serves this node's containers, or gpustate has configured it."""
    observed = view.observed
    if runtime in observed.registered or runtime not in ("docker", "crio", "containerd"):
        return True
    return is_serving(view, runtime)


def is_serving(view: View, runtime: str) -> bool:
    """It is the container runtime that the check judges."""
    return chain.serving(view.observed, view.observed.expected) == runtime


def configured(view: View, runtime: str) -> bool:
    """The policy configures a container runtime; where it is unknown, the runtime is in use."""
    return in_use(view, runtime) if view.states is None else runtime in view.states


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason for which a check fails.

    Args:
        name: ``cause`` in ``explain -o json``.
        link: the check that fails.
        detect: returns the evidence in words, or nothing if this is not the cause.
        remedy: the fix; empty: that of the check.
        threads: public issues that describe it.
        state: the state that fixes it; empty if none does.
        explains: consider it only if the check itself failed.
        harmless_if_tested: a passed end-to-end test of its check shows that it does no harm: a warning then.
    """

    name: str
    link: str
    detect: Callable[[View], str]
    remedy: str
    threads: tuple[str, ...] = ()
    state: str = ""
    explains: bool = True
    harmless_if_tested: bool = False


def evidence_with(*words: str) -> Callable[[View], str]:
    """Detect a cause by words of the check's own evidence."""
    return lambda view: view.broken if all(word in view.broken for word in words) else ""


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers that can be compared."""
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
