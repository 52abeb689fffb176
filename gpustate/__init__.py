"""Ordered, idempotent state for NVIDIA GPU nodes: plan, apply, verify and prove, over plain SSH.

The names a state or a policy needs. Everything else is private to gpustate. They are imported when
they are first used, so that the command line starts without pydantic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpustate import ops
    from gpustate.errors import GpustateError, PolicyError, ProbeError
    from gpustate.model import where
    from gpustate.model.change import Change, Disruption, Plan
    from gpustate.model.facts import NodeFacts, PciGpu
    from gpustate.model.node import Node
    from gpustate.model.policy import Policy
    from gpustate.model.state import State, diff
    from gpustate.model.step import Step

__version__ = "0.1.0"

__all__ = [
    "Change",
    "Disruption",
    "GpustateError",
    "Node",
    "NodeFacts",
    "PciGpu",
    "Plan",
    "Policy",
    "PolicyError",
    "ProbeError",
    "State",
    "Step",
    "diff",
    "ops",
    "where",
]

_HOME = {
    "Change": "gpustate.model.change",
    "Disruption": "gpustate.model.change",
    "GpustateError": "gpustate.errors",
    "Node": "gpustate.model.node",
    "NodeFacts": "gpustate.model.facts",
    "PciGpu": "gpustate.model.facts",
    "Plan": "gpustate.model.change",
    "Policy": "gpustate.model.policy",
    "PolicyError": "gpustate.errors",
    "ProbeError": "gpustate.errors",
    "State": "gpustate.model.state",
    "Step": "gpustate.model.step",
    "diff": "gpustate.model.state",
}
_MODULES = {"ops": "gpustate.ops", "where": "gpustate.model.where"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    raise AttributeError(f"module 'gpustate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
