"""Reads the validation record (``proof.json``) of a node.

The file is written by ``gpustate.nodeside.validate``. One that cannot be read, or has another format,
counts as missing: the next apply validates again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gpustate.diagnosis import chain
from gpustate.formats.nvml_report import build

FORMAT = "gpustate.proof/1"


@dataclass(frozen=True, slots=True)
class ValidationRecord:
    """Result of a validation, what it is valid for, when it was made, and the status files that were written."""

    ok: bool
    made_for: chain.Key
    checks: tuple[chain.Check, ...]
    cuda: tuple[chain.CudaResult, ...]
    status_files: tuple[str, ...]
    containers: tuple[chain.ContainerResult, ...] | None = None  # None: none was started
    made_at: int = 0  # seconds since 1970, by the node's clock; 0: unknown


def read_record(text: str) -> ValidationRecord | None:
    """Read the text of proof.json; ``None`` if it is not a record of the known format."""
    try:
        data: Any = json.loads(text)
        if data["format"] != FORMAT:
            return None
        return ValidationRecord(
            ok=data["ok"] is True,
            made_for=_key(data["made_for"]),
            checks=tuple(_check(check) for check in data["checks"]),
            cuda=tuple(build(chain.CudaResult, _tuples(result)) for result in data["cuda"] or ()),
            status_files=tuple(str(name) for name in data["status_files"]),
            containers=_containers(data.get("containers")),
            made_at=int(data.get("made_at", 0)),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _check(data: Any) -> chain.Check:
    check: chain.Check = build(chain.Check, data)
    if check.outcome not in (chain.OK, chain.FAILED, chain.NOT_APPLICABLE):
        raise ValueError(f"{check.outcome!r} is not an outcome of a check")
    return check


def _containers(data: Any) -> tuple[chain.ContainerResult, ...] | None:
    if data is None:
        return None
    return tuple(build(chain.ContainerResult, _tuples(row)) for row in data)


def _tuples(data: Any) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
    }


def _key(data: Any) -> chain.Key:
    key: chain.Key = build(chain.Key, _tuples(data))
    return key
