"""The support of every field of GPUCluster, the stack of the DRA driver.

It includes no driver, no toolkit and no device plugin: the driver comes from an NVIDIADriver or the host,
and containers get their GPUs through CDI. Only the driver and DCGM as services concern a node.

Sources:
    NVIDIA/gpu-operator v26.7: config/crd/bases, api/nvidia/v1alpha1/gpucluster_types.go,
    internal/state and manifests (what is read of an object, and that updateStrategy is not).
"""

from __future__ import annotations

from dataclasses import replace

from gpustate.gpu_operator.blocks import (
    ENV,
    IMAGE,
    RESOURCES,
    Field,
    Fields,
    Support,
    as_objects,
    dead,
    kubernetes,
    under,
)
from gpustate.gpu_operator.fields import CLUSTER_POLICY

#: The only name that an object of this kind may have.
NAME = "gpu-cluster"
_DRIVER = "the DRA driver"
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
    as_objects(
        _DRIVER,
        {
            **IMAGE,
            "featureGates": kubernetes("map[boolean]", _DRIVER),
            **under("gpus.kubeletPlugin", _PLUGIN),
            "computeDomains.enabled": kubernetes("boolean", _DRIVER, default=True),
            **under("computeDomains.controller", ENV, RESOURCES),
            **under("computeDomains.kubeletPlugin", _PLUGIN),
        },
    ),
)

#: Shared with ClusterPolicy, and without effect here.
_UNREAD = "daemonsets.podSecurityContext."
#: The same, but what the schema says of them is done: they mean the same everywhere.
_UPDATES = ("daemonsets.updateStrategy", "daemonsets.rollingUpdate.maxUnavailable")


def _shared(path: str, field: Field) -> Field:
    if path in _UPDATES:
        detail = "the DaemonSets of DCGM and its exporter, though the Operator does not read it"
        return replace(field, detail=detail)
    if not path.startswith(_UNREAD):
        return field
    return replace(
        field,
        support=Support.DEAD,
        detail="nothing in the Operator reads it",
        objects=False,
        off=None,
    )


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
