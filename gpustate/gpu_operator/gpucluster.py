"""A class for every leaf of GPUCluster, the stack of the DRA driver.

It brings no driver, no toolkit and no device plugin: the driver is an NVIDIADriver's or the host's,
and containers get their GPUs by CDI. What is left for a node is the driver itself.

Sources:
    NVIDIA/gpu-operator v26.7: config/crd/bases, api/nvidia/v1alpha1/gpucluster_types.go,
    internal/state and manifests (what is read of an object).
"""

from __future__ import annotations

from dataclasses import replace

from gpustate.gpu_operator.blocks import (
    ENV,
    IMAGE,
    RESOURCES,
    Fate,
    Leaf,
    Leaves,
    dead,
    kubernetes,
    later,
    under,
)
from gpustate.gpu_operator.leaves import CLUSTER_POLICY

#: The one name that an object of this kind may have.
NAME = "gpu-cluster"
_DRA = "about the DRA driver, which has no state yet"
#: As in ClusterPolicy, leaf by leaf.
_SHARED = ("daemonsets", "dcgm", "dcgmExporter", "hostPaths")

_PLUGIN: Leaves = {
    **ENV,
    **RESOURCES,
    "healthcheck.enabled": kubernetes("boolean", "a probe of a container", default=True),
    "healthcheck.port": kubernetes("integer", "a probe of a container", minimum=1),
}

DRA_DRIVER: Leaves = under(
    "draDriver",
    IMAGE,
    {"version": later("string", _DRA), "featureGates": later("map[boolean]", _DRA)},
    under("gpus.kubeletPlugin", _PLUGIN),
    under(
        "computeDomains",
        {"enabled": later("boolean", _DRA, default=True)},
        under("controller", ENV, RESOURCES),
        under("kubeletPlugin", _PLUGIN),
    ),
)

#: Shared with ClusterPolicy, where they mean something.
_UNREAD = (
    *("daemonsets.podSecurityContext.", "daemonsets.updateStrategy"),
    "daemonsets.rollingUpdate.maxUnavailable",
)


def _shared(path: str, leaf: Leaf) -> Leaf:
    if not path.startswith(_UNREAD):
        return leaf
    return replace(leaf, fate=Fate.DEAD, detail="nothing in the Operator reads it")


GPU_CLUSTER: Leaves = {
    **DRA_DRIVER,
    **{
        path: _shared(path, leaf)
        for path, leaf in CLUSTER_POLICY.items()
        if path.partition(".")[0] in _SHARED
    },
    # Upstream's own sample sets it, and the API server drops it.
    "hostPaths.rootFS": dead("string", "the schema does not have it", default="/"),
}
