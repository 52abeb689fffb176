"""Causes at the link ``container``: why a container that the validator started did not get its GPUs.

What was tried stands in the kept proof; nothing is started here. Each way to fail is one cause, recognised by
:mod:`gpustate.diagnosis.container_checks`.
"""

from __future__ import annotations

from collections.abc import Callable

from gpustate.diagnosis import container_checks
from gpustate.explain.causes import Cause, View


def _look(name: str) -> Callable[[View], str]:
    def look(view: View) -> str:
        failure = container_checks.first_failure(view.observed)
        return view.broken if failure is not None and failure.kind.name == name else ""

    return look


CAUSES = tuple(
    Cause(f"container-{kind.name}", "container", _look(kind.name), kind.remedy, state=kind.state)
    for kind in container_checks.KINDS
)
