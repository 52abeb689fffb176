"""The GPU Operator's Helm values: ClusterPolicy's spec with other names in some places.

Only what the chart does differently stands here. Keys of the subchart and of the Operator's own
Deployment are not looked into.

Sources:
    NVIDIA/gpu-operator v26.7: deployments/gpu-operator/{values.yaml,templates/clusterpolicy.yaml}.
"""

from __future__ import annotations

from gpustate.clusterpolicy.asked import Source
from gpustate.clusterpolicy.blocks import (
    ENV,
    IMAGE,
    RESOURCES,
    TOLERATIONS,
    Leaves,
    honoured,
    kubernetes,
    later,
    under,
)
from gpustate.clusterpolicy.documents import Item
from gpustate.clusterpolicy.leaves import CLUSTER_POLICY
from gpustate.errors import PolicyError

_DEPLOYMENT = "about the Operator's own Deployment"
_CHART = "what the chart itself installs"
_DRA = "about the DRA driver, which has no state yet"
_INLINE = "a ConfigMap the chart creates, for a component without a state yet"

#: Not in a ClusterPolicy, or not with this meaning.
_CHART_ONLY: Leaves = {
    **under("operator", IMAGE, RESOURCES, ENV, TOLERATIONS),
    **under(
        "operator",
        {
            "priorityClassName": kubernetes("string", _DEPLOYMENT),
            "nodeSelector": kubernetes("map[string]", _DEPLOYMENT),
            "affinity": kubernetes("any", _DEPLOYMENT),
            "logging": kubernetes("any", _DEPLOYMENT),
            "cleanupCRD": kubernetes("boolean", _CHART),
            "upgradeCRD": kubernetes("boolean", _CHART),
        },
    ),
    "platform.openshift": kubernetes("boolean", _CHART),
    "nfd.enabled": kubernetes("boolean", _CHART),
    "nfd.nodefeaturerules": kubernetes("boolean", _CHART),
    "node-feature-discovery": kubernetes("any", _CHART),
    "clusterPolicy.deployCR": kubernetes("boolean", _CHART),
    "gpuCluster.deployCR": later("boolean", _DRA),
    "draDriver": kubernetes("any", _DRA),
    "extraObjects": kubernetes("any", _CHART),
    "global": kubernetes("any", _CHART),
    "nameOverride": kubernetes("string", _CHART),
    "fullnameOverride": kubernetes("string", _CHART),
    "driver.nvidiaDriverCRD.enabled": honoured("boolean", "driver, which the values describe too"),
    "driver.nvidiaDriverCRD.deployDefaultCR": honoured(
        "boolean", "false: the NVIDIADriver in the same file"
    ),
    "driver.nvidiaDriverCRD.driverType": honoured(
        "string",
        "driver, when it is 'gpu'; the others are refused",
        choices=("gpu", "vgpu", "vgpu-host-manager"),
    ),
    "driver.nvidiaDriverCRD.nodeSelector": honoured("map[string]", "refused unless empty"),
    "dcgmExporter.config.create": later("boolean", _INLINE),
    "dcgmExporter.config.data": later("any", _INLINE),
    **{
        f"{section}.config.{key}": later("boolean" if key == "create" else "any", _INLINE)
        for section in ("devicePlugin", "migManager")
        for key in ("create", "data")
    },
}


def _renamed() -> Leaves:
    """ClusterPolicy's leaves under the names of the chart."""
    old, new = "driver.upgradePolicy.podDeletion.", "driver.upgradePolicy.gpuPodDeletion."
    return {
        (new + path.removeprefix(old) if path.startswith(old) else path): leaf
        for path, leaf in CLUSTER_POLICY.items()
        if path != "driver.useNvidiaDriverCRD"
    }


HELM: Leaves = {
    **_renamed(),
    **_CHART_ONLY,
}
SECTIONS = frozenset(path.partition(".")[0] for path in HELM)


def check_chart(source: Source) -> Item | None:
    """Refuse what has no states: the DRA stack, a driver for some nodes only.

    Returns:
        The key that leaves the driver to an NVIDIADriver which the chart does not make itself.

    Raises:
        PolicyError: with the line of the value.
    """
    dra = source.spec.get("gpuCluster", "deployCR")
    if dra is not None and dra.value:
        raise PolicyError(
            "gpuCluster.deployCR asks for the DRA stack, which has no states yet",
            place=source.place(dra),
            fix="wanted clusterPolicy.deployCR",
        )
    crd = source.spec.get("driver", "nvidiaDriverCRD")
    enabled = crd.get("enabled") if crd is not None else None
    if crd is None or enabled is None or not enabled.value:
        return None
    made = crd.get("deployDefaultCR")
    if made is not None and not made.value:
        return made
    driver_type, selector = crd.get("driverType"), crd.get("nodeSelector")
    if driver_type is not None and driver_type.value != "gpu":
        raise PolicyError(
            f"driver.nvidiaDriverCRD.driverType is {driver_type.value!r}, wanted 'gpu'",
            place=source.place(driver_type),
        )
    if selector is not None and selector.value:
        raise PolicyError(
            "driver.nvidiaDriverCRD.nodeSelector asks for labels, which an inventory does not have",
            place=source.place(selector),
            fix="take it away and choose the nodes with --limit",
        )
    return None
