"""The labels of GPU feature discovery (GFD), computed from what NVML and sysfs say of a node.

Names and formats are GFD's own, so that whatever selects nodes by them goes on to work. Where GFD
leaves the outcome to chance (a node with two models of GPU), the outcome here is always the same one.

Sources:
    NVIDIA/k8s-device-plugin v0.20.0: internal/lm/*.go, internal/resource/nvml-*.go,
    internal/vgpu/*.go, and what their tests expect.
"""

from gpustate.formats.labels.gfd import Labels, Options, Seen, compute
from gpustate.formats.labels.nfd import TIMESTAMP, as_text, parse, unfit
from gpustate.formats.labels.vgpu import VGpu, vgpus

__all__ = [
    "TIMESTAMP",
    "Labels",
    "Options",
    "Seen",
    "VGpu",
    "as_text",
    "compute",
    "parse",
    "unfit",
    "vgpus",
]
