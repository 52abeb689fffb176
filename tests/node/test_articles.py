"""The commands of introductions to the GPU Operator, typed for a cluster's nodes, to pods that use their GPUs.

Real: API server, kubelet, containerd, NVIDIA's device plugin, its configuration manager and GPU feature discovery, node
feature discovery, as pods. Simulated: the GPUs, NVML and the CUDA driver library.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import objectpods
import pytest
from commands import gpustate
from gpupods import allocated, delete, gpu_pod, import_image, report
from labkubernetes import create, get, kubectl, wait_for

from gpustate_lab.api import Lab
from gpustate_lab.spec import LabSpec

ARTICLES = Path(__file__).parents[1] / "data/articles"
POLICY = ARTICLES / "clusterpolicy-with-versions.yaml"
TIME_SLICING = '{"spec":{"devicePlugin":{"config":{"name":"time-slicing-config","default":"any"}}}}'
MIXED = '[{"op":"replace","path":"/spec/mig/strategy","value":"mixed"}]'
PLUGIN = "nvcr.io/nvidia/k8s-device-plugin"
#: The lab's archive has other versions, and no image of the node status exporter.
OF_LAB = (
    "--set",
    "driver.version=580.178.04,toolkit.version=v1.20.1,dcgmExporter.version=4.6.0-4.8.3-distroless,"
    "nodeStatusExporter.enabled=false",
)


@pytest.fixture(scope="module")
def cluster(lab_programs: None, lab_factory: Callable[[LabSpec], Lab]) -> Lab:
    spec = LabSpec(nodes=1, images=("debian13",), gpus=("2xA100",), kubernetes="1.36", pods=True)
    lab = lab_factory(spec)
    lab.nodes[0].run(f"ctr -n k8s.io images tag {PLUGIN}:v0.20.0 {PLUGIN}:v0.16.1")
    return lab


def apply(lab: Lab, *words: str, policy: Path = POLICY) -> None:
    options = (*OF_LAB, *objectpods.settings(lab), "--cluster-objects", "--install-nfd")
    gpustate("apply", policy, "-i", lab.inventory, *options, *words, "--yes", code=0)


def offers(lab: Lab, resource: str) -> int:
    return int(get(lab, "node", "gpu1")["status"].get("allocatable", {}).get(resource, "0"))


def label(lab: Lab, name: str) -> str:
    labels: dict[str, str] = get(lab, "node", "gpu1")["metadata"]["labels"]
    return labels.get(name, "")


def uses_its_gpu(lab: Lab, resource: str) -> None:
    node = lab.nodes[0]
    create(lab, gpu_pod("user", node, import_image(node), {resource: 1}))
    observed = report(lab, "user")
    given = allocated(node, get(lab, "pod", "user")["metadata"]["uid"])
    assert {one["uuid"] for one in observed["cuda"] if one["ok"]} == given
    delete(lab, "user")


@pytest.mark.by_turns
def test_time_slicing_with_a_config_map_beside_the_policy_and_a_mig_layout_by_label(
    cluster: Lab,
) -> None:
    apply(cluster, "-p", TIME_SLICING)
    wait_for(lambda: offers(cluster, "nvidia.com/gpu") == 8, "pods see 4 replicas of each GPU")
    wait_for(lambda: label(cluster, "nvidia.com/gpu.product").endswith("-SHARED"), "-SHARED")
    assert label(cluster, "nvidia.com/gpu.replicas") == "4"
    uses_its_gpu(cluster, "nvidia.com/gpu")

    kubectl(cluster, "label", "node", "gpu1", "nvidia.com/device-plugin.config=any")
    apply(cluster, "-p", TIME_SLICING)
    assert offers(cluster, "nvidia.com/gpu") == 8

    kubectl(cluster, "label", "node", "gpu1", "nvidia.com/device-plugin.config-")
    kubectl(cluster, "label", "node", "gpu1", "nvidia.com/mig.config=all-1g.10gb")
    apply(cluster, "-p", MIXED)
    wait_for(lambda: offers(cluster, "nvidia.com/mig-1g.10gb") == 14, "7 instances of each GPU")
    uses_its_gpu(cluster, "nvidia.com/mig-1g.10gb")
