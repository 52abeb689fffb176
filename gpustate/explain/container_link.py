"""Causes at the link ``container``: why a container that the validator started did not get its GPUs.

What was tried stands in the kept proof; nothing is started here. Each way to fail is one cause, recognised by
:mod:`gpustate.model.chain_containers`.
"""

from __future__ import annotations

from collections.abc import Callable

from gpustate.explain.causes import Cause, View
from gpustate.model import chain_containers


def _look(name: str) -> Callable[[View], str]:
    def look(view: View) -> str:
        failure = chain_containers.first_failure(view.seen)
        return view.broken if failure is not None and failure.kind.name == name else ""

    return look


CAUSES = tuple(
    Cause(f"container-{kind.name}", "container", _look(kind.name), kind.remedy, state=kind.state)
    for kind in chain_containers.KINDS
)
