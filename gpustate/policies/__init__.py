"""Turns what stands for a policy on the command line into a :class:`~gpustate.Policy`.

A policy is a Python file that defines ``policy``, YAML in gpustate's own format, a file of the GPU
Operator (ClusterPolicy, NVIDIADriver or Helm values), or the name of one state. What a file is, its
content says. All of them become one model, which can be written in each of the others' shapes.
"""

from __future__ import annotations

from gpustate.policies.changes import Changes
from gpustate.policies.loading import Kind, kind, load

__all__ = ["Changes", "Kind", "kind", "load"]
