"""What the subnet manager's state can observe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpustate.core.state import AnyState


def possible(state: AnyState, seen: Any) -> Any:
    """What is not installed is not held."""
    if state.name == "nvlsm" and not seen.version:
        return replace(seen, version=None, held=False)
    return seen
