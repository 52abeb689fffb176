"""A ClusterPolicy as a test writes it, read and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpustate import gpu_operator, policies
from gpustate.core.policy import Policy
from gpustate.gpu_operator import Reading

HEAD = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: x}\nspec:\n"


def read(spec: str, more: str = "") -> Reading:
    """A ClusterPolicy with this spec, and what stands in the file behind it."""
    return gpu_operator.read(f"{HEAD}{spec}{more}", "cp.yaml")


def states(reading: Reading) -> dict[str, dict[str, Any]]:
    """Parameters of each state that is wanted."""
    return {wanted.state: wanted.parameters for wanted in reading.states}


def load(text: str, folder: Path) -> Policy:
    """The policy of a file with this text."""
    file = folder / "cp.yaml"
    file.write_text(text)
    return policies.load(str(file))
