"""A report of NVML as the program on a node prints it."""

from __future__ import annotations

from typing import Any

from gpustate.formats.nvml_report import Gpu, NvmlFacts


def to_json(facts: NvmlFacts) -> dict[str, Any]:
    """Plain data, as ``nvml_report.from_json`` reads it."""

    def gpu(one: Gpu) -> dict[str, Any]:
        parts = ("mig_devices", "mig_instances", "mig_profiles")
        rows = {k: [dict(p.__dict__) for p in getattr(one, k)] for k in parts}
        health = None if one.health is None else dict(one.health.__dict__)
        return {**one.__dict__, **rows, "health": health}

    return {**facts.__dict__, "gpus": [gpu(one) for one in facts.gpus]}
