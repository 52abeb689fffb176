"""Diagnoses a node: queries it once, stops at the first failed check, and names the cause.

The checks of the validator come first, in its order; RDMA, device plugin, scheduler and metrics come last. No kernel
is run: without a valid validation record the result of CUDA is unknown, which is no failure.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gpustate.core.node import Node
from gpustate.diagnosis import chain, chain_queries
from gpustate.diagnosis import remedies as remedies
from gpustate.explain import (
    blocked_modules,
    cautions,
    clues,
    container_link,
    containers,
    damaged,
    gpus,
    hardware,
    runtimes,
    scheduling,
    script,
    services,
)
from gpustate.explain.causes import Cause, View

CAUSES: tuple[Cause, ...] = (
    *blocked_modules.CAUSES,  # before the cause of a module that is merely not loaded
    *hardware.CAUSES,
    *services.CAUSES,  # a masked service before its consequences
    *gpus.CAUSES,
    *damaged.CAUSES,
    *containers.CAUSES,
    *runtimes.CAUSES,
    *container_link.CAUSES,
    *scheduling.CAUSES,
)

#: Checks that only ``explain`` has, after those of the validator.
_EXTRA_CHECKS: Mapping[str, Callable[[View], chain.Check]] = {
    "rdma": gpus.check_rdma,
    "discovery": scheduling.check_discovery,
    "device-plugin": scheduling.check_plugin,
    "scheduler": scheduling.check_scheduler,
    "metrics": scheduling.check_metrics,
}

#: All links in order.
LINKS = (*chain.LINKS, *_EXTRA_CHECKS)

#: Limits in seconds for NVML with persistence mode, and for each program of the fragments.
NVML_S, PROGRAM_S = 10, 2
#: Limits in seconds for the two fragments, for a node that is busy.
CHAIN_S, CLUES_S = 60, 40


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The checks up to the first that failed, and its cause.

    Args:
        checks: all checks that were evaluated; only the last one may have failed.
        open: names of the checks after it, which depend on it.
        cause: the detected cause; ``None`` if no check failed, or the cause is unknown.
        warnings: problems that fail no check; one line each.
        validated: a valid validation record has the result of CUDA.
    """

    checks: tuple[chain.Check, ...]
    open: tuple[str, ...] = ()
    cause: Cause | None = None
    warnings: tuple[str, ...] = ()
    validated: bool = False

    @property
    def broken(self) -> chain.Check | None:
        """The first check that failed; ``None`` if all passed."""
        return self.checks[-1] if self.checks and self.checks[-1].failed else None

    @property
    def name(self) -> str:
        """Name of the cause, or of the check if the cause is unknown; empty if no check failed."""
        if self.broken is None:
            return ""
        return self.cause.name if self.cause is not None else f"{self.broken.name}-broken"


def query(node: Node) -> View:
    """Query everything that a diagnosis needs, in one exec."""
    observed = chain_queries.query_chain(
        node, timeout_s=NVML_S, limit_s=CHAIN_S, program_s=PROGRAM_S
    )
    text = f"limit={PROGRAM_S}\n{script.SCRIPT}"
    limited = f"timeout -k 1 {CLUES_S} sh -c {shlex.quote(text)}"
    traces = clues.parse(node.shell(limited).stdout)
    # A missing trace must not look like a missing file.
    return View(observed, traces) if traces.has("complete") else View(observed, cut_short=True)


def links(view: View) -> list[chain.Check]:
    """All checks in order, without causes."""
    checks = [_live(view, check) for check in chain.evaluate(view.observed)]
    return [*checks, *(judge(view) for judge in _EXTRA_CHECKS.values())]


#: Checks that only a validation can make, and what ``explain`` did not do.
_VALIDATED = {"container": "no container was started", "cuda": "no kernel was run"}


def _live(view: View, check: chain.Check) -> chain.Check:
    """A check of the validator by what is known now, without running a kernel or a container."""
    if check.name not in _VALIDATED:
        return check
    results = view.observed.cuda if check.name == "cuda" else view.observed.containers
    if results is None and check.failed:
        text = f"{_VALIDATED[check.name]}, and there is no valid validation record; run: {remedies.VALIDATE}"
        return chain.Check(check.name, chain.NOT_APPLICABLE, text)
    if results is None or check.outcome == chain.NOT_APPLICABLE:
        return check
    # Nothing was run now, so the evidence names its source.
    source = f"from the last validation; to repeat it: {remedies.VALIDATE}"
    return replace(check, evidence=f"{check.evidence} ({source})")


def diagnose(view: View) -> Diagnosis:
    """Evaluate check by check, and stop at the first that fails."""
    checks = links(view)
    tested = chain.tested(checks)
    warnings = cautions.of(view)
    named = tuple(warning.partition("; ")[0] for warning in warnings)
    harmless = _harmless(view, checks, tested)
    warnings += tuple(warning for warning in harmless if not named or not warning.startswith(named))
    validated = view.observed.cuda is not None
    for at, check in enumerate(checks):
        judged, cause = _judge(replace(view, check=check), tested)
        if judged.failed:
            unchecked = tuple(c.name for c in checks[at + 1 :])
            warnings = tuple(w for w in warnings if not w.startswith(judged.evidence))
            return Diagnosis((*checks[:at], judged), unchecked, cause, warnings, validated)
    return Diagnosis(tuple(checks), warnings=warnings, validated=validated)


def _judge(view: View, tested: Collection[str]) -> tuple[chain.Check, Cause | None]:
    """A check with the first cause that matches."""
    check = view.check
    assert check is not None
    for cause in CAUSES:
        if cause.link != check.name or (cause.explains and not check.failed):
            continue
        if cause.harmless_if_tested and check.name in tested:
            continue
        evidence = cause.detect(view)
        if evidence:
            remedy = cause.remedy or check.remedy
            return chain.Check(check.name, chain.FAILED, evidence, remedy), cause
    return check, None


def _harmless(view: View, checks: Iterable[chain.Check], tested: Collection[str]) -> Iterator[str]:
    """What does no harm now, one line each: checks with a note, and causes that a passed test shows to be none."""
    for check in checks:
        if check.outcome == chain.OK and check.remedy:
            yield f"{check.evidence}; {check.remedy}"
        for cause in CAUSES if check.name in tested else ():
            if cause.harmless_if_tested and cause.link == check.name:
                evidence = cause.detect(replace(view, check=check))
                if evidence:
                    yield f"{evidence}; {cause.remedy}"
