"""The support of every field of GPUCluster, the stack of the DRA driver.

It includes no driver, no toolkit and no device plugin: the driver comes from an NVIDIADriver or the host,
and containers get their GPUs through CDI. Only the driver itself concerns a node.

Sources:
    NVIDIA/gpu-operator v26.7: config/crd/bases, api/nvidia/v1alpha1/gpucluster_types.go,
    internal/state and manifests (what is read of an object).
"""

from __future__ import annotations

from dataclasses import replace

from gpustate.gpu_operator.blocks import (
    ENV,
    IMAGE,
    POD_WHY,
    RESOURCES,
    Field,
    Fields,
    Support,
    dead,
    kubernetes,
    later,
    under,
)
from gpustate.gpu_operator.fields import CLUSTER_POLICY

#: The only name that an object of this kind may have.
NAME = "gpu-cluster"
_DRA = "about the DRA driver, which has no state yet"
#: The same fields as in ClusterPolicy.
_SHARED = ("daemonsets", "dcgm", "dcgmExporter", "hostPaths")

_PLUGIN: Fields = {
    **ENV,
    **RESOURCES,
    "healthcheck.enabled": kubernetes("boolean", "a probe of a container", default=True),
    "healthcheck.port": kubernetes("integer", "a probe of a container", minimum=1),
}

DRA_DRIVER: Fields = under(
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

#: Shared with ClusterPolicy, and without effect here.
_UNREAD = (
    *("daemonsets.podSecurityContext.", "daemonsets.updateStrategy"),
    "daemonsets.rollingUpdate.maxUnavailable",
)


def _shared(path: str, field: Field) -> Field:
    if field.objects:  # the objects of a ClusterPolicy
        field = replace(field, support=Support.KUBERNETES, detail=POD_WHY, objects=False)
    if not path.startswith(_UNREAD):
        return field
    return replace(field, support=Support.DEAD, detail="nothing in the Operator reads it")


GPU_CLUSTER: Fields = {
    **DRA_DRIVER,
    **{
        path: _shared(path, field)
        for path, field in CLUSTER_POLICY.items()
        if path.partition(".")[0] in _SHARED
    },
    # Set in upstream's sample, though the API server drops it.
    "hostPaths.rootFS": dead("string", "the schema does not have it", default="/"),
}
