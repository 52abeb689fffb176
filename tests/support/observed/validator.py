"""What the validator can observe."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

FIELDS: dict[tuple[str, str], st.SearchStrategy[Any]] = {
    ("gpustate.states.validator", "state_folder"): st.just("/var/lib/gpustate"),
    ("gpustate.states.validator", "proc"): st.just("/proc"),
    ("gpustate.states.validator", "sys"): st.just("/sys"),
}
