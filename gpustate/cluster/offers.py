"""Whether a Node offers what its machine has: GPUs and MIG devices by NVML, times the replicas of sharing. Pure.

The device plugin's configuration need not be known: a number is right if it is a multiple of what one of the MIG
strategies yields, the same multiple being the replicas. A GPU that the plugin has lost, one that it holds for unhealthy, a MIG layout
of before, and a GPU in quarantine that is still offered leave a remainder.

With the strategy none, GPUs in MIG mode are offered as whole GPUs, which no container can use. That is a mismatch of its
own kind, for another cause than a device plugin that has not seen a change.

Sources:
    NVIDIA/k8s-device-plugin v0.18.0, internal/rm and internal/resource: names and numbers by strategy and sharing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpustate.cluster import pods
from gpustate.documents import Json
from gpustate.formats.labels import mig
from gpustate.formats.nvml_report import NvmlFacts

_SHARED = ".shared"


def whole_divided(node: Json, nvml: NvmlFacts) -> str:
    """How a Node offers GPUs in MIG mode as whole ones; empty if it does not.

    Args:
        node: the Node.
        nvml: its machine's usable GPUs, without those in quarantine.
    """
    offered = pods.allocatable(node)
    divided = [gpu for gpu in nvml.gpus if gpu.mig_current]
    undivided = offered.get(pods.GPU, 0) + offered.get(pods.SHARED, 0)
    if not nvml.works or not divided or any(name.startswith(pods.MIG_PREFIX) for name in offered):
        return ""
    right = len(nvml.gpus) - len(divided) or sum(len(gpu.mig_devices) for gpu in divided)
    if not undivided or undivided % len(nvml.gpus) or (right and undivided % right == 0):
        return ""
    return f"{len(divided)} of the machine's {len(nvml.gpus)} GPUs are in MIG mode, and the Node offers {undivided} {pods.GPU}"


def mismatch(node: Json, nvml: NvmlFacts) -> str:
    """How the GPUs that a Node offers differ from those of its machine; empty if they do not.

    Args:
        node: the Node.
        nvml: its machine's usable GPUs, without those in quarantine.
    """
    offered = pods.allocatable(node)
    if not nvml.works or not offered:
        return ""
    return "; ".join(_wrong(offered, nvml))


def _wrong(offered: dict[str, int], nvml: NvmlFacts) -> Iterator[str]:
    divided = [gpu for gpu in nvml.gpus if gpu.mig_current]
    devices = Counter(mig.profile(device) for gpu in divided for device in gpu.mig_devices)
    undivided = len(nvml.gpus) - len(divided)
    counts: Counter[str] = Counter()
    for name, number in offered.items():
        counts[name.removesuffix(_SHARED)] += number
    by_profile = {name for name in counts if name.startswith(pods.MIG_PREFIX)}
    gpus = counts.get(pods.GPU, 0)
    # Where all GPUs are divided, the strategy single offers every MIG device as a GPU.
    right = undivided if undivided or by_profile else sum(devices.values())
    if gpus and (not right or gpus % right):
        usable = f"{undivided} GPUs" + (
            f" and {sum(devices.values())} MIG devices" if divided else ""
        )
        yield f"the Node offers {gpus} {pods.GPU}; the machine has {usable} for use"
    for name in sorted(by_profile):
        right = devices.get(name.removeprefix(pods.MIG_PREFIX), 0)
        if not right or counts[name] % right:
            yield f"the Node offers {counts[name]} {name}; the machine has {right}"
    if by_profile:
        missing = sorted(f"{pods.MIG_PREFIX}{profile}" for profile in devices)
        yield from (f"the Node does not offer {name}" for name in missing if name not in by_profile)
