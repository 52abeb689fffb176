"""Which Node a machine is, which GPUs are free, and what a pod's status means."""

from __future__ import annotations

from typing import Any

import pytest
from fakecluster import holder, node

from gpustate.cluster import pods
from gpustate.cluster.pods import Machine, Verdict

GPU1 = Machine("boot-gpu1", "machine-gpu1", "uuid-gpu1", kubelet=True)


def judged(machine: Machine, *nodes: dict[str, Any]) -> str:
    with pytest.raises(Verdict) as caught:
        pods.match(machine, nodes)
    assert caught.value.check.failed
    assert caught.value.check.remedy
    return caught.value.check.evidence


def test_every_kind_of_failure_has_a_name_of_its_own_and_a_next_step() -> None:
    assert len({kind.name for kind in pods.KINDS}) == len(pods.KINDS)
    assert all(kind.summary and kind.remedy for kind in pods.KINDS)


def test_only_a_container_that_got_a_gpu_or_was_refused_one_says_something_of_gpus() -> None:
    concerning = {kind.name for kind in pods.KINDS if pods.concerns_gpus(pods.failed(kind.name, "x").evidence)}  # fmt: skip
    assert concerning == {
        "unhealthy", "offer", "mig-strategy", "admission", "create", "crashed", "nothing", "denied", "library", "fewer", "more", "cuda", "timeout",
    }  # fmt: skip
    start = pods.progress({"status": FAILURES["start"]}).failure
    assert start is not None
    assert pods.concerns_gpus(start.evidence)


def test_a_machine_is_matched_by_its_boot_id_whatever_its_node_is_called() -> None:
    renamed = node("ip-10-0-0-7")
    renamed["status"]["nodeInfo"]["bootID"] = "boot-gpu1"
    lying = node("gpu1")
    lying["status"]["nodeInfo"] = {"bootID": "other"}
    assert pods.match(GPU1, [lying, renamed]) is renamed


def test_clones_with_one_machine_id_are_told_apart_by_boot_id() -> None:
    nodes = [node("gpu1"), node("gpu2")]
    for one in nodes:
        one["status"]["nodeInfo"]["machineID"] = "machine-gpu1"
    assert pods.match(GPU1, nodes) is nodes[0]


def test_containers_that_share_a_boot_id_are_told_apart_by_machine_id() -> None:
    nodes = [node("gpu2"), node("gpu1")]
    for one in nodes:
        one["status"]["nodeInfo"]["bootID"] = "boot-gpu1"
    assert pods.match(GPU1, nodes) is nodes[1]


def test_a_machine_that_no_node_is_fails_with_what_was_compared() -> None:
    words = judged(GPU1, node("gpu2"))
    assert (
        "none of 1 has boot id boot-gpu1, machine id machine-gpu1, system UUID uuid-gpu1" in words
    )


def test_a_machine_without_any_id_matches_no_node() -> None:
    empty = node("gpu1")
    empty["status"]["nodeInfo"] = {"bootID": "", "machineID": "", "systemUUID": ""}
    assert "an id to compare" in judged(Machine(), empty)


def test_two_nodes_with_the_same_ids_are_ambiguous() -> None:
    nodes = [node("gpu1"), node("old")]
    nodes[1]["status"]["nodeInfo"] = nodes[0]["status"]["nodeInfo"]
    assert "gpu1, old have its boot id" in judged(GPU1, *nodes)


def test_a_node_of_before_the_last_boot_is_no_proof_of_now() -> None:
    stale = node("gpu1")
    stale["status"]["nodeInfo"]["bootID"] = "yesterday"
    words = judged(GPU1, stale)
    assert words.startswith("the kubelet has not reported since the node booted")
    assert "boot id yesterday" in words


def test_a_node_that_is_not_ready_fails_with_its_message() -> None:
    condition = {"type": "Ready", "status": "False", "message": "cni plugin not initialized"}
    with pytest.raises(Verdict, match="gpu1: cni plugin not initialized"):
        pods.check_ready(node(conditions=[condition]))
    pods.check_ready(node())


def test_a_gpu_is_free_when_fewer_are_requested_than_allocatable() -> None:
    assert pods.free_resource(node(gpus="8"), [holder("7")]) == pods.GPU
    assert pods.free_resource(node(gpus="8"), [holder("8", "Succeeded")]) == pods.GPU
    assert pods.free_resource(node(gpus="1k"), [holder("999")]) == pods.GPU


def test_all_gpus_in_use_is_not_a_failure() -> None:
    with pytest.raises(Verdict) as caught:
        pods.free_resource(node(gpus="8"), [holder("6"), holder("2", "Pending")])
    assert caught.value.check.outcome == "not applicable"
    assert caught.value.check.evidence == ("all GPUs are in use: 8 of 8 nvidia.com/gpu, by 2 pods")


def test_a_node_with_mig_devices_only_offers_those() -> None:
    offers = {"nvidia.com/mig-3g.40gb": "2", "nvidia.com/mig-1g.10gb": "1", pods.GPU: "0"}
    found = node(allocatable=offers, capacity=offers)
    assert pods.free_resource(found, []) == "nvidia.com/mig-1g.10gb"
    held = [holder("1", resource="nvidia.com/mig-1g.10gb")]
    assert pods.free_resource(found, held) == "nvidia.com/mig-3g.40gb"


