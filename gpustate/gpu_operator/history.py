"""First and last release of every key of the GPU Operator, and the chart's defaults per release.

The data in ``data/history.json`` are extracted from the schemas, templates and values of the releases
by ``tests/support/leafhistory.py``. A prefix applies to every path below it unless a longer one is listed.

Sources:
    NVIDIA/gpu-operator, tags 1.3.0 to v26.7.0: config/crd/bases, deployments/gpu-operator.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from gpustate.documents import JsonView
from gpustate.errors import UsageError
from gpustate.formats.words import quote

_RELEASE = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


@cache
def _data() -> JsonView:
    text = (
        resources.files("gpustate.gpu_operator").joinpath("data", "history.json").read_text("utf-8")
    )
    data: JsonView = json.loads(text)
    return data


def source() -> str:
    """The source of the data: ``NVIDIA/gpu-operator v26.7.0``."""
    name: str = _data()["source"]
    return name


def releases() -> tuple[str, ...]:
    """All releases in the data, oldest first, as tagged."""
    return tuple(_data()["releases"])


def newest() -> str:
    """The newest release, whose schemas the tables follow."""
    return releases()[-1]


def chart_defaults(release: str = "") -> JsonView:
    """All values of a release's values.yaml (default: the newest) by path; empty collections included."""
    return _chart(release or newest())


@cache
def _chart(release: str) -> JsonView:
    values = {path: _at(past, release) for path, past in _data()["chart"].items()}
    return {path: value[0] for path, value in values.items() if value}


def _at(past: list[list[Any]], release: str) -> list[Any]:
    """The entry of a list of changes that applies to a release; empty if none does."""
    release_number, entry = number(release), list[Any]()
    for tag, *value in past:
        if (number(tag) or ()) > (release_number or ()):
            break
        entry = value
    return entry


def chart_default(path: str, *, mapping: bool = False, release: str = "") -> tuple[bool, Any]:
    """Whether values.yaml sets a path, and its value; ``mapping``: also by keys below it."""
    table = chart_defaults(release)
    if path in table:
        return True, table[path]
    below = {
        key.removeprefix(f"{path}."): table[key] for key in table if key.startswith(f"{path}.")
    }
    return (True, below) if mapping and below else (False, None)


def api_default(kind: str, path: str, release: str) -> Any:
    """The API server's default at a path with the schema of a release; ``None`` if there is none."""
    past = _data()["filled"].get(kind, {}).get(path.replace("[]", ""))
    value = _at(past, release) if past else []
    return value[0] if value else None


def schema(kind: str) -> Mapping[str, tuple[str, JsonView]]:
    """Type and constraints (``choices``, ``minimum``) of every field of a kind in the newest release."""
    table: JsonView = _data()["schema"][kind]
    return {
        path: (row, {}) if isinstance(row, str) else (row[0], row[1]) for path, row in table.items()
    }


def since(kind: str, path: str) -> str:
    """The release that added a path or the first key below it; empty if none has it."""
    table: Mapping[str, str] = _data()["since"].get(kind, {})
    plain_path = path.replace("[]", "")
    below = [table[key] for key in table if key.startswith(f"{plain_path}.")]
    words = plain_path.split(".")
    for count in range(len(words), 0, -1):
        added = table.get(".".join(words[:count]))
        if added is not None:
            below.append(added)
            break
    return min(below, key=lambda release: number(release) or (0, 0, 0), default="")


def number(release: str) -> tuple[int, int, int] | None:
    """``v24.9.0`` as numbers; ``None`` if the text is not a release."""
    match = _RELEASE.fullmatch(release.strip())
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def before(release: str, later: str) -> bool:
    """Whether a release came before another one."""
    return (number(release) or (0, 0, 0)) < (number(later) or (0, 0, 0))


def release(name: str) -> str:
    """The tag of a release given by the user.

    Raises:
        UsageError: there is no such release.
    """
    tag = release_of_chart(name)
    if not tag:
        later = before(newest(), name)
        near = [] if later else difflib.get_close_matches(name, releases(), 1, 0.5)
        raise UsageError(
            f"no GPU Operator release {quote(name)}",
            fix=f"did you mean {near[0]}"
            if near
            else f"the newest supported release is {newest()}",
        )
    return tag


def release_of_chart(text: str) -> str:
    """The tag of the release of a chart's version; empty if there is none.

    Accepts ``24.9.0``, ``v24.9``, ``gpu-operator-v24.9.0``, and ranges that end in ``x`` or ``*``, of which the
    newest release counts.
    """
    version = text.strip().removeprefix("gpu-operator-").lstrip("~^=vV ").removesuffix(".tgz")
    exact = number(version.partition("-")[0].partition("+")[0])
    tags = releases()
    if exact is not None and version.count(".") >= 2:
        return next((tag for tag in tags if number(tag) == exact), "")
    words = re.split(r"[.]", version)
    start = [int(word) for word in words if word.isdecimal()]
    wildcards = words[len(start) :]
    if not start or any(word.lower() not in ("x", "*") for word in wildcards):
        return ""
    of_range = [tag for tag in tags if list((number(tag) or ())[: len(start)]) == start]
    return of_range[-1] if of_range else ""
