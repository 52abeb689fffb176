"""Dynamic resource allocation by a GPUCluster: NVIDIA's DRA driver as the rendered DaemonSet, and pods with claims.

Real: API server, controllers, scheduler, kubelet, containerd, NVIDIA's GPU kubelet plugin and CDI hook, mig-parted.
Simulated: GPUs, their driver and NVML.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dradriver
import migparted
import pytest
from commands import Ran, gpustate
from dradriver import NAME, REPOSITORY, VERSION
from gpupods import MARK, delete, gpu_deployment, gpu_pod, import_image, printed, working
from labkubernetes import create, get, kubectl, logs, wait_for, wait_phase

from gpustate_lab import programs
from gpustate_lab.api import Lab
from gpustate_lab.kubernetes.machine import PLUGIN_UNIT
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = pytest.mark.long

DRIVER, MIG = "gpu.nvidia.com", "mig.nvidia.com"
PLUGIN = "nvidia-dra-driver-kubelet-plugin"
BEFORE, AFTER = "580.65.06", "580.178.04"
POLICY = f"""\
apiVersion: nvidia.com/v1alpha1
kind: GPUCluster
metadata: {{name: gpu-cluster}}
spec:
  draDriver:
    repository: {REPOSITORY}
    image: {NAME}
    version: {VERSION}
    gpus:
      kubeletPlugin:
        env: [{{name: GPUSTATE_LAB_ROOT, value: /host}}]
    computeDomains: {{enabled: false}}
  dcgm: {{enabled: false}}
  dcgmExporter: {{enabled: false}}
---
apiVersion: nvidia.com/v1alpha1
kind: NVIDIADriver
metadata: {{name: driver}}
spec: {{driverType: gpu, version: @DRIVER@, kernelModuleType: open}}
"""
#: Neither DRA driver nor device plugin, and the driver of before.
WITHOUT_DRA = f"""\
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata: {{name: cluster-policy}}
spec:
  driver: {{version: {BEFORE}, kernelModuleType: open}}
  devicePlugin: {{enabled: false}}
  gfd: {{enabled: false}}
  dcgm: {{enabled: false}}
  dcgmExporter: {{enabled: false}}
"""
LAYOUTS = """\
version: v1
mig-configs:
  two:
    - {devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 2}}
    - {devices: [1, 2, 3, 4, 5, 6, 7], mig-enabled: false}
  three:
    - {devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 3}}
    - {devices: [1, 2, 3, 4, 5, 6, 7], mig-enabled: false}
  four:
    - {devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 4}}
    - {devices: [1, 2, 3, 4, 5, 6, 7], mig-enabled: false}
"""


@pytest.fixture(scope="module")
def cluster(
    lab_programs: None,
    lab_factory: Callable[[LabSpec], Lab],
    tmp_path_factory: pytest.TempPathFactory,
) -> Lab:
    # containerd 2 injects CDI devices by default, as a GPUCluster expects.
    lab = lab_factory(LabSpec(nodes=1, images=("debian13-containerd2",), kubernetes="1.36"))
    file = tmp_path_factory.mktemp("policy") / "gpucluster.yaml"
    file.write_text(POLICY.replace("@DRIVER@", BEFORE))
    gpustate(
        "apply", file, "-i", lab.inventory, "--yes", code=0
    )  # images are made on validated nodes
    dradriver.import_image(lab.nodes[0])
    lab.nodes[0].run(["systemctl", "disable", "--now", PLUGIN_UNIT])
    create(lab, template("two", DRIVER, 2), template("mig", MIG, 1))
    return lab


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "gpucluster.yaml"
    file.write_text(POLICY.replace("@DRIVER@", AFTER))
    return file


@pytest.fixture
def applied(cluster: Lab, policy: Path) -> None:
    """The DRA driver runs, whichever test came before."""
    run(cluster, "apply", policy, "--set", "rollout.pods_timeout_s=120", code=0)


def run(lab: Lab, verb: str, policy: Path, *words: str, code: int) -> Ran:
    yes = ("--yes",) if verb in ("apply", "remove") else ()
    return gpustate(verb, policy, "-i", lab.inventory, "--cluster-objects", *yes, *words, code=code)


def devices(lab: Lab, node: Node) -> dict[str, dict[str, Any]]:
    """What the driver offers of a Node, by device."""
    return {
        device["name"]: device["attributes"]
        for slice_ in get(lab, "resourceslices")["items"]
        if slice_["spec"]["driver"] == DRIVER and slice_["spec"].get("nodeName") == node.name
        for device in slice_["spec"]["devices"]
    }


def offered(lab: Lab, node: Node) -> dict[str, str]:
    """Driver's version of each device that the slices offer, by UUID."""
    return {
        attributes["uuid"]["string"]: attributes["driverVersion"]["version"]
        for attributes in devices(lab, node).values()
    }


