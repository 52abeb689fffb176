"""Every state that keeps originals of files has tests that a rollback restores their bytes, in memory and on a node."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import declarations
import shares

from gpustate import registry

NODES = Path(__file__).parents[1] / "node/test_rollback_states.py"
#: How a state restores what was there before gpustate: by steps of its own, or by its base's.
_KEEPS = re.compile(r"\b(KeepOriginal|RestoreOriginal|ForgetOriginal|writes\()")
#: States that keep originals and whose way back is tested elsewhere, or that have none, each with the reason.
ELSEWHERE = {
    **dict.fromkeys(
        ("cdi", "driver-repository", "toolkit-repository"),
        "their files are wholly gpustate's: they forget what they have replaced",
    ),
    "driver": "tests/node/test_rollback.py: dnf's stream file is kept by nodes with rpm only; all others are gpustate's",
}


def keepers() -> set[str]:
    """Names of states whose modules, or those of their bases, restore originals."""
    found: set[str] = set()
    for name, cls in registry.Registry().states().items():
        homes = [base.__module__ for base in cls.__mro__ if base.__module__.startswith("gpustate.")]
        texts = [
            path.read_text("utf-8")
            for home in homes
            if "core" not in home
            for path in (
                Path(inspect.getfile(sys.modules[home])).parent.glob("*.py")
                if Path(inspect.getfile(sys.modules[home])).name == "__init__.py"
                else [Path(inspect.getfile(sys.modules[home]))]
            )
        ]
        if any(_KEEPS.search(text) for text in texts):
            found.add(name)
    return found


def test_every_state_that_keeps_originals_goes_back_on_a_node() -> None:
    trials = declarations.literal(NODES, "ROLLED_BACK")
    tried = {name for names in trials.values() for name in names}
    shares.TAKEN["states rolled back on nodes by trial"] = f"{len(tried)} in {len(trials)}"
    assert keepers() <= tried, keepers() - tried


def test_every_state_that_keeps_originals_is_tested_to_go_back() -> None:
    told = declarations.collected("GOES_BACK")
    kept = keepers()
    assert not set(told) & set(ELSEWHERE)
    assert {"containerd", "docker", "crio", "container-toolkit", "vgpu-guest"} <= kept
    shares.TAKEN["states that keep originals"] = f"{len(kept)}, each tested to go back"
    assert kept <= {*told, *ELSEWHERE}, kept - {*told, *ELSEWHERE}
