"""Dynamic resource allocation: the rendered objects, a driver as pods of the rendered DaemonSet, and pods with claims.

Real: API server, controllers, scheduler, kubelets, containerd. Simulated: the GPUs, and NVIDIA's driver, which cannot be
built from Go modules; the lab's stand-in takes its name, its variables and its attributes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Ran, gpustate
from gpupods import MARK, VALIDATOR, delete, gpu_pod, import_image, printed
from labkubernetes import create, get, kubectl, logs, wait_for, wait_phase

from gpustate_lab import programs
from gpustate_lab.api import Lab
from gpustate_lab.kubernetes.cluster import Kubernetes
from gpustate_lab.kubernetes.machine import PLUGIN_UNIT
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = pytest.mark.proof

DRIVER = "gpu.nvidia.com"
IMAGE = "registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu:v0.5.0"
NODES = Path(__file__).parents[2] / "docs/examples/clusterpolicy.yaml"
POLICY = """\
from gpustate import Policy
from gpustate.manifests import ClusterObjects, Component, Container, DraDriver
from gpustate.states.preflight import PreflightPassed

policy = Policy(
    PreflightPassed(),
    cluster=ClusterObjects(
        device_plugin=Component(enabled=False),
        feature_discovery=Component(enabled=False),
        dra_driver=DraDriver(
            image="@IMAGE@",
            host_network=True,
            compute_domains=False,
            gpus=Container(env=@ENV@, healthcheck_port=51516),
        ),
    ),
)
"""
_MAKE = """
import sys
sys.path.insert(0, sys.argv[2])
from gpustate.nodeside import container_image as image
layer = image._layer({"/usr/bin/gpu-kubelet-plugin": sys.argv[3]}, {})
with open("/run/gpustate-test-image.tar", "wb") as file:
    file.write(image._archive(sys.argv[1], layer))
"""


@pytest.fixture(scope="module")
def cluster(lab_programs: None, lab_factory: Callable[[LabSpec], Lab]) -> Lab:
    return lab_factory(LabSpec(nodes=2, images=("debian13",), kubernetes="1.36"))


@pytest.fixture(scope="module")
def policy(cluster: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    layout = Kubernetes(cluster).layout
    host, _, port = layout.server.removeprefix("https://").partition(":")
    # The lab has no kube-proxy, so pods reach the API server by its own address.
    env = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port or "443"}
    file = tmp_path_factory.mktemp("policy") / "dra.py"
    file.write_text(POLICY.replace("@IMAGE@", IMAGE).replace("@ENV@", repr(env)))
    return file


def run(lab: Lab, verb: str, policy: Path, *words: str, code: int) -> Ran:
    yes = ("--yes",) if verb in ("apply", "remove") else ()
    return gpustate(verb, policy, "-i", lab.inventory, "--cluster-objects", *yes, *words, code=code)


def import_driver(node: Node, program: Path) -> None:
    """Make the image that the DaemonSet names, with the lab's driver."""
    copy = node.root / "run-gpu-kubelet-plugin"
    shutil.copy(program, copy)
    node.run(["python3", "-ISB", "-c", _MAKE, IMAGE, VALIDATOR, f"/{copy.name}"])
    node.run(
        "ctr -n k8s.io images import /run/gpustate-test-image.tar; rm /run/gpustate-test-image.tar"
    )
    node.run(["systemctl", "disable", "--now", PLUGIN_UNIT])


def devices(lab: Lab, node: Node) -> dict[str, dict[str, Any]]:
    """What the driver offers of a Node, by device."""
    return {
        device["name"]: device
        for slice_ in get(lab, "resourceslices")["items"]
        if slice_["spec"]["driver"] == DRIVER and slice_["spec"].get("nodeName") == node.name
        for device in slice_["spec"]["devices"]
    }


def uuids_of(node: Node) -> set[str]:
    text = node.run(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]).stdout
    return set(text.split())


def template(name: str, count: int) -> dict[str, Any]:
    exactly = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": count}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}},
    }


def claimed(lab: Lab, pod: str) -> list[str]:
    """The devices that the scheduler has allocated for a pod's claim."""
    (status,) = get(lab, "pod", pod)["status"]["resourceClaimStatuses"]
    claim = get(lab, "resourceclaim", status["resourceClaimName"])
    return [one["device"] for one in claim["status"]["allocation"]["devices"]["results"]]


def test_gpus_are_offered_by_slices_and_given_by_claims(cluster: Lab, policy: Path) -> None:
    gpustate("apply", NODES, "-i", cluster.inventory, "--yes", code=0)
    program = programs.provide("dra-driver", print)["gpu-kubelet-plugin"]
    for node in cluster.nodes:
        import_driver(node, program)
    done = run(cluster, "apply", policy, "--rollout-timeout", "120", code=0)
    assert done.lists("deviceclass/gpu.nvidia.com", "create")
    assert done.lists("daemonset/nvidia-dra-driver-kubelet-plugin", "create")
    for node in cluster.nodes:
        wait_for(lambda node=node: len(devices(cluster, node)) == 8, f"{node.name} offers 8 GPUs")
        offered = devices(cluster, node).values()
        assert {one["attributes"]["uuid"]["string"] for one in offered} == uuids_of(node)
    run(cluster, "apply", policy, code=0)
    run(cluster, "drift", policy, code=0)

    create(cluster, template("two", 2))
    node = cluster.nodes[0]
    interpreter = import_image(node)
    one = gpu_pod("claims", node, interpreter, {})
    one["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
    one["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "two"}]
    # A claim of a template goes when its pod ends.
    one["spec"]["containers"][0]["command"][-1] += "import time\ntime.sleep(600)\n"
    create(cluster, one)
    wait_phase(cluster, "claims", "Running")
    wait_for(lambda: MARK in logs(cluster, "claims"), "the pod has tried its GPUs")
    observed = printed(logs(cluster, "claims"))
    offered_here = devices(cluster, node)
    given = {
        offered_here[name]["attributes"]["uuid"]["string"] for name in claimed(cluster, "claims")
    }
    assert len(given) == 2
    assert {seen["uuid"] for seen in observed["cuda"] if seen["ok"]} == given
    delete(cluster, "claims")


def test_a_class_that_was_edited_is_drift_and_is_restored(cluster: Lab, policy: Path) -> None:
    edit = {"spec": {"selectors": [{"cel": {"expression": "device.driver == 'other'"}}]}}
    kubectl(cluster, "patch", "deviceclass", DRIVER, "--type", "merge", "--patch", json.dumps(edit))
    run(cluster, "drift", policy, code=2)
    run(cluster, "apply", policy, "--force-conflicts", code=0)
    run(cluster, "drift", policy, code=0)


def test_removal_leaves_no_class_no_policy_and_no_driver(cluster: Lab, policy: Path) -> None:
    run(cluster, "remove", policy, code=0)
    kinds = ("deviceclasses", "validatingadmissionpolicies", "validatingadmissionpolicybindings")
    for kind in kinds:
        names = [one["metadata"]["name"] for one in get(cluster, kind)["items"]]
        assert not [name for name in names if "nvidia" in name]
    wait_for(
        lambda: not any(devices(cluster, node) for node in cluster.nodes),
        "the kubelets remove the slices of a driver that has gone",
        90,
    )
