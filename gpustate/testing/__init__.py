"""For authors of states: a node in memory, and what every state must pass."""

from gpustate.testing.contract import check_contract
from gpustate.testing.fake import FakeNode, converge

__all__ = ["FakeNode", "check_contract", "converge"]
