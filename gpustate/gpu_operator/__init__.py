"""Reads the GPU Operator's own configuration: ClusterPolicy, NVIDIADriver and Helm values.

:func:`read` turns the text of such a file into the states it asks for and into notes on everything
else it says. Every leaf of the two schemas has a class in :mod:`gpustate.gpu_operator.leaves`, so
that no key of a file is dropped in silence: it is honoured, or it is named with its line.

Sources:
    NVIDIA/gpu-operator v26.7: api/nvidia/v1, api/nvidia/v1alpha1, deployments/gpu-operator.
"""

from __future__ import annotations

from gpustate.gpu_operator.asked import Wanted
from gpustate.gpu_operator.blocks import Fate, Leaf
from gpustate.gpu_operator.reading import Reading, read

__all__ = ["Fate", "Leaf", "Reading", "Wanted", "read"]
