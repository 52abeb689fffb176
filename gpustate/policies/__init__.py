"""Turns what stands for a policy on the command line into a :class:`~gpustate.Policy`.

A policy is a Python file that defines ``policy``, a file of the GPU Operator (ClusterPolicy,
NVIDIADriver or Helm values), or the name of one state. What a file is, its content says.
"""

from __future__ import annotations

from gpustate.policies.loading import Kind, kind, load

__all__ = ["Kind", "kind", "load"]
