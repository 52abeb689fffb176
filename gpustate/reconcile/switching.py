"""What goes with NVIDIA's device plugin or its DRA driver: neither knows what the other one has allocated.

The one that comes offers every GPU as free, also those that running pods got from the one that goes. So it is not
deleted before these pods are. The DRA driver is not in any case: a pod with a claim ends only where its plugin runs.

Sources:
    Kubernetes API: ResourceClaimStatus (allocation.devices.results, reservedFor), DeviceRequestAllocationResult (adminAccess).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from gpustate.cluster import pods
from gpustate.documents import Json
from gpustate.formats.words import listed
from gpustate.manifests.components import dra_driver
from gpustate.manifests.kinds import POD, RESOURCE_CLAIM, Key, Kind, key
from gpustate.manifests.ownership import DEVICE_PLUGIN, DRA_PLUGIN, MissingKind

PLUGIN: Key = ("DaemonSet", DEVICE_PLUGIN)
DRA: Key = ("DaemonSet", DRA_PLUGIN)
_MOST = 5
_OF_POD = " of pod "


class Lister(Protocol):
    """The request that is needed; see :class:`gpustate.cluster.objects.Objects`."""

    def list(self, kind: Kind, namespace: str) -> Sequence[Json]: ...


def allocations_lost(objects: Lister, keys: Collection[Key], item: Json) -> str:
    """Why an object must not be deleted yet: pods use GPUs that nothing else releases, or offers as free; empty if it may.

    Args:
        objects: of the cluster.
        keys: what should be there.
        item: the object that is to go.

    Raises:
        ClusterError: pods or claims cannot be listed.
    """
    free = "would offer GPUs as free that are in use by"
    if key(item) == PLUGIN and DRA in keys:
        users, why = list(_pods(objects)), f"the DRA driver {free}"
    elif key(item) == DRA:
        users = [claim for claim, monitors in _claims(objects) if not monitors]
        why = "only the DRA driver can release"
        why = f"the device plugin {free}" if PLUGIN in keys else why
    else:
        return ""
    if not users:
        return ""
    return f"{why} {listed(users, _MOST)}; delete these pods first, or drain their Nodes: kubectl drain NODE --ignore-daemonsets"


def claims_in_use(objects: Lister) -> str:
    """The claims that pods hold of the DRA driver, those for monitoring included; empty without any.

    Raises:
        ClusterError: claims cannot be listed.
    """
    return listed([claim for claim, _ in _claims(objects) if _OF_POD in claim], _MOST)


def _pods(objects: Lister) -> Iterator[str]:
    """Pods with GPUs of the device plugin."""
    for pod in objects.list(POD, "*"):
        ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        node = (pod.get("spec") or {}).get("nodeName")
        if node and not ended and any(pods.requested(pod).values()):
            yield f"pod {_name(pod)} on {node}"


def _claims(objects: Lister) -> Iterator[tuple[str, bool]]:
    """Claims with devices of the DRA driver, with their pods, and whether they are for monitoring, which uses no GPU."""
    try:
        claims = objects.list(RESOURCE_CLAIM, "*")
    except MissingKind:
        return
    for claim in claims:
        status = claim.get("status") or {}
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
        devices = [device for device in results if device.get("driver") == dra_driver.GPU]
        if devices:
            users = [str(user.get("name")) for user in status.get("reservedFor") or ()]
            by = f"{_OF_POD}{', '.join(users)}" if users else ""
            monitors = all(device.get("adminAccess") for device in devices)
            yield f"resourceclaim {_name(claim)}{by}", monitors


def _name(item: Json) -> str:
    return f"{item['metadata'].get('namespace', 'default')}/{item['metadata']['name']}"
