"""Causes at the check ``container``: why a container that the validator started did not get its GPUs.

The results come from the validation record; nothing is started here. Each kind of failure in
:mod:`gpustate.diagnosis.container_checks` is one cause.
"""

from __future__ import annotations

from functools import partial

from gpustate.diagnosis import container_checks
from gpustate.explain.causes import Cause, View


def _detect(name: str, view: View) -> str:
    failure = container_checks.first_failure(view.observed)
    return view.broken if failure is not None and failure.kind.name == name else ""


CAUSES = tuple(
    Cause(f"container-{kind.name}", "container", partial(_detect, kind.name), "", state=kind.state)
    for kind in container_checks.KINDS
)
