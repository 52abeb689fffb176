"""Reads the proof that is kept on a node.

The file is written by ``gpustate.nodeside.validate``. One that cannot be read, or is of another
format, is no proof: the next apply makes a new one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gpustate.model import chain

FORMAT = "gpustate.proof/1"


@dataclass(frozen=True, slots=True)
class Proof:
    """What was proven, for what, and which status files were written."""

    ok: bool
    made_for: chain.Key
    checks: tuple[chain.Check, ...]
    cuda: tuple[chain.CudaResult, ...]
    status_files: tuple[str, ...]


def read_proof(text: str) -> Proof | None:
    """Read the text of proof.json; ``None`` when it is no proof of the known format."""
    try:
        data: Any = json.loads(text)
        if data["format"] != FORMAT:
            return None
        return Proof(
            ok=data["ok"] is True,
            made_for=_key(data["made_for"]),
            checks=tuple(chain.Check(**check) for check in data["checks"]),
            cuda=tuple(chain.CudaResult(**result) for result in data["cuda"] or ()),
            status_files=tuple(str(name) for name in data["status_files"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _key(data: Any) -> chain.Key:
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
    }
    return chain.Key(**fields)