def uuids_of(node: Node) -> set[str]:
    """What nvidia-smi lists that a pod can have: GPUs that are not divided, and MIG devices."""
    gpus = node.run("nvidia-smi --query-gpu=uuid,mig.mode.current --format=csv,noheader").stdout
    whole = {line.split(",")[0] for line in gpus.splitlines() if "Enabled" not in line}
    listed = node.run("nvidia-smi -L").stdout
    return whole | {
        word.rstrip(")")
        for word in listed.replace("(UUID: ", "").split()
        if word.startswith("MIG-")
    }


def template(name: str, device_class: str, count: int) -> dict[str, Any]:
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}},
    }


def claim(spec: dict[str, Any], template: str) -> None:
    """Let a pod's container have the devices of a claim."""
    spec["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
    spec["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": template}]


def holds_its_claim(lab: Lab, node: Node, ended: set[str]) -> str:
    """Wait until the deployment's pod works on the two GPUs that its claim has; return its container."""
    container: str = wait_for(
        lambda: working(lab, "claims", ended), "a pod works on its claim", 180
    )
    (pod,) = (
        pod
        for pod in get(lab, "pods", "--selector", "app=claims")["items"]
        if any(
            container == status.get("containerID")
            for status in pod["status"].get("containerStatuses", ())
        )
    )
    observed = printed(logs(lab, pod["metadata"]["name"]))
    (status,) = pod["status"]["resourceClaimStatuses"]
    allocation = get(lab, "resourceclaim", status["resourceClaimName"])["status"]["allocation"]
    published = devices(lab, node)
    allocated = {
        published[result["device"]]["uuid"]["string"] for result in allocation["devices"]["results"]
    }
    assert {gpu["uuid"] for gpu in observed["cuda"] if gpu["ok"]} == allocated
    assert len(allocated) == 2
    return container


def test_pod_has_its_claim_before_and_after_a_driver_upgrade_and_mig_changes(
    cluster: Lab, policy: Path, tmp_path: Path
) -> None:
    node = cluster.nodes[0]
    policy.write_text(POLICY.replace("@DRIVER@", BEFORE))
    run(cluster, "apply", policy, "--set", "rollout.pods_timeout_s=120", code=0)
    get(cluster, "deviceclass", DRIVER)
    assert PLUGIN in daemon_sets(cluster)
    wait_for(lambda: len(offered(cluster, node)) == 8, "8 GPUs are offered")
    assert offered(cluster, node) == dict.fromkeys(uuids_of(node), "580.65.6")
    run(cluster, "apply", policy, code=0)
    run(cluster, "drift", policy, code=0)

    interpreter = import_image(node)
    deployment = gpu_deployment("claims", node, interpreter, {})
    claim(deployment["spec"]["template"]["spec"], "two")
    create(cluster, deployment)
    containers = {holds_its_claim(cluster, node, set())}

    # No wait: a pod is scheduled as soon as the node is returned to service.
    policy.write_text(POLICY.replace("@DRIVER@", AFTER))
    gpustate("apply", policy, "-i", cluster.inventory, "--yes", code=0)
    assert offered(cluster, node) == dict.fromkeys(uuids_of(node), "580.178.4")
    containers.add(holds_its_claim(cluster, node, containers))
    assert len(containers) == 2

    layouts = tmp_path / "mig.yaml"
    layouts.write_text(LAYOUTS)
    for layout, count in (("two", 9), ("three", 10)):
        divide(cluster, layouts, layout)
        assert migparted.holds(node, LAYOUTS, layout)
        assert offered(cluster, node) == dict.fromkeys(uuids_of(node), "580.178.4")
        assert len(offered(cluster, node)) == count
        if layout == "two":
            containers.add(holds_its_claim(cluster, node, containers))
    assert holds_its_claim(cluster, node, set()) in containers, "further instances disturb no pod"

    one = gpu_pod("part", node, interpreter, {})
    claim(one["spec"], "mig")
    # A claim of a template goes when its pod ends.
    one["spec"]["containers"][0]["command"][-1] += "import time\ntime.sleep(600)\n"
    create(cluster, one)
    wait_phase(cluster, "part", "Running")
    wait_for(lambda: MARK in logs(cluster, "part"), "the pod has tried its device")
    (device,) = printed(logs(cluster, "part"))["cuda"]
    assert device["ok"]
    assert device["uuid"] in uuids_of(node)
    delete(cluster, "part")

    assert explained(cluster, node) == "ok"
    assert migparted.run(node, "apply", LAYOUTS, "four").returncode == 0
    assert "ResourceSlices offer gpu-0-mig-1g10gb-" in explained(cluster, node)
    kubectl(cluster, "delete", "deployment", "claims")


def divide(lab: Lab, layouts: Path, layout: str) -> None:
    parameters = ("--set", f"mig.config={layout}", "--set", f"mig.file={layouts}")
    gpustate("apply", "mig", "-i", lab.inventory, "--yes", *parameters, code=0)


def explained(lab: Lab, node: Node) -> str:
    """The verdict of ``explain`` on what the scheduler knows of the node's GPUs."""
    found = gpustate("explain", node.name, "-i", lab.inventory, "-o", "json").node(node.name)
    checks = {check["name"]: check for check in found["checks"]}
    assert "scheduler" in checks, found
    return str(checks["scheduler"] if checks["scheduler"]["outcome"] != "ok" else "ok")


