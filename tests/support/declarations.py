"""What the tests of a state declare about it, for tests of all states together.

A module below ``tests/unit/states`` may say, as literals at its top:

``STEPLESS``
    a state's name to the reason why it has no step in the run of ``tests/proof/test_kill_points.py``;
``PARTLESS``
    a state's name to the parts of its cycle on nodes that do not fit it (see :mod:`cycles`), and the reason.

So a new state needs no line in a table of others. What it proves on nodes, ``PROVES``, is read by :mod:`statetable`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MODULES = Path(__file__).parents[1] / "unit/states"


def literal(module: Path, name: str) -> Any:
    """The literal that a module assigns to a name at its top; ``None`` where it does not."""
    for node in ast.parse(module.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return ast.literal_eval(node.value)
    return None


def collected(name: str, modules: Iterable[Path] | None = None) -> dict[str, Any]:
    """What modules declare under one name, by state.

    Raises:
        ValueError: two modules declare it for one state.
    """
    found: dict[str, Any] = {}
    for module in modules or sorted(MODULES.glob("test_*.py")):
        for state, value in (literal(module, name) or {}).items():
            if state in found:
                raise ValueError(f"{module}: {name}[{state!r}] is declared elsewhere, too")
            found[state] = value
    return found
