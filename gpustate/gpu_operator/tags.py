"""The image tag for a software version, if it is certain: a wrong tag could not be pulled.

A tag contains more than the version of the software: DCGM's has the build and the system, the exporter's
has DCGM's version before its own. Unknown tags are left out, so that comparing the written policy with the
original reports them as lost.

Sources:
    NVIDIA/gpu-operator v24.9 to v26.7: deployments/gpu-operator/values.yaml (the tags of each release).
    NVIDIA/gpu-operator v26.7: internal/image (a version counts only with a repository and an image).
"""

from __future__ import annotations

from gpustate.gpu_operator.driver import SYSTEM
from gpustate.gpu_operator.history import chart_defaults, number

#: Since this version a tag is just ``v`` and the version.
_V_AND_VERSION = {"toolkit": (1, 18, 0), "gdrcopy": (2, 5, 0)}


def image_of(section: str, version: str) -> dict[str, str]:
    """``repository``, ``image`` and ``version`` of a component; empty if the tag is unknown."""
    tag = _tag(section, version)
    if not tag:
        return {}
    parts = {part: str(chart_defaults()[f"{section}.{part}"]) for part in ("repository", "image")}
    return {**parts, "version": tag}


def _tag(section: str, version: str) -> str:
    if section == "driver":
        return version  # the Operator appends the system of the node
    known = str(chart_defaults()[f"{section}.version"])
    bare = SYSTEM.sub("", known).removeprefix("v")
    parts = bare.split("-")
    # DCGM's tag has its build after the version, the exporter's has DCGM's version before it.
    own = parts[1] if section == "dcgmExporter" else parts[0]
    if own == version:
        return known
    first, found = _V_AND_VERSION.get(section), number(version)
    return f"v{version}" if first is not None and found is not None and found >= first else ""