@pytest.mark.usefixtures("applied")
def test_a_class_that_was_edited_is_drift_and_is_restored(cluster: Lab, policy: Path) -> None:
    edit = {"spec": {"selectors": [{"cel": {"expression": "device.driver == 'other'"}}]}}
    kubectl(cluster, "patch", "deviceclass", DRIVER, "--type", "merge", "--patch", json.dumps(edit))
    run(cluster, "drift", policy, code=2)
    run(cluster, "apply", policy, "--force-conflicts", code=0)
    run(cluster, "drift", policy, code=0)


@pytest.mark.usefixtures("applied")
def test_compute_domains_are_refused_until_their_definitions_are_installed(
    cluster: Lab, policy: Path, tmp_path: Path
) -> None:
    domains = tmp_path / "domains.yaml"
    domains.write_text(
        policy.read_text().replace("computeDomains: {enabled: false}", "computeDomains: {}")
    )
    refused = run(cluster, "plan", domains, code=5)
    assert "the cluster has no ComputeDomain: install the definitions" in refused.out
    chart = programs.source("dra-driver", print) / "deployments/helm/dra-driver-nvidia-gpu"
    kubectl(cluster, "create", "-f", str(chart / "crds"))
    kubectl(cluster, "wait", "--for=condition=Established", "-f", str(chart / "crds"))
    planned = run(cluster, "plan", domains, code=0)
    assert planned.lists("deployment/nvidia-dra-driver-controller", "create")
    channel = {"resourceClaimTemplate": {"name": "channels"}}
    domain = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": "one"},
        "spec": {"numNodes": 1, "channel": channel},
    }
    create(cluster, domain)


def claiming_deployment(lab: Lab, node: Node) -> str:
    """Create a deployment whose pod holds a claim, and wait for it; name of the pod."""
    deployment = gpu_deployment("claims", node, import_image(node), {})
    claim(deployment["spec"]["template"]["spec"], "two")
    create(lab, deployment)
    holds_its_claim(lab, node, set())
    (pod,) = get(lab, "pods", "--selector", "app=claims")["items"]
    return str(pod["metadata"]["name"])


def daemon_sets(lab: Lab) -> list[str]:
    return [one["metadata"]["name"] for one in get(lab, "daemonsets", "-A")["items"]]


def in_service(lab: Lab, node: Node) -> bool:
    item = get(lab, "node", node.name)
    held = "gpustate.io/hold" in (item["metadata"].get("annotations") or {})
    return not held and not item["spec"].get("unschedulable")


@pytest.mark.usefixtures("applied")
def test_the_driver_and_the_dra_driver_change_in_one_apply(
    cluster: Lab, policy: Path, tmp_path: Path
) -> None:
    node = cluster.nodes[0]
    off = tmp_path / "off.yaml"
    off.write_text(WITHOUT_DRA)
    claiming_deployment(cluster, node)
    refused = run(cluster, "plan", off, code=5)
    assert "only the DRA driver can release resourceclaim default/claims-" in refused.out
    kubectl(cluster, "delete", "deployment", "claims")
    wait_for(lambda: not get(cluster, "resourceclaims")["items"], "the claim is gone", 90)
    run(cluster, "apply", off, code=0)
    assert in_service(cluster, node)
    assert "580.65.06" in node.run("nvidia-smi").stdout
    assert PLUGIN not in daemon_sets(cluster)
    run(cluster, "apply", policy, "--set", "rollout.pods_timeout_s=120", code=0)
    assert in_service(cluster, node)
    wait_for(
        lambda: offered(cluster, node) == dict.fromkeys(uuids_of(node), "580.178.4"),
        "the GPUs are offered with the new driver",
    )


@pytest.mark.usefixtures("applied")
def test_removal_evicts_pods_with_claims_and_leaves_no_class_no_policy_and_no_driver(
    cluster: Lab, policy: Path
) -> None:
    node = cluster.nodes[0]
    name = claiming_deployment(cluster, node)
    note = f"before the DRA driver is deleted, default/{name} is evicted"
    assert note in run(cluster, "plan", policy, "--remove", code=0).out
    run(cluster, "remove", policy, code=0)
    (again,) = get(cluster, "pods", "--selector", "app=claims")["items"]
    assert again["status"]["phase"] == "Pending"
    assert "nodeName" not in again["spec"], "it fails admission nowhere"
    assert in_service(cluster, node)
    kinds = ("deviceclasses", "validatingadmissionpolicies", "validatingadmissionpolicybindings")
    for kind in kinds:
        names = [one["metadata"]["name"] for one in get(cluster, kind)["items"]]
        assert not [name for name in names if "nvidia" in name]
    wait_for(
        lambda: not any(devices(cluster, node) for node in cluster.nodes),
        "the kubelets remove the slices of a driver that has gone",
        90,
    )
    kubectl(cluster, "delete", "deployment", "claims")
