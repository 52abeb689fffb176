"""The tag of an image for a version, where it can be told for certain; a wrong one is never pulled.

A state knows the version of the software, a tag says more: DCGM's has the build and the system it was
made for, the exporter's has DCGM's version before its own. What cannot be told is left out, so that
whoever compares what was written with what was wanted names it as lost.

Sources:
    NVIDIA/gpu-operator v24.9 to v26.7: deployments/gpu-operator/values.yaml (the tags of each release).
    NVIDIA/gpu-operator v26.7: internal/image (a version counts only beside a repository and an image).
"""

from __future__ import annotations

from gpustate.gpu_operator.driver import SYSTEM
from gpustate.gpu_operator.history import chart_defaults, number

#: From which version on a tag is ``v`` and the version, and nothing else.
_V_AND_VERSION = {"toolkit": (1, 18, 0), "gdrcopy": (2, 5, 0)}


def tagged(section: str, version: str) -> dict[str, str]:
    """``repository``, ``image`` and ``version`` of a component; nothing where the tag is not known."""
    tag = _tag(section, version)
    if not tag:
        return {}
    parts = {part: str(chart_defaults()[f"{section}.{part}"]) for part in ("repository", "image")}
    return {**parts, "version": tag}


def _tag(section: str, version: str) -> str:
    if section == "driver":
        return version  # the Operator itself adds the system of the node
    known = str(chart_defaults()[f"{section}.version"])
    bare = SYSTEM.sub("", known).removeprefix("v")
    parts = bare.split("-")
    # DCGM's tag has its build behind the version, the exporter's has DCGM's version before it.
    own = parts[1] if section == "dcgmExporter" else parts[0]
    if own == version:
        return known
    first, found = _V_AND_VERSION.get(section), number(version)
    return f"v{version}" if first is not None and found is not None and found >= first else ""
