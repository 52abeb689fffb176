"""Thousands of Nodes and pods in a local control plane: virtual nodes of the lab's with identities, pods bound to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from localcluster import NODES, LocalCluster

from gpustate.core.outcome import NodeResult
from gpustate.documents import Json
from gpustate_lab.kubernetes import virtual

_CONNECTIONS = 8
_PODS = "/api/v1/namespaces/default/pods"
_INFO = ("architecture", "kernelVersion", "kubeProxyVersion", "kubeletVersion", "operatingSystem")
_GPU = {"address": "0000:1b:00.0", "device_id": "2330", "class_id": "030200", "driver": "nvidia"}


def ids(number: int) -> dict[str, str]:
    """Boot id, machine id and system UUID of a node."""
    return {
        "boot_id": f"00000000-0000-4000-8000-{number:012d}",
        "machine_id": f"{number:032x}",
        "system_uuid": f"11111111-0000-4000-8000-{number:012d}",
    }


def node(number: int) -> Json:
    """A Node."""
    made = virtual.manifest(number)
    own = ids(number)
    info = {
        **dict.fromkeys((*_INFO, "osImage", "containerRuntimeVersion"), "x"),
        "bootID": own["boot_id"],
        "machineID": own["machine_id"],
        "systemUUID": own["system_uuid"],
    }
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    made["status"] |= {"nodeInfo": info, "conditions": [ready]}
    return made


def pod(number: int, nodes: int) -> Json:
    """A pod that is bound to one of so many nodes; every second one uses a GPU."""
    limits = {"nvidia.com/gpu": "1"} if number % 2 else {"cpu": "1"}
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    return {
        "metadata": {"name": f"pod{number}", "labels": {"app": f"app{number % 50}"}},
        "spec": {
            "nodeName": virtual.name_of(number % nodes + 1),
            "automountServiceAccountToken": False,
            "containers": [container],
            "tolerations": [{"operator": "Exists"}],
        },
    }


def fill(cluster: LocalCluster, nodes: int, pods: int) -> None:
    """Create Nodes and pods in parallel."""
    cluster.client.create(
        "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}}
    )
    _create(cluster, NODES, node, range(1, nodes + 1))
    _create(cluster, _PODS, lambda number: pod(number, nodes), range(pods))


def _create(
    cluster: LocalCluster, path: str, make: Callable[[int], Json], numbers: Sequence[int]
) -> None:
    def share(start: int) -> None:
        client = cluster.own_client()
        try:
            for number in numbers[start::_CONNECTIONS]:
                client.create(path, make(number))
        finally:
            client.close()

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        list(pool.map(share, range(_CONNECTIONS)))


def result(number: int) -> NodeResult:
    """What a run knows of the machine of a Node."""
    facts: dict[str, object] = {**ids(number), "pci": [_GPU]}
    return NodeResult(virtual.name_of(number), facts=facts)
