"""Walks the chain on a node: asks once, stops at the first broken link, and names the cause.

The links of the chain of proofs come first, as the validator judges them; the NVLink fabric has its place
behind the libraries, and what lies beyond CUDA comes last. No kernel is run: where no proof is kept that
still stands, CUDA is left open, for nothing is known to be wrong with it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpustate.core.node import Node
from gpustate.diagnosis import chain, chain_queries
from gpustate.explain import (
    cautions,
    clues,
    container_link,
    containers,
    damaged,
    gpus,
    hardware,
    kept_away,
    runtimes,
    scheduling,
    script,
    services,
)
from gpustate.explain.causes import Cause, View

CAUSES: tuple[Cause, ...] = (
    *kept_away.CAUSES,  # before what is told of a module that is merely not loaded
    *hardware.CAUSES,
    *services.CAUSES,  # a masked service before what follows from it
    *gpus.CAUSES,
    *damaged.CAUSES,
    *containers.CAUSES,
    *runtimes.CAUSES,
    *container_link.CAUSES,
    *scheduling.CAUSES,
)

#: Links of this room's own, and the link of the chain they stand behind; empty: at the end.
_OWN: tuple[tuple[str, str, Callable[[View], chain.Check]], ...] = (
    ("fabric", "libraries", gpus.check_fabric),
    ("rdma", "", gpus.check_rdma),
    ("device-plugin", "", scheduling.check_plugin),
    ("scheduler", "", scheduling.check_scheduler),
    ("metrics", "", scheduling.check_metrics),
)

#: All links in order.
LINKS = (
    *(
        name
        for link in chain.LINKS
        for name in (link, *(own for own, behind, _ in _OWN if behind == link))
    ),
    *(own for own, behind, _ in _OWN if not behind),
)

#: Seconds that NVML may take, and any one program of the fragments: with one that hangs, an explanation
#: takes less than ten. NVML has most, for without persistence mode it brings every GPU up first.
NVML_S, PROGRAM_S = 5, 2
#: Seconds after which a fragment is given up; a busy node is slow, and that is no fault of its GPUs.
CHAIN_S, CLUES_S = 60, 40


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The chain up to its first broken link, and why that one is broken.

    Args:
        checks: every link that was judged; the last one is broken, if one is.
        open: names of the links after it, which rest on it.
        cause: what was recognised; ``None`` when nothing is broken, or the break has no known cause.
        warnings: what breaks no link, and will hurt somebody; one line each.
        proven: a kept proof that still stands says how CUDA is.
    """

    checks: tuple[chain.Check, ...]
    open: tuple[str, ...] = ()
    cause: Cause | None = None
    warnings: tuple[str, ...] = ()
    proven: bool = False

    @property
    def broken(self) -> chain.Check | None:
        """The first broken link; ``None`` when all hold."""
        return self.checks[-1] if self.checks and self.checks[-1].failed else None

    @property
    def name(self) -> str:
        """Name of the cause; that of the link when none was recognised; empty when nothing is broken."""
        if self.broken is None:
            return ""
        return self.cause.name if self.cause is not None else f"{self.broken.name}-broken"


def query(node: Node) -> View:
    """Everything an explanation is based on, in one exec."""
    observed = chain_queries.query_chain(
        node, timeout_s=NVML_S, limit_s=CHAIN_S, program_s=PROGRAM_S
    )
    text = f"limit={PROGRAM_S}\n{script.SCRIPT}"
    limited = f"timeout -k 1 {CLUES_S} sh -c {shlex.quote(text)}"
    found = clues.parse(node.shell(limited).stdout)
    # Half of the traces would accuse a node of lacking the other half.
    return View(observed, found) if found.has("complete") else View(observed, cut_short=True)


def links(view: View) -> list[chain.Check]:
    """Every link by its own judgement, in order."""
    found: list[chain.Check] = []
    for check in chain.evaluate(view.observed):
        found.append(_left_open(view, check) if check.name in _PROVEN else check)
        found += [judge(view) for _, behind, judge in _OWN if behind == check.name]
    return found + [judge(view) for _, behind, judge in _OWN if not behind]


#: Links that only a validation can judge, and what was not done for this one.
_PROVEN = {"container": "no container was started", "cuda": "no kernel was run"}


def _left_open(view: View, check: chain.Check) -> chain.Check:
    known = view.observed.cuda if check.name == "cuda" else view.observed.containers
    if known is None and check.failed:
        text = f"{_PROVEN[check.name]}, and no proof is kept of the node as it is; prove it: gpustate validate"
        return chain.Check(check.name, chain.NOT_APPLICABLE, text)
    if known is None or check.outcome == chain.NOT_APPLICABLE:
        return check
    # Nothing was run now: the evidence names its source, so that it is not taken for today's.
    return replace(
        check, evidence=f"{check.evidence} (by the kept proof; prove anew: gpustate validate)"
    )


def diagnose(view: View) -> Diagnosis:
    """Judge link by link, and stop at the first that is broken."""
    checks = links(view)
    warnings, proven = cautions.of(view), view.observed.cuda is not None
    for at, check in enumerate(checks):
        judged, cause = _judge(replace(view, check=check))
        if judged.failed:
            rest = tuple(one.name for one in checks[at + 1 :])
            return Diagnosis((*checks[:at], judged), rest, cause, warnings, proven)
    return Diagnosis(tuple(checks), warnings=warnings, proven=proven)


def _judge(view: View) -> tuple[chain.Check, Cause | None]:
    """A link with the first cause that fits it."""
    check = view.check
    assert check is not None
    for cause in CAUSES:
        if cause.link != check.name or (cause.explains and not check.failed):
            continue
        evidence = cause.look(view)
        if evidence:
            return chain.Check(check.name, chain.FAILED, evidence, cause.remedy), cause
    return check, None
