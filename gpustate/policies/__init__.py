"""Load a policy argument of the command line into a :class:`~gpustate.Policy`.

A policy is a Python file that defines ``policy``, YAML in gpustate's own format, a file of the GPU Operator
(ClusterPolicy, NVIDIADriver or Helm values), or the name of one state. Files are recognised by content. All of
them become one model, which can be converted into each of the formats.
"""

from __future__ import annotations

from gpustate.policies.changes import Changes
from gpustate.policies.files import CHART
from gpustate.policies.implying import with_implied
from gpustate.policies.loading import Kind, kind, load

__all__ = ["CHART", "Changes", "Kind", "kind", "load", "with_implied"]
