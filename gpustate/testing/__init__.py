"""For authors of states: an in-memory node, and the contract test of states."""

from gpustate.testing.contract import check_contract
from gpustate.testing.fake import FakeNode, converge

__all__ = ["FakeNode", "check_contract", "converge"]
