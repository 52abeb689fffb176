"""What a support bundle has of a Kubernetes cluster: Nodes, their Events, gpustate's and NVIDIA's pods, the Lease.

They come from the API server, so a node that ssh cannot reach has them, too.

Values that users put into pods (environment, commands, volumes) are left out: they may be secrets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpustate.cluster import pods
from gpustate.cluster.api import connected
from gpustate.cluster.kubeconfig import Kubeconfig
from gpustate.core.facts import NodeFacts
from gpustate.core.inventory import InventoryNode
from gpustate.documents import Json
from gpustate.errors import ClusterError, GpustateError
from gpustate.schedulers.eviction import is_operand
from gpustate.schedulers.lease import NAME, NAMESPACE

#: The file of the Lease, beside those of the nodes.
LEASE = "leases/gpustate"


def collect(
    kubeconfig: Kubeconfig, nodes: Sequence[InventoryNode], facts: Mapping[str, NodeFacts]
) -> tuple[dict[str, Json], dict[str, str]]:
    """Objects by file, and why there are none for others.

    Args:
        kubeconfig: of the cluster.
        nodes: of the inventory. One without facts is matched by its name or address.
        facts: of the nodes that were reached, by name.

    Raises:
        GpustateError: the cluster cannot be used.
    """
    with connected(kubeconfig) as api:
        listed = api.nodes()
        index = pods.NodeIndex(listed)
        objects: dict[str, Json] = {}
        missing: dict[str, str] = {}
        try:
            lease = api.lease(NAMESPACE, NAME)
        except GpustateError as error:
            missing[LEASE] = str(error)
        else:
            if lease is not None:
                objects[LEASE] = {**lease, "metadata": _metadata(lease)}
        try:
            events = api.node_events()
        except GpustateError as error:
            events = []
            missing["events"] = str(error)
        for member in nodes:
            try:
                node = _node_of(member, facts.get(member.name), listed, index)
                name = node["metadata"]["name"]
                on_it = api.pods_on(name)
            except pods.Verdict as verdict:
                missing[member.name] = verdict.check.evidence
                continue
            except GpustateError as error:
                missing[member.name] = str(error)
                continue
            objects[member.name] = {
                "node": node_data(node),
                "events": [event_data(event) for event in events if _is_of(event, name)],
                "pods": [pod_data(pod) for pod in on_it if _is_ours(pod) or is_operand(pod)],
            }
        return objects, missing


def _node_of(
    member: InventoryNode, facts: NodeFacts | None, listed: Sequence[Json], index: pods.NodeIndex
) -> Json:
    """The Node of a machine.

    Raises:
        Verdict: no Node has its ids, or several have.
        ClusterError: it was not reached, and not exactly one Node has its name or address.
    """
    if facts is not None:
        machine = pods.Machine(facts.boot_id, facts.machine_id, facts.system_uuid)
        return index.match(machine, any_boot=True)
    names = {member.name, member.connection.host or member.name}
    same = [node for node in listed if names & set(pods.names_of(node))]
    if len(same) != 1:
        how = "no Node has" if not same else f"{len(same)} Nodes have"
        raise ClusterError(
            f"the node was not reached, and {how} its name or address: {', '.join(sorted(names))}"
        )
    return same[0]


def _is_of(event: Json, name: str) -> bool:
    return bool((event.get("involvedObject") or {}).get("name") == name)


def event_data(event: Json) -> Json:
    """An Event: what, why, how often and when."""
    keys = ("type", "reason", "message", "count", "firstTimestamp", "lastTimestamp", "eventTime")
    return {key: event.get(key) for key in keys}


def _metadata(item: Json) -> Json:
    """Metadata without who manages its fields."""
    return {key: value for key, value in item["metadata"].items() if key != "managedFields"}


def _is_ours(pod: Json) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in pods.LABELS.items())


def node_data(node: Json) -> Json:
    """A Node without who manages its fields and which images it has."""
    status = {key: value for key, value in (node.get("status") or {}).items() if key != "images"}
    return {"metadata": _metadata(node), "spec": node.get("spec") or {}, "status": status}


def pod_data(pod: Json) -> Json:
    """A pod: names, images and status."""
    meta = pod["metadata"]
    containers = (pod.get("spec") or {}).get("containers") or ()
    return {
        **{key: meta.get(key) for key in ("namespace", "name", "uid", "labels", "ownerReferences")},
        "created": meta.get("creationTimestamp"),
        "images": [str(container.get("image") or "") for container in containers],
        "status": pod.get("status") or {},
    }
