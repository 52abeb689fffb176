"""The default runtime of a container runtime's configuration file: containerd's and CRI-O's TOML, docker's JSON.

Sources:
    NVIDIA/nvidia-container-toolkit, pkg/config/engine: what ``nvidia-ctk runtime configure --set-as-default`` writes.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection
from typing import Any

from gpustate.errors import ProbeError
from gpustate.formats.containerd.marks import strip

#: Files that may name it, as shell patterns.
FILES = (
    *("/etc/containerd/config.toml", "/etc/containerd/conf.d/*.toml", "/etc/docker/daemon.json"),
    *("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*.conf"),
)
_KEYS = ("default_runtime_name", "default_runtime", "default-runtime")


def foreign_default(path: str, text: str, programs: Collection[str]) -> str:
    """``KEY = NAME`` of a default runtime that runs one of some programs; empty if none is, or gpustate wrote it.

    Args:
        path: the file; one that is not readable sets nothing.
        text: of it.
        programs: parts of their paths.
    """
    try:
        if path.endswith(".json"):
            return _default(json.loads(text), programs)
        return _default(tomllib.loads(strip(text, path, pattern="", name="").text or ""), programs)
    except (ValueError, RecursionError, ProbeError):
        return ""


def _default(table: Any, programs: Collection[str]) -> str:
    if not isinstance(table, dict):
        return ""
    found = table.get("runtimes")
    runtimes = found if isinstance(found, dict) else {}
    for key in _KEYS:
        name = table.get(key)
        runtime = json.dumps(runtimes.get(name), default=str) if isinstance(name, str) else ""
        if any(program in runtime for program in programs):
            return f"{key} = {name}"
    return next(filter(None, (_default(value, programs) for value in table.values())), "")