@pytest.mark.parametrize(
    ("capacity", "words"),
    [
        ({"cpu": "4"}, "the Node has no GPU resource: gpu1 has no nvidia.com/gpu or MIG resource"),
        ({pods.GPU: "8"}, "the device plugin reports no healthy GPU: gpu1: capacity"),
    ],
)
def test_a_node_that_offers_no_gpu_fails(capacity: dict[str, str], words: str) -> None:
    with pytest.raises(Verdict) as caught:
        pods.free_resource(node(gpus="0", capacity=capacity), [])
    assert caught.value.check.failed
    assert caught.value.check.evidence.startswith(words)


def test_a_pod_holds_what_its_containers_and_sidecars_request_or_its_init_containers_need() -> None:
    def container(count: str, **more: str) -> dict[str, Any]:
        return {"resources": {"limits": {pods.GPU: count}}, **more}

    spec = {"containers": [container("1"), container("2")]}
    assert pods.requested({"spec": spec}) == {pods.GPU: 3}
    init = {**spec, "initContainers": [container("5")]}
    assert pods.requested({"spec": init}) == {pods.GPU: 5}
    sidecar = {**spec, "initContainers": [container("1", restartPolicy="Always")]}
    assert pods.requested({"spec": sidecar}) == {pods.GPU: 4}


def test_the_pod_tolerates_the_nodes_taints_and_goes_through_the_scheduler() -> None:
    tainted = node()
    tainted["spec"]["taints"] = [
        {"key": "team", "value": "a", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
    ]
    made = pods.manifest(tainted, "p", image="i", command=["x"], resource=pods.GPU)
    keys = {one["key"] for one in made["spec"]["tolerations"]}
    assert keys == {pods.GPU, "team", "node.kubernetes.io/unschedulable"}
    assert "nodeName" not in made["spec"]
    assert "runtimeClassName" not in made["spec"]
    (container,) = made["spec"]["containers"]
    assert container["resources"]["limits"] == {pods.GPU: "1"}
    assert container["imagePullPolicy"] == "Never"


def container_state(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"state": state}]}


START_ERROR = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: could not apply required "
    "modification to OCI specification: error modifying OCI spec: failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=0"
)
FAILURES = {
    "admission": {
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "message": "Allocate failed due to no containers return in allocation response, which is unexpected",
    },
    "rejected": {"phase": "Failed", "reason": "OutOfnvidia.com/gpu", "message": "requested: 1"},
    "deadline": {"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active"},
    "create": {
        "phase": "Pending",
        **container_state(waiting={"reason": "CreateContainerError", "message": "no command"}),
    },
    "run": {
        "phase": "Pending",
        **container_state(waiting={"reason": "RunContainerError", "message": START_ERROR}),
    },
    "start": {
        "phase": "Failed",
        **container_state(terminated={"reason": "StartError", "message": START_ERROR, "exitCode": 128}),
    },
    "crashed": {"phase": "Failed", **container_state(terminated={"reason": "Error", "exitCode": 1})},
    "memory": {"phase": "Failed", **container_state(terminated={"reason": "OOMKilled", "exitCode": 137})},
    "config": {
        "phase": "Pending",
        **container_state(waiting={"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}),
    },
}  # fmt: skip
WORDS = {
    "admission": "the device plugin's allocation failed: Allocate failed",
    "rejected": "the kubelet rejects the pod: OutOfnvidia.com/gpu: requested: 1",
    "deadline": "the pod's container did not start in time: Pod was active",
    "create": "cannot be created or started: CreateContainerError: no command",
    "run": "the runtime finds no CDI device of that name",
    "start": "the runtime finds no CDI device of that name",
    "crashed": "the container ended without a report: Error, exit code 1",
    "memory": "the container was killed for its memory limit: OOMKilled, exit code 137",
    "config": 'the kubelet rejects the pod: CreateContainerConfigError: secret "x" not found',
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_pod_that_cannot_run_fails_with_its_own_reason(name: str) -> None:
    found = pods.progress({"status": FAILURES[name]}).failure
    assert found is not None
    assert found.failed
    assert WORDS[name] in found.evidence
    assert "\n" not in found.evidence
    assert found.remedy


def test_a_pod_that_waits_says_for_what() -> None:
    waiting = container_state(waiting={"reason": "ErrImageNeverPull", "message": "not present"})
    observed = pods.progress({"status": {"phase": "Pending", **waiting}})
    assert observed.failure is None
    assert observed.last == "ErrImageNeverPull: not present"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    pending = {"phase": "Pending", "conditions": [{**condition, "message": "0/1 nodes"}]}
    assert pods.progress({"status": pending}).unschedulable == "0/1 nodes"
    running = {"phase": "Running", **container_state(running={})}
    assert pods.progress({"status": running}).last == "phase Running"


def test_the_newest_warning_is_the_last_condition() -> None:
    events = [
        {"type": "Warning", "reason": "B", "message": "late", "lastTimestamp": "2026-01-02"},
        {"type": "Warning", "reason": "A", "message": "early", "lastTimestamp": "2026-01-01"},
        {"type": "Normal", "reason": "C", "message": "x", "lastTimestamp": "2026-01-03"},
    ]
    assert pods.last_warning(events) == "B: late"
    assert pods.last_warning(events[2:]) == ""
