"""A driver upgrade of four real nodes under GPU pods with a budget, in two waves.

Real: API server, disruption controller, scheduler, kubelets, containerd, NVIDIA's device plugin as pods of a
DaemonSet. Simulated: the GPUs, NVML and the CUDA driver library.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpupods
import pluginpods
import pytest
from commands import gpustate
from labkubernetes import audit, create, get, kubectl, pod, wait_for

from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.proof, pytest.mark.node]

POLICY = Path(__file__).parents[2] / "docs/examples/clusterpolicy.yaml"
OLD, NEW = "570.211.01", "580.65.06"
IMAGES = ("debian13", "debian13-containerd2", "debian13", "debian13-containerd2")
GPUS = {"nvidia.com/gpu": 8}
#: Each takes the GPUs of a whole node, so three of four nodes are in use.
REPLICAS = 3
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}
BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "training"},
    "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "training"}}},
}


@dataclass(slots=True)
class Seen:
    """What the API showed while the rollout went on.

    Args:
        cordoned: most Nodes that were unschedulable at a time.
        begun: Nodes in the order in which they were cordoned, each with what all others offered then.
        healthy: fewest pods of the budget that were Ready.
    """

    cordoned: int = 0
    begun: list[tuple[str, list[int]]] = field(default_factory=list[tuple[str, list[int]]])
    healthy: int = REPLICAS
    asked: int = 0


def offers(node: dict[str, Any]) -> int:
    return int(node["status"].get("allocatable", {}).get("nvidia.com/gpu", "0"))


@contextmanager
def watched(lab: Lab) -> Iterator[Seen]:
    """Ask the API server the whole time."""
    seen, over = Seen(), threading.Event()

    def look() -> None:
        out: set[str] = set()
        while not over.wait(0.3):
            nodes = get(lab, "nodes")["items"]
            now = {one["metadata"]["name"] for one in nodes if one["spec"].get("unschedulable")}
            for name in sorted(now - out):
                others = [offers(one) for one in nodes if one["metadata"]["name"] != name]
                seen.begun.append((name, others))
            out = now
            seen.cordoned = max(seen.cordoned, len(now))
            status = get(lab, "pdb", "training")["status"]
            seen.healthy = min(seen.healthy, status["currentHealthy"])
            seen.asked += 1

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield seen
        finally:
            over.set()
            looking.result()


@pytest.fixture(scope="module")
def cluster(lab_programs: None, lab_factory: Callable[[LabSpec], Lab]) -> Lab:
    """Four nodes with the old driver, on which the plugin's pods offer eight GPUs each."""
    lab = lab_factory(LabSpec(nodes=4, images=IMAGES, kubernetes="1.36"))
    gpustate(
        *("apply", POLICY, "--set", f"driver.version={OLD}", "-i", lab.inventory, "--yes"), code=0
    )
    create(lab, RUNTIME_CLASS)
    pluginpods.deploy(lab)
    for node in lab.nodes:
        wait_for(lambda node=node: offers(get(lab, "node", node.name)) == 8, f"GPUs of {node.name}")
    return lab


def training(lab: Lab) -> dict[str, Any]:
    """Deployment whose pods take all GPUs of a node, whichever it is."""
    interpreters = {gpupods.import_image(node) for node in lab.nodes}
    (interpreter,) = interpreters
    made = gpupods.gpu_deployment("training", lab.nodes[0], interpreter, GPUS)
    made["spec"]["replicas"] = REPLICAS
    spec = made["spec"]["template"]["spec"]
    spec.pop("nodeName", None)
    spec.pop("nodeSelector", None)
    spec["runtimeClassName"] = "nvidia"
    return made


def plain(node: Node) -> dict[str, Any]:
    """Deployment of a pod without a GPU."""
    made = gpupods.gpu_deployment("plain", node, "sh", {})
    spec = pod("plain", "sleep 100000", node=node.name, restartPolicy="Always")["spec"]
    made["spec"]["template"]["spec"] = spec
    return made


def pods(lab: Lab, app: str) -> dict[str, dict[str, Any]]:
    found = get(lab, "pods", "--selector", f"app={app}")["items"]
    return {one["metadata"]["uid"]: one for one in found if one["status"]["phase"] == "Running"}


def driver_version(node: Node) -> str:
    query = "nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1"
    return node.run(query).stdout.strip()


def test_a_driver_goes_over_four_nodes_in_two_waves_and_no_budget_is_broken(cluster: Lab) -> None:
    create(cluster, BUDGET)
    create(cluster, training(cluster))
    create(cluster, plain(cluster.nodes[1]))
    wait_for(lambda: len(pods(cluster, "training")) == REPLICAS, "the pods with GPUs run")
    before = set(pods(cluster, "training"))
    foreign = wait_for(lambda: set(pods(cluster, "plain")), "the pod without a GPU runs")
    plugins = {
        one["metadata"]["uid"] for one in get(cluster, "-n", pluginpods.NAMESPACE, "pods")["items"]
    }

    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    words = ("--set", f"driver.version={NEW}", "-i", cluster.inventory, "--yes")
    with watched(cluster) as seen:
        gpustate(
            *("apply", POLICY, *words, "--serial", "1,3", "--max-unavailable", "1"),
            *("--reason", "CHG-8"),
            code=0,
        )
    assert seen.asked > 20
    assert seen.cordoned == 1
    assert sorted(name for name, _ in seen.begun) == [node.name for node in cluster.nodes]
    for name, others in seen.begun:
        assert others == [8, 8, 8], f"{name} was begun while others offered {others}"
    assert seen.healthy >= REPLICAS - 1
    assert {driver_version(node) for node in cluster.nodes} == {NEW}
    assert not any(one["spec"].get("unschedulable") for one in get(cluster, "nodes")["items"])

    wait_for(lambda: len(pods(cluster, "training")) == REPLICAS, "the pods are back")
    assert before.isdisjoint(pods(cluster, "training"))
    assert set(pods(cluster, "plain")) == foreign
    now = {
        one["metadata"]["uid"] for one in get(cluster, "-n", pluginpods.NAMESPACE, "pods")["items"]
    }
    assert plugins.isdisjoint(now), "the plugin's pods were started again, with the new driver"
    evictions = [
        entry
        for entry in audit(cluster)
        if entry["requestReceivedTimestamp"] >= since
        and (entry.get("objectRef") or {}).get("subresource") == "eviction"
    ]
    assert {entry["objectRef"]["name"].rsplit("-", 2)[0] for entry in evictions} == {"training"}
    kubectl(cluster, "delete", "deployment", "training", "plain")


def test_a_second_apply_changes_nothing_and_holds_nothing(cluster: Lab) -> None:
    words = ("--set", f"driver.version={NEW}", "-i", cluster.inventory, "--yes")
    done = gpustate("apply", POLICY, *words, "--serial", "1,3", "--max-unavailable", "1", code=0)
    assert "changed=0" in done.out
