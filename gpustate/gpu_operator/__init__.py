"""Read the GPU Operator's own configuration: ClusterPolicy, NVIDIADriver and Helm values.

:func:`read` turns the text of such a file into desired states, and into notes on everything else in it.
Every field of the two schemas is classified in :mod:`gpustate.gpu_operator.keys`, so that no key of
a file is dropped silently: it is honoured, or reported with its line. Its ``to=`` says where a value goes as it is; what needs
more is code: states of nodes in :mod:`gpustate.gpu_operator.operands` and its neighbours, settings of the cluster's
objects in :mod:`gpustate.gpu_operator.objects`, ``exporters``, ``containers`` and ``dra``.

Sources:
    NVIDIA/gpu-operator v26.7: api/nvidia/v1, api/nvidia/v1alpha1, deployments/gpu-operator.
"""

from __future__ import annotations

from gpustate.gpu_operator.desired import DesiredState
from gpustate.gpu_operator.keys import Field, Support
from gpustate.gpu_operator.reading import Reading, read, read_parts

__all__ = ["DesiredState", "Field", "Reading", "Support", "read", "read_parts"]
