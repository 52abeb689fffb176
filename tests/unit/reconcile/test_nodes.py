"""Labels of Nodes by kind of workload, as the GPU Operator writes them."""

from __future__ import annotations

from typing import Any

import pytest

from gpustate import Policy
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome, StateResult
from gpustate.manifests import ClusterSettings
from gpustate.reconcile.nodes import labels_of, members
from gpustate.states.container_toolkit import ContainerToolkitInstalled
from gpustate.states.dcgm import DcgmRunning
from gpustate.states.dcgm_exporter import DcgmExporterRunning
from gpustate.states.driver import DriverInstalled
from gpustate.states.kata import KataHostReady
from gpustate.states.vfio import VfioBound

DEPLOY = "nvidia.com/gpu.deploy."
#: Labels depend on states by their names.
POLICY = Policy(
    *(DriverInstalled(branch=580), ContainerToolkitInstalled(), VfioBound(), KataHostReady()),
    *(DcgmRunning(), DcgmExporterRunning()),
    cluster=ClusterSettings(),
)
T4, H100, SWITCH = "1eb8", "2330", "22a3"


def node(name: str = "a", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": f"node-{name}", "labels": labels},
        "status": {"nodeInfo": {"bootID": f"boot-{name}"}},
    }


def result(
    name: str = "a",
    *states: str,
    device: str = T4,
    status: NodeStatus = NodeStatus.OK,
    outcome: Outcome = Outcome.UNCHANGED,
) -> NodeResult:
    pci = {"address": "0000:01:00.0", "device_id": device, "driver": "nvidia"}
    kind = "068000" if device == SWITCH else "030200"
    facts: dict[str, object] = {"boot_id": f"boot-{name}", "pci": [{**pci, "class_id": kind}]}
    return NodeResult(
        name, status, states=[StateResult(one, outcome) for one in states], facts=facts
    )


def deployed(live: dict[str, Any], machine: NodeResult) -> dict[str, str]:
    found = labels_of(members([live], [machine]), POLICY)["node-a"]
    return {key.removeprefix(DEPLOY): value for key, value in found.items() if DEPLOY in key}


CONTAINER = (
    *("client", "container-toolkit", "dcgm", "dcgm-exporter", "device-plugin", "driver"),
    *("gpu-feature-discovery", "node-status-exporter", "operator-validator"),
)


def test_machines_are_matched_and_labelled_only_without_a_failure() -> None:
    nodes = [node(name) for name in "abcd"]
    results = [
        result("a"),
        result("b", device=SWITCH),
        result("c", status=NodeStatus.FAILED),
        result("elsewhere"),
    ]
    found = labels_of(members(nodes, results), POLICY)
    assert sorted(found) == ["node-a", "node-b"]
    assert found["node-b"] == {}
    assert found["node-a"]["nvidia.com/gpu.present"] == "true"


def test_a_node_for_containers_has_every_label_of_the_operator() -> None:
    assert deployed(node(), result()) == dict.fromkeys(CONTAINER, "true")


def test_what_the_host_has_keeps_the_operators_pods_off() -> None:
    found = deployed(node(), result("a", "driver", "container-toolkit", "dcgm"))
    other = {key for key, value in found.items() if value == "pre-installed"}
    assert other == {"driver", "container-toolkit", "dcgm"}
    gone = Policy(DriverInstalled(branch=580, ensure="absent"), cluster=ClusterSettings())
    absent = labels_of(members([node()], [result("a", "driver")]), gone)["node-a"]
    assert absent[f"{DEPLOY}driver"] == "true"
    skipped = deployed(node(), result("a", "driver", outcome=Outcome.NOT_APPLICABLE))
    assert skipped["driver"] == "true"


@pytest.mark.parametrize(
    ("device", "labels", "capable"),
    [
        (H100, {}, True),
        (T4, {}, False),
        (T4, {"nvidia.com/gpu.product": "NVIDIA-A30"}, True),
        (H100, {"nvidia.com/mig.capable": "false"}, False),
        (T4, {"nvidia.com/mig.capable": "true"}, True),
        (H100, {"nvidia.com/vgpu.host-driver-version": "550"}, False),
    ],
)
def test_only_nodes_with_mig_get_the_mig_manager(
    device: str, labels: dict[str, str], *, capable: bool
) -> None:
    found = deployed(node(**labels), result(device=device))
    assert ("mig-manager" in found) == capable


PASSTHROUGH = {
    *("sandbox-device-plugin", "sandbox-validator", "vfio-manager", "kata-manager", "cc-manager"),
    "client",
}
VGPU = {
    *("sandbox-device-plugin", "vgpu-manager", "vgpu-device-manager", "sandbox-validator"),
    *("cc-manager", "client"),
}


@pytest.mark.parametrize(
    ("label", "state", "names"),
    [
        ("", "vfio", PASSTHROUGH),
        ("container", "vfio", PASSTHROUGH),
        ("vm-passthrough", "vfio", PASSTHROUGH),
        ("vm-vgpu", "vfio", VGPU),
        ("vm-vgpu", "driver", VGPU),
        ("vm-passthrough", "driver", set(CONTAINER)),
        ("nonsense", "driver", set(CONTAINER)),
        ("", "kata", PASSTHROUGH - {"sandbox-device-plugin"} | {"kata-sandbox-device-plugin"}),
    ],
)
def test_the_kind_of_workload_decides(label: str, state: str, names: set[str]) -> None:
    live = node(**({"nvidia.com/gpu.workload.config": label} if label else {}))
    assert set(deployed(live, result("a", state))) == names


def test_without_operands_only_the_gpu_is_named() -> None:
    live = node(**{f"{DEPLOY}operands": "false"})
    found = labels_of(members([live], [result()]), POLICY)
    assert found == {"node-a": {"nvidia.com/gpu.present": "true"}}
