"""Causes at the check ``container``: why a container that the validator started did not get its GPUs.

The results come from the validation record; nothing is started here. Each kind of failure in
:mod:`gpustate.diagnosis.container_checks` is one cause.
"""

from __future__ import annotations

from functools import partial

from gpustate.diagnosis import container_checks
from gpustate.diagnosis import remedies as remedies
from gpustate.explain.causes import Cause, View


def _detect(name: str, view: View) -> str:
    failure = container_checks.first_failure(view.observed)
    return view.broken if failure is not None and failure.kind.name == name else ""


def _remedy(kind: container_checks.Kind) -> str:
    """The fix, and a validation after it where it has none: only that shows whether it helped."""
    validated = f"{remedies.APPLY};" in f"{kind.remedy};" or remedies.VALIDATE in kind.remedy
    return kind.remedy if validated else f"{kind.remedy}; then: {remedies.VALIDATE}"


CAUSES = tuple(
    Cause(
        f"container-{kind.name}",
        "container",
        partial(_detect, kind.name),
        _remedy(kind),
        state=kind.state,
    )
    for kind in container_checks.KINDS
)
