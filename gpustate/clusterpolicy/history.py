"""Since which release of the GPU Operator a key is there, until which it was, and chart defaults.

The figures are in ``data/history.json``, counted from the schemas, templates and values of the
releases (``tests/support/leafhistory.py`` counts them again). A prefix stands for every path below
it for which no longer one is listed.

Sources:
    NVIDIA/gpu-operator, tags 1.3.0 to v26.7.0: config/crd/bases, deployments/gpu-operator.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

_RELEASE = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


@cache
def _data() -> Mapping[str, Any]:
    text = (
        resources.files("gpustate.clusterpolicy")
        .joinpath("data", "history.json")
        .read_text("utf-8")
    )
    data: Mapping[str, Any] = json.loads(text)
    return data


def source() -> str:
    """What was counted: ``NVIDIA/gpu-operator v26.7.0``."""
    found: str = _data()["source"]
    return found


def releases() -> tuple[str, ...]:
    """The releases that were counted, the oldest first, as they are tagged."""
    return tuple(_data()["releases"])


def newest() -> str:
    """The release whose schemas the tables are."""
    return releases()[-1]


def chart_defaults() -> Mapping[str, Any]:
    """Every leaf of the newest values.yaml; empty lists and mappings are leaves."""
    found: Mapping[str, Any] = _data()["chart"]
    return found


def chart_default(path: str, *, mapping: bool = False) -> tuple[bool, Any]:
    """Whether values.yaml says something at a path, and what; ``mapping``: also by keys below it."""
    table = chart_defaults()
    if path in table:
        return True, table[path]
    below = {
        key.removeprefix(f"{path}."): table[key] for key in table if key.startswith(f"{path}.")
    }
    return (True, below) if mapping and below else (False, None)


def since(kind: str, path: str) -> str:
    """The release that brought a path, or the first of what is below it; empty when none had it."""
    table: Mapping[str, str] = _data()["since"].get(kind, {})
    bare = path.replace("[]", "")
    below = [table[key] for key in table if key.startswith(f"{bare}.")]
    words = bare.split(".")
    for count in range(len(words), 0, -1):
        found = table.get(".".join(words[:count]))
        if found is not None:
            below.append(found)
            break
    return min(below, key=lambda release: number(release) or (0, 0, 0), default="")


def number(release: str) -> tuple[int, int, int] | None:
    """``v24.9.0`` as numbers; ``None`` for what is no release."""
    match = _RELEASE.fullmatch(release.strip())
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None
