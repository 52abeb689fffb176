"""Virtual nodes: kwok reports them as Ready and their pods as running.

They have eight GPUs, as labels and as a resource. A taint keeps pods off that do not tolerate it, since pods on
such nodes do not really run.

Source: sigs.k8s.io/kwok v0.8.0, pkg/kwok/cmd and kustomize/stage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpustate_lab.kubernetes.client import Client

LABEL = "type"
LABEL_VALUE = "kwok"
ANNOTATION = "kwok.x-k8s.io/node"
TAINT = {"key": ANNOTATION, "value": "fake", "effect": "NoSchedule"}
GPUS = 8
CONNECTIONS = 8
PARALLEL = 16
#: kwok renews leases after a quarter of it; a node is lost after 50 s.
LEASE_S = 100
#: Files below ``stage`` in kwok's module.
STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/general")
PORT = 10247
_PAGE = 500


def name_of(number: int) -> str:
    return f"virtual{number}"


def manifest(number: int) -> dict[str, Any]:
    """Return a virtual node, numbered from 1: an 8-GPU H100 machine with the labels of GFD."""
    name = name_of(number)
    resources = {
        "cpu": "112",
        "memory": "2048Gi",
        "ephemeral-storage": "7Ti",
        "pods": "110",
        "nvidia.com/gpu": str(GPUS),
    }
    labels = {
        LABEL: LABEL_VALUE,
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": str(GPUS),
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.family": "hopper",
    }
    return {
        "metadata": {"name": name, "labels": labels, "annotations": {ANNOTATION: "fake"}},
        "spec": {"taints": [TAINT], "providerID": f"kwok://{name}"},
        "status": {"allocatable": resources, "capacity": resources},
    }


def configuration() -> str:
    """Return kwok's configuration, with more parallelism than its default of four."""
    names = ("nodeLease", "nodePlayStage", "podPlayStage")
    document = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {f"{name}Parallelism": PARALLEL for name in names},
    }
    return json.dumps(document)


def arguments(kubeconfig: str, files: list[str], address: str) -> list[str]:
    """Return the arguments of kwok.

    Args:
        files: :func:`configuration` and stages.
        address: to listen on.
    """
    return [
        f"--kubeconfig={kubeconfig}",
        f"--manage-nodes-with-annotation-selector={ANNOTATION}=fake",
        f"--node-lease-duration-seconds={LEASE_S}",
        f"--server-address={address}:{PORT}",
        *(f"--config={file}" for file in files),
    ]


def create(client: Client, count: int) -> None:
    """Create missing nodes in parallel."""
    existing = {item["metadata"]["name"] for item in _list(client)}
    missing = [number for number in range(1, count + 1) if name_of(number) not in existing]

    def create_share(numbers: list[int]) -> None:
        try:
            for number in numbers:
                client.create("/api/v1/nodes", manifest(number))
        finally:
            client.close()

    shares = [missing[start::CONNECTIONS] for start in range(CONNECTIONS)]
    with ThreadPoolExecutor(max_workers=CONNECTIONS) as pool:
        list(pool.map(create_share, shares))


def count_ready(client: Client) -> int:
    """Return the number of Ready virtual nodes."""
    return sum(is_ready(item) for item in _list(client))


def is_ready(node: dict[str, Any]) -> bool:
    """Whether the condition Ready of a Node is True."""
    conditions = node.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _list(client: Client) -> Iterator[dict[str, Any]]:
    start = ""
    while True:
        path = f"/api/v1/nodes?labelSelector={LABEL}%3D{LABEL_VALUE}&limit={_PAGE}"
        page = client.get(path + (f"&continue={start}" if start else ""))
        yield from page["items"]
        start = page["metadata"].get("continue", "")
        if not start:
            return
