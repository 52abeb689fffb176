"""Why a pod does not get its GPUs: every cause from what the API server has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpustate.cli.explain import ranges
from gpustate.cluster.scheduling import unmet_selector, untolerated
from gpustate.cluster.snapshots import Snapshot
from gpustate.diagnosis import remedies
from gpustate.documents import Json
from gpustate.explain.pending import Explanation, explain
from gpustate.manifests.settings import STARTUP_TAINT

GPU = "nvidia.com/gpu"
DEPLOYED = {"nvidia.com/gpu.deploy.device-plugin": "true"}


def node(
    name: str = "gpu1",
    capacity: dict[str, int] | None = None,
    allocatable: dict[str, int] | None = None,
    **more: Any,
) -> Json:
    capacity = {GPU: 8} if capacity is None else capacity
    offered = capacity if allocatable is None else allocatable
    labels = {"nvidia.com/gpu.present": "true", "kubernetes.io/hostname": name}
    return {
        "metadata": {
            "name": name,
            "labels": {**labels, **more.pop("labels", {})},
            "annotations": more.pop("annotations", {}),
        },
        "spec": more,
        "status": {
            "capacity": {key: str(value) for key, value in capacity.items()},
            "allocatable": {key: str(value) for key, value in offered.items()},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def health(found: Json, status: str, reason: str, message: str) -> Json:
    one = {"type": "GPUHealthy", "status": status, "reason": reason, "message": message}
    found["status"]["conditions"].append(one)
    return found


def pod(name: str = "job", gpus: int = 1, resource: str = GPU, **spec: Any) -> Json:
    limits = {resource: str(gpus)} if gpus else {}
    return {
        "metadata": {"namespace": "team", "name": name, "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}], **spec},
        "status": {
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                | {"message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}
            ],
        },
    }


def running(name: str, gpus: int, on: str = "gpu1") -> Json:
    found = pod(name, gpus, nodeName=on)
    found["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return found


def plugin(*, ready: bool, on: str = "gpu1") -> Json:
    found = running("nvidia-device-plugin-daemonset-abc", 0, on)
    found["metadata"]["namespace"] = "gpu-operator"
    if not ready:
        state = {"waiting": {"reason": "CrashLoopBackOff"}}
        found["status"] = {"containerStatuses": [{"name": "nvidia-device-plugin", "state": state}]}
    return found


def judged(one: Json | None, *nodes: Json, pods: tuple[Json, ...] = (), **more: Any) -> Explanation:
    every = (*pods, one) if one is not None else pods
    return explain(Snapshot("team", "job", one, tuple(nodes), every, **more))


def causes(found: Explanation) -> list[str]:
    return [one.cause for one in found.causes]


@pytest.mark.parametrize(
    ("one", "on", "others", "cause", "words"),
    [
        (pod(resource="nvidia.com/mig-3g.40gb"), node(), (), "other-resource",
         "requests nvidia.com/mig-3g.40gb, the Node offers nvidia.com/gpu: 8"),
        (pod(), node(capacity={"nvidia.com/gpu.shared": 32}), (), "other-resource",
         "the Node offers nvidia.com/gpu.shared: 32"),
        (pod(), node(taints=[{"key": GPU, "effect": "NoSchedule"}]), (), "gpu-taint",
         "taint nvidia.com/gpu:NoSchedule is not tolerated"),
        (pod(), node(taints=[{"key": STARTUP_TAINT, "effect": "NoSchedule"}]), (), "not-validated",
         "not validated yet"),
        (pod(), health(node(taints=[{"key": STARTUP_TAINT, "effect": "NoSchedule"}]),
                       "False", "DriverNotLoaded", "driver: no module"), (), "not-validated",
         "GPUHealthy is False (DriverNotLoaded: driver: no module)"),
        (pod(), node(taints=[{"key": "dedicated", "value": "ml", "effect": "NoExecute"}]), (), "taint",
         "taint dedicated=ml:NoExecute is not tolerated"),
        (pod(), node(unschedulable=True), (), "cordoned", "cordoned by someone else"),
        (pod(), node(unschedulable=True, annotations={"gpustate.io/hold": json.dumps(
            {"run": "r1", "person": "ann", "since": "today", "phase": "drained"})}), (),
         "held-by-gpustate", "run r1 of ann since today: drained"),
        (pod(nodeSelector={"nvidia.com/gpu.product": "H100"}), node(), (), "selector",
         "nodeSelector nvidia.com/gpu.product=H100, the Node has no nvidia.com/gpu.product"),
        (pod(gpus=16), node(), (), "too-many", "requests 16 nvidia.com/gpu, the Node offers 8"),
        (pod(gpus=2), node(), (running("a", 7),), "in-use",
         "7 of 8 nvidia.com/gpu in use by team/a (7); 1 free, 2 requested"),
        (pod(gpus=8), node(allocatable={GPU: 7}), (), "gpu-unhealthy",
         "1 of 8 nvidia.com/gpu are unhealthy; 7 free"),
        (pod(gpus=8), health(node(capacity={GPU: 7}), "True", "Validated",
                             "health: 7 GPUs healthy; in quarantine: GPU-3 until 2027: RMA (ann)"), (),
         "gpu-in-quarantine", "in quarantine: GPU-3 until 2027: RMA (ann); 7 nvidia.com/gpu free"),
        (pod(gpus=6), health(node(capacity={GPU: 7}), "True", "Validated",
                             "health: 7 GPUs healthy; in quarantine: GPU-3 until 2027: RMA (ann)"), (running("a", 2),),
         "gpu-in-quarantine", "in quarantine: GPU-3 until 2027: RMA (ann); 5 nvidia.com/gpu free"),
        (pod(), node(capacity={}), (plugin(ready=False),), "device-plugin-not-ready",
         "CrashLoopBackOff"),
        (pod(), node(capacity={}), (plugin(ready=True),), "device-plugin-not-registered", "runs"),
        (pod(), node(capacity={}, labels={"nvidia.com/gpu.deploy.device-plugin": "false"}), (),
         "device-plugin-off", "the Node: label nvidia.com/gpu.deploy.device-plugin=false"),
        (pod(), node(allocatable={}, labels={"nvidia.com/gpu.deploy.device-plugin": "false"}), (),
         "device-plugin-off", "the Node: label nvidia.com/gpu.deploy.device-plugin=false"),
        (pod(), node(allocatable={}), (plugin(ready=True),), "gpu-unhealthy", "8 of 8 nvidia.com/gpu are unhealthy"),
        (pod(), node(allocatable={"nvidia.com/mig-3g.40gb": 2}), (), "other-resource", "mig-3g.40gb: 2"),
        (pod(), node(capacity={}), (plugin(ready=True, on="other"),), "device-plugin-off",
         "no pod of the device plugin is on the Node: the Node has no label"),
        (pod(), node(capacity={}, labels=DEPLOYED), (), "device-plugin-missing", "no pod of the device plugin"),
    ],
)  # fmt: skip
def test_a_node_does_not_fit(
    one: Json, on: Json, others: tuple[Json, ...], cause: str, words: str
) -> None:
    found = judged(one, on, pods=others)
    assert found.waits
    mine = [row for row in found.causes if row.cause == cause]
    assert mine, found.causes
    assert mine[0].nodes == ("gpu1",)
    assert words in mine[0].evidence
    assert mine[0].remedy
    assert cause != "gpu-in-quarantine" or not [
        row for row in found.causes if row.cause == "too-many"
    ]
    assert found.scheduler == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def test_every_obstacle_of_a_node_is_named_and_equal_ones_of_nodes_are_one_line() -> None:
    bad = {"taints": [{"key": GPU, "effect": "NoSchedule"}], "unschedulable": True}
    found = judged(
        pod(gpus=9),
        node("a", **bad),
        node("b", **bad),
        node("c", capacity={}, labels={"nvidia.com/gpu.present": "false"}),
    )
    assert causes(found) == ["cordoned", "gpu-taint", "too-many"]
    assert {one.nodes for one in found.causes} == {("a", "b")}


def test_a_finished_pod_holds_nothing() -> None:
    done = running("a", 8)
    done["status"]["phase"] = "Succeeded"
    assert "in-use" not in causes(judged(pod(), node(), pods=(done,)))


def test_without_a_gpu_node_the_cluster_is_the_cause() -> None:
    plain = node(capacity={"cpu": 8}, labels={"nvidia.com/gpu.present": "false"})
    found = judged(pod(), plain)
    assert causes(found) == ["no-gpu-node"]
    assert "none of 1 Nodes has GPUs" in found.causes[0].evidence


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory.", "other-resource-short"),
        ("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.", "volume"),
        ('0/1 nodes are available: persistentvolumeclaim "data" not found. not found', "volume"),
        ("0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints.", "scheduler"),
        ("", "no-scheduler"),
    ],
)  # fmt: skip
def test_where_a_node_fits_the_scheduler_is_asked(message: str, cause: str) -> None:
    one = pod()
    one["status"]["conditions"] = (
        [{"type": "PodScheduled", "status": "False", "message": message}] if message else []
    )
    found = judged(one, node())
    assert causes(found) == [cause]
    assert "NODE" not in found.causes[0].remedy


@pytest.mark.parametrize(
    ("resource", "remedy"),
    [
        ("amd.com/gpu", "for GPUs of NVIDIA request nvidia.com/gpu; amd.com/gpu takes a device plugin of amd.com, which gpustate does not install"),
        ("nvidia.com/gpux", "correct its name (nvidia.com/gpu), or set up the device plugin that offers it"),
    ],
)  # fmt: skip
def test_a_resource_that_no_node_has_is_the_only_cause(resource: str, remedy: str) -> None:
    one = pod(resource=resource)
    words = f"0/2 nodes are available: 2 Insufficient {resource}."
    one["status"]["conditions"][0]["message"] = words
    found = judged(one, node(), node("gpu2", unschedulable=True))
    assert causes(found) == ["unknown-resource"]
    assert found.causes[0].evidence == f"requests {resource}, which none of 2 Nodes has"
    assert found.causes[0].remedy == remedy


def test_beside_an_unknown_resource_the_gpus_are_judged() -> None:
    one = pod()
    one["spec"]["containers"][0]["resources"]["limits"]["amd.com/gpu"] = "1"
    assert causes(judged(one, node())) == ["unknown-resource"]
    assert causes(judged(one, node(unschedulable=True))) == ["unknown-resource", "cordoned"]
    known = node(capacity={GPU: 8, "amd.com/gpu": 1})
    assert "unknown-resource" not in causes(judged(one, known))


def test_a_gate_and_a_claim_are_causes() -> None:
    gated = pod(schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    assert causes(judged(gated, node())) == ["scheduling-gate"]
    claiming = pod(gpus=0, resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}])
    claiming["status"]["conditions"] = []
    assert causes(judged(claiming, node())) == ["claim-missing"]
    claim = {"metadata": {"namespace": "team", "name": "mine"}, "status": {}}
    assert causes(judged(claiming, node(), claims=(claim,)))[0] == "claim-not-allocated"


def event(
    reason: str, message: str, name: str = "job", uid: str = "uid-job", kind: str = "Pod"
) -> Json:
    return {
        **{"type": "Warning", "reason": reason, "message": message, "lastTimestamp": "t"},
        "involvedObject": {"kind": kind, "name": name, "uid": uid},
    }


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ('pods "job-x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=2', "quota-exceeded"),
        ('pods "job-x" is forbidden: pod rejected: RuntimeClass "nvidia" not found', "runtime-class-missing"),
        ('pods "job-x" is forbidden: violates PodSecurity "restricted:latest": privileged', "pod-security"),
        ("admission webhook denied the request", "creation-refused"),
    ],
)  # fmt: skip
def test_a_pod_that_could_not_be_created_is_found_by_its_controller(
    message: str, cause: str
) -> None:
    found = judged(None, node(), events=(event("FailedCreate", message, kind="Job", uid="j"),))
    assert (found.status, causes(found)) == ("no such pod", [cause])
    assert found.causes[0].evidence.startswith("job/job: ")
    absent = judged(None, node())
    assert causes(absent) == ["no-pod"]
    assert "only its kubectl apply prints" in absent.causes[0].remedy


@pytest.mark.parametrize(
    ("kind", "owner", "shown"),
    [("ReplicaSet", "job-7d9f", "Deployment"), ("StatefulSet", "job", "StatefulSet")],
)
def test_a_controller_s_name_leads_to_its_pods(kind: str, owner: str, shown: str) -> None:
    pods = tuple(pod(f"job-{n}") for n in (2, 1))
    for one in pods:
        one["metadata"]["ownerReferences"] = [{"kind": kind, "name": owner}]
    other = pod("job-3")
    other["metadata"] |= {"namespace": "else", "ownerReferences": [{"kind": kind, "name": owner}]}
    found = explain(Snapshot("team", "job", None, (node(),), (*pods, other)))
    assert found.status == f"no pod; {shown} job has 2: name one"
    assert found.causes[0].remedy == "gpustate explain --pod team/job-1"


def started(**more: Any) -> Json:
    found = running("job", 1)
    found["status"] = {"phase": "Pending", "conditions": [], **more}
    return found


def waiting(reason: str, message: str = "m") -> Json:
    state = {"waiting": {"reason": reason, "message": message}}
    return started(containerStatuses=[{"name": "main", "state": state}])


@pytest.mark.parametrize(
    ("one", "events", "cause", "words"),
    [
        (waiting("ImagePullBackOff"), (), "image", "main: ImagePullBackOff: m"),
        (waiting("CrashLoopBackOff"), (), "crashes", "CrashLoopBackOff"),
        (waiting("RunContainerError", "unresolvable CDI devices nvidia.com/gpu=GPU-1"), (),
         "container-cdi-unresolved", "no CDI device of that name"),
        (started(), (event("FailedCreatePodSandBox", 'no runtime for "nvidia" is configured'),),
         "handler-missing", "has no handler nvidia"),
        (started(), (event("FailedMount", "secret x not found"),), "volume", "secret x"),
        (started(), (), "starting", "no container has failed"),
    ],
)  # fmt: skip
def test_a_scheduled_pod_does_not_start(
    one: Json, events: tuple[Json, ...], cause: str, words: str
) -> None:
    found = judged(one, node(), events=events)
    assert causes(found) == [cause]
    assert words in found.causes[0].evidence
    assert found.causes[0].nodes == ("gpu1",)


@pytest.mark.parametrize(
    ("labels", "first"),
    [
        ({}, "check whether the device plugin offers GPUs in MIG mode as whole ones: gpustate explain gpu1"),
        ({"mig.config": "all-disabled"}, "check whether the device plugin"),
        ({"mig.capable": "false"}, remedies.CDI),
        ({"mig.config": "all-1g.10gb", "mig.strategy": "mixed"}, remedies.CDI),
        ({"mig.config": "all-1g.10gb"}, remedies.MIG_STRATEGY),
        ({"mig.config": "all-1g.10gb", "mig.strategy": "none"}, remedies.MIG_STRATEGY),
    ],
)  # fmt: skip
def test_no_cdi_specification_is_advised_for_a_gpu_in_mig_mode(
    labels: dict[str, str], first: str
) -> None:
    on = node(labels={f"nvidia.com/{key}": value for key, value in labels.items()})
    words = "unresolvable CDI devices nvidia.com/gpu=GPU-1"
    sandbox = event("FailedCreatePodSandBox", words)
    for found in (
        judged(waiting("RunContainerError", words), on),
        judged(started(), on, events=(sandbox,)),
    ):
        assert found.causes[0].remedy.startswith(first)


def test_the_runtime_class_of_a_scheduled_pod_is_missing() -> None:
    one = started()
    one["spec"]["runtimeClassName"] = "nvidia"
    assert causes(judged(one, node(), runtime_classes={"other": {}})) == ["runtime-class-missing"]
    assert causes(judged(one, node(), runtime_classes=None)) == ["starting"]


def test_a_runtime_class_that_adds_a_selector_is_named() -> None:
    one = pod(nodeSelector={"a": "b"}, runtimeClassName="nvidia")
    (cause,) = judged(one, node(), runtime_classes={"nvidia": {"a": "b"}}).causes
    assert cause.cause == "selector"
    assert cause.evidence == (
        "nodeSelector a=b, the Node has no a; the RuntimeClass nvidia adds it to its pods"
    )
    assert cause.remedy.endswith("recreate the pod: kubectl edit runtimeclass nvidia")
    for classes in (None, {}, {"nvidia": {}}, {"nvidia": {"c": "d"}}, {"kata": {"a": "b"}}):
        (cause,) = judged(one, node(), runtime_classes=classes).causes
        assert cause.evidence == "nodeSelector a=b, the Node has no a"


def test_another_runtime_class_is_corrected_not_created() -> None:
    one = started()
    one["spec"]["runtimeClassName"] = "nope"
    message = 'pods "job-x" is forbidden: pod rejected: RuntimeClass "nope" not found'
    refused = event("FailedCreate", message, kind="Job", uid="j")
    for found in (
        judged(one, node(), runtime_classes={"nvidia": {}, "kata": {}}),
        judged(None, node(), events=(refused,), runtime_classes={"nvidia": {}, "kata": {}}),
    ):
        assert causes(found) == ["runtime-class-missing"]
        words = "correct runtimeClassName; the cluster has kata, nvidia; a class of the policy"
        assert found.causes[0].remedy.startswith(words)


def test_a_failed_pod_and_one_without_a_request() -> None:
    one = running("job", 1)
    one["status"] = {
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "message": "no devices",
    }
    assert causes(judged(one, node())) == ["admission"]
    fine = judged(running("job", 1), node())
    assert (fine.waits, fine.causes, fine.status) == (False, (), "runs on gpu1")
    assert causes(judged(running("job", 0), node())) == ["requests-no-gpu"]


def test_a_node_that_went_away_and_one_that_is_not_ready() -> None:
    assert causes(judged(started())) == ["node-gone"]
    away = node()
    away["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "message": "silent"}]
    assert causes(judged(started(), away))[0] == "node-not-ready"
    away["spec"]["taints"] = [{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]
    assert causes(judged(pod(), away)) == ["node-not-ready"]


@pytest.mark.parametrize(
    ("toleration", "kept"),
    [
        ({"operator": "Exists"}, False),
        ({"key": "k", "operator": "Exists"}, False),
        ({"key": "k", "value": "v"}, False),
        ({"key": "k", "value": "w"}, True),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, True),
        ({"key": "other", "operator": "Exists"}, True),
    ],
)
def test_tolerations_are_as_the_scheduler_has_them(toleration: Json, *, kept: bool) -> None:
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    found = list(untolerated(pod(tolerations=[toleration]), node(taints=[taint])))
    assert bool(found) == kept
    soft = {**taint, "effect": "PreferNoSchedule"}
    assert not list(untolerated(pod(), node(taints=[soft])))


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ({"key": "n", "operator": "In", "values": ["5", "6"]}, True),
        ({"key": "n", "operator": "NotIn", "values": ["5"]}, False),
        ({"key": "x", "operator": "NotIn", "values": ["5"]}, True),
        ({"key": "n", "operator": "Exists"}, True),
        ({"key": "x", "operator": "Exists"}, False),
        ({"key": "n", "operator": "DoesNotExist"}, False),
        ({"key": "n", "operator": "Gt", "values": ["4"]}, True),
        ({"key": "n", "operator": "Lt", "values": ["4"]}, False),
        ({"key": "x", "operator": "Gt", "values": ["4"]}, False),
    ],
)
def test_affinity_is_as_the_scheduler_has_it(expression: Json, *, fits: bool) -> None:
    terms = [{"matchExpressions": [expression]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    one = pod(affinity={"nodeAffinity": required})
    assert (unmet_selector(one, node(labels={"n": "5"})) == "") == fits
    terms.append({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu1"]}]})  # type: ignore[dict-item]
    assert unmet_selector(one, node()) == ""


def test_two_real_nodes_do_not_drown_in_many_virtual_ones() -> None:
    names = [*(f"virtual{n}" for n in range(1, 301)), "gpu1", "gpu2"]
    assert ranges(names) == ["gpu[1-2]", "virtual[1-300]"]


def test_a_node_that_the_pod_selects_is_judged_before_it_has_gpus() -> None:
    fresh = {
        "metadata": {"name": "fresh1", "labels": {"kubernetes.io/hostname": "fresh1"}},
        "spec": {"unschedulable": True},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    found = judged(pod(nodeSelector={"kubernetes.io/hostname": "fresh1"}), node(), fresh)
    by_node = {(row.cause, name) for row in found.causes for name in row.nodes}
    assert {("cordoned", "fresh1"), ("device-plugin-off", "fresh1")} <= by_node
