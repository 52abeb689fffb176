"""The commands of introductions to the GPU Operator, typed for a cluster's nodes, to pods that use their GPUs.

Each row of commands begins where the one before it has ended. Real: API server, kubelet, containerd and systemd as
kubeadm leaves them on Ubuntu 24.04, NVIDIA's device plugin, its configuration manager and GPU feature discovery, node
feature discovery, as pods. Simulated: the GPUs, NVML and the CUDA driver library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import objectpods
import pytest
from commands import gpustate
from gpupods import allocated, delete, gpu_pod, import_image, opened, report
from labkubernetes import create, get, kubectl, pod, wait_for, wait_phase
from shares import share

from gpustate_lab.api import Lab
from gpustate_lab.spec import LabSpec

pytestmark = pytest.mark.long

ARTICLES = Path(__file__).parents[1] / "data/articles"
POLICY = str(ARTICLES / "clusterpolicy-with-versions.yaml")
TIME_SLICING = '{"spec":{"devicePlugin":{"config":{"name":"time-slicing-config","default":"any"}}}}'
MIXED = '[{"op":"replace","path":"/spec/mig/strategy","value":"mixed"}]'
JOBS = '{"spec":{"dcgmExporter":{"enabled":true,"hpcJobMapping":{"enabled":true,"directory":"/var/jobs"}}}}'
HELM = ("driver.enabled", "devicePlugin.enabled", "dcgmExporter.enabled", "gfd.enabled")
METRICS = (
    "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9400/metrics').read().decode())"
)
PLUGIN = "nvcr.io/nvidia/k8s-device-plugin"
GPU = "nvidia.com/gpu"
#: The lab's archive has other versions, and no image of the node status exporter.
OF_LAB = (
    "--set",
    "toolkit.version=v1.20.1,dcgmExporter.version=4.6.0-4.8.3-distroless,nodeStatusExporter.enabled=false",
)
DRIVER = ("--set", "driver.version=580.178.04")


def nothing_more(_: Lab) -> None:
    """The pods say it all."""


def has_the_plugin_of_the_file(lab: Lab) -> None:
    pods = get(lab, "pods", "--namespace", "gpu-operator")["items"]
    images = {container["image"] for one in pods for container in one["spec"]["containers"]}
    assert f"{PLUGIN}:v0.16.1" in images


def is_shared(lab: Lab) -> None:
    wait_for(lambda: label(lab, "nvidia.com/gpu.product").endswith("-SHARED"), "-SHARED")
    assert label(lab, "nvidia.com/gpu.replicas") == "4"


def maps_jobs(lab: Lab) -> None:
    assert "/var/jobs" in lab.nodes[0].run("systemctl cat nvidia-dcgm-exporter").stdout


def has_the_counters_of_the_config_map(lab: Lab) -> None:
    metrics = lab.nodes[0].run(["python3", "-c", METRICS]).stdout
    assert "DCGM_FI_DEV_POWER_USAGE{" in metrics
    assert "DCGM_FI_DEV_SM_CLOCK" not in metrics


@dataclass(frozen=True, slots=True)
class Row:
    """What a reader types, and what pods get then.

    Args:
        title: in the list of tests.
        words: of ``gpustate apply``.
        resource, count: that the Node offers.
        labels: that the reader gives to the Node before.
        check: what else holds.
    """

    title: str
    words: tuple[str, ...]
    resource: str = GPU
    count: int = 2
    labels: tuple[str, ...] = ()
    check: Callable[[Lab], None] = nothing_more

    def __str__(self) -> str:
        return self.title


ROWS = (
    Row("a file with versions", (POLICY, *DRIVER), check=has_the_plugin_of_the_file),
    Row("no file", (*(word for key in HELM for word in ("--set", f"{key}=true")), *DRIVER)),
    # There is no image of the exporter, which is no service of nodes whose driver others manage.
    Row(
        "the image's drivers",
        (
            "--set",
            "driver.enabled=false,dcgmExporter.enabled=false",
            "--set",
            "toolkit.enabled=true",
        ),
    ),
    Row(
        "values of a release", (str(ARTICLES / "values-prod.yaml"), "--release", "v26.3.1", *DRIVER)
    ),
    Row("a JSON patch", (POLICY, "-p", MIXED, *DRIVER)),
    Row("job mapping", (POLICY, "-p", JOBS, *DRIVER), check=maps_jobs),
    Row(
        "counters",
        (POLICY, "--set", "dcgmExporter.config.name=dcgm-metrics", *DRIVER),
        check=has_the_counters_of_the_config_map,
    ),
    Row("time-slicing", (POLICY, "-p", TIME_SLICING, *DRIVER), count=8, check=is_shared),
    Row(
        "time-slicing by label",
        (POLICY, "-p", TIME_SLICING, *DRIVER),
        count=8,
        labels=("nvidia.com/device-plugin.config=any",),
        check=is_shared,
    ),
    Row(
        "a MIG layout by label",
        (POLICY, "-p", MIXED, *DRIVER),
        resource="nvidia.com/mig-1g.10gb",
        count=14,
        labels=("nvidia.com/device-plugin.config-", "nvidia.com/mig.config=all-1g.10gb"),
    ),
)


@pytest.fixture(scope="module")
def cluster(lab_programs: None, kubeadm_labs: Callable[[LabSpec], Lab]) -> Lab:
    lab = kubeadm_labs(LabSpec(nodes=1, gpus=("2xA100",), kubernetes="1.36", pods=True))
    for version in ("v0.16.1", "v0.19.0"):  # of the file, and of the chart of v26.3.1
        lab.nodes[0].run(f"ctr -n k8s.io images tag {PLUGIN}:v0.20.0 {PLUGIN}:{version}")
    # The driver of an image is there before any command.
    options = (
        *OF_LAB,
        *objectpods.settings(lab),
        "--cluster-objects",
        "--set",
        "cluster.install_nfd=true",
    )
    gpustate("apply", POLICY, "-i", lab.inventory, *DRIVER, *options, "--yes", code=0)
    return lab


def offers(lab: Lab, resource: str) -> int:
    return int(get(lab, "node", "gpu1")["status"].get("allocatable", {}).get(resource, "0"))


def label(lab: Lab, name: str) -> str:
    labels: dict[str, str] = get(lab, "node", "gpu1")["metadata"]["labels"]
    return labels.get(name, "")


@pytest.mark.long
@pytest.mark.parametrize("row", share("commands of introductions", ROWS, most=1), ids=str)
def test_pods_use_their_gpus_and_keep_them_over_a_daemon_reload(cluster: Lab, row: Row) -> None:
    for words in row.labels:
        kubectl(cluster, "label", "node", "gpu1", words)
    options = (
        *OF_LAB,
        *objectpods.settings(cluster),
        "--cluster-objects",
        "--set",
        "cluster.install_nfd=true",
    )
    gpustate("apply", *row.words, "-i", cluster.inventory, *options, "--yes", code=0)
    wait_for(lambda: offers(cluster, row.resource) == row.count, f"{row.count} {row.resource}")
    row.check(cluster)

    node = cluster.nodes[0]
    create(cluster, gpu_pod("user", node, import_image(node), {row.resource: 1}))
    observed = report(cluster, "user")
    devices = allocated(node, get(cluster, "pod", "user")["metadata"]["uid"])
    assert {gpu["uuid"] for gpu in observed["cuda"] if gpu["ok"]} == devices

    keeper = pod("keeper", "sleep 10000", node=node.name)
    keeper["spec"]["containers"][0]["resources"] = {"limits": {row.resource: 1}}
    create(cluster, keeper)
    wait_phase(cluster, "keeper", "Running")
    before = opened(cluster, "keeper")
    assert [line.endswith("Operation not permitted") for line in before] == [False, False, True]
    node.run("systemctl daemon-reload")
    assert opened(cluster, "keeper") == before
    delete(cluster, "user", "keeper")
    again = gpustate("apply", *row.words, "-i", cluster.inventory, *options, "--yes", code=0)
    assert again.summary["changed"] == "0"
