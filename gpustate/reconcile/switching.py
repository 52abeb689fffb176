"""A cluster changes between NVIDIA's device plugin and its DRA driver: neither knows what the other has allocated.

The one that comes offers every GPU as free, also those that running pods got from the one that goes. So it is not
deleted before these pods are.

Sources:
    Kubernetes API: ResourceClaimStatus (allocation.devices.results, reservedFor), DeviceRequestAllocationResult (adminAccess).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

from gpustate.cluster import pods
from gpustate.manifests.components import dra_driver
from gpustate.manifests.kinds import POD, RESOURCE_CLAIM, Key, Kind, key
from gpustate.manifests.ownership import DEVICE_PLUGIN, DRA_PLUGIN, MissingKind

Json = dict[str, Any]

PLUGIN: Key = ("DaemonSet", DEVICE_PLUGIN)
DRA: Key = ("DaemonSet", DRA_PLUGIN)
_MOST = 5


class Lister(Protocol):
    """The request that is needed; see :class:`gpustate.cluster.objects.Objects`."""

    def list(self, kind: Kind, namespace: str) -> Sequence[Json]: ...


def allocations_lost(objects: Lister, wanted: Collection[Key], item: Json) -> str:
    """Why an object must not be deleted yet: pods use GPUs that the other program would offer as free; empty if it may.

    Args:
        objects: of the cluster.
        wanted: what should be there.
        item: the object that is to go.

    Raises:
        ClusterError: pods or claims cannot be listed.
    """
    if key(item) == PLUGIN and DRA in wanted:
        found, comes = list(_pods(objects)), "the DRA driver"
    elif key(item) == DRA and PLUGIN in wanted:
        found, comes = list(_claims(objects)), "the device plugin"
    else:
        return ""
    if not found:
        return ""
    shown = ", ".join(
        [*found[:_MOST], *([f"and {len(found) - _MOST} more"] if found[_MOST:] else [])]
    )
    return f"{comes} would offer GPUs as free that are in use by {shown}; delete these pods first, or drain their Nodes: kubectl drain NODE --ignore-daemonsets"


def _pods(objects: Lister) -> Iterator[str]:
    """Pods with GPUs of the device plugin."""
    for pod in objects.list(POD, "*"):
        ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        node = (pod.get("spec") or {}).get("nodeName")
        if node and not ended and any(pods.requested(pod).values()):
            yield f"pod {_name(pod)} on {node}"


def _claims(objects: Lister) -> Iterator[str]:
    """Claims with GPUs of the DRA driver, with their pods; access for monitoring uses none."""
    try:
        claims = objects.list(RESOURCE_CLAIM, "*")
    except MissingKind:
        return
    for claim in claims:
        status = claim.get("status") or {}
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
        if not any(
            one.get("driver") == dra_driver.GPU and not one.get("adminAccess") for one in results
        ):
            continue
        users = [str(one.get("name")) for one in status.get("reservedFor") or ()]
        by = f" of pod {', '.join(users)}" if users else ""
        yield f"resourceclaim {_name(claim)}{by}"


def _name(item: Json) -> str:
    return f"{item['metadata'].get('namespace', 'default')}/{item['metadata']['name']}"
