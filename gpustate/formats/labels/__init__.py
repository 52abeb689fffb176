"""The labels of GPU feature discovery (GFD), computed from NVML and sysfs.

Names and formats are GFD's own, so that existing node selectors keep working. Where GFD's result is random (a
node with two GPU models), the result here is deterministic.

Sources:
    NVIDIA/k8s-device-plugin v0.20.0: internal/lm/*.go, internal/resource/nvml-*.go,
    internal/vgpu/*.go, and their tests.
"""

from gpustate.formats.labels.gfd import LabelInput, Labels, Options, compute
from gpustate.formats.labels.nfd import TIMESTAMP, as_text, parse, unfit
from gpustate.formats.labels.vgpu import VGpu, vgpus

__all__ = [
    "TIMESTAMP",
    "LabelInput",
    "Labels",
    "Options",
    "VGpu",
    "as_text",
    "compute",
    "parse",
    "unfit",
    "vgpus",
]
