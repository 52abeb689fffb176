"""Ordered, idempotent state for NVIDIA GPU nodes: plan, apply, verify and prove, over plain SSH.

The names a state or a policy needs. Everything else is private to gpustate.
"""

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
