"""Ordered, idempotent state for NVIDIA GPU nodes: plan, apply, verify and validate over plain SSH.

The names a state or a policy needs. Everything else is private to gpustate. They are imported when
they are first used, so that the command line starts without pydantic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpustate import ops
    from gpustate.core import where
    from gpustate.core.change import Change, Disruption, Plan
    from gpustate.core.facts import NodeFacts
    from gpustate.core.node import Node
    from gpustate.core.policy import Policy
    from gpustate.core.state import Conflict, State, diff
    from gpustate.core.step import Step
    from gpustate.errors import GpustateError, PolicyError, ProbeError
    from gpustate.formats.pci_gpus import PciGpu

__version__ = "0.1.0"

__all__ = [
    "Change",
    "Conflict",
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
    name: f"gpustate.{module}"
    for module, names in {
        "core.change": ("Change", "Disruption", "Plan"),
        "core.facts": ("NodeFacts",),
        "core.node": ("Node",),
        "core.policy": ("Policy",),
        "core.state": ("Conflict", "State", "diff"),
        "core.step": ("Step",),
        "formats.pci_gpus": ("PciGpu",),
        "errors": ("GpustateError", "PolicyError", "ProbeError"),
    }.items()
    for name in names
}
_MODULES = {"ops": "gpustate.ops", "where": "gpustate.core.where"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    raise AttributeError(f"module 'gpustate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
