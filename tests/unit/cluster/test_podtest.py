"""One pod from its creation to its removal, with a stub in place of the API."""

from __future__ import annotations

from typing import Any

import pytest
from fakecluster import GPU, NOTHING, FakeApi, holder, node, report

from gpustate.cluster import pods, podtest
from gpustate.cluster.api import RefusedRequest
from gpustate.diagnosis.chain import Check
from gpustate.errors import ClusterError


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_POLL_S", "_UNSCHEDULABLE_S", "_REGISTER_S", "_DELETE_S"):
        monkeypatch.setattr(podtest, name, 0.01)


def run(api: FakeApi, timeout_s: float = 60.0, **changes: Any) -> Check:
    test = podtest.PodTest(api, api.found, "image:1", ["python"], timeout_s, **changes)
    check = test.run(pods.GPU)
    assert not api.present(), "a pod is left"
    return check


def test_a_pod_with_its_gpu_on_which_the_kernel_ran_is_ok() -> None:
    api = FakeApi()
    check = run(api)
    assert check.outcome == "ok"
    assert check.evidence == (
        f"pod on gpu1, nvidia.com/gpu: {GPU}, 2 device nodes and 1 files, 1 of them libraries, kernel ran on 1"
    )
    (pod,) = api.created
    assert pod["metadata"]["name"].startswith("gpustate-validate-gpu1-")
    assert pod["spec"]["containers"][0]["command"] == ["python", "30", "all"]


def test_without_cuda_no_kernel_is_expected() -> None:
    api = FakeApi(logs=[report(cuda=[])])
    assert run(api, cuda=False).outcome == "ok"
    assert api.created[0]["spec"]["containers"][0]["command"][-1] == "30"
    assert "the CUDA kernel fails in the pod" in run(FakeApi(logs=[report(cuda=[])])).evidence


def test_a_mig_device_counts_as_the_gpu_that_was_asked_for() -> None:
    nvml = {"uuids": [GPU], "mig": ["MIG-1"], "error": ""}
    assert "MIG-1" in run(FakeApi(logs=[report(nvml=nvml)])).evidence
    both = {**nvml, "mig": ["MIG-1", "MIG-2"]}
    assert "more GPUs than it requested" in run(FakeApi(logs=[report(nvml=both)])).evidence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (NOTHING, "the pod runs, but no device or library of the driver is injected"),
        ({**NOTHING, "files": [f"/var/run/nvidia-container-devices/{GPU}"]}, "the pod runs, but no device or library of the driver is injected"),
        ({"devices": {"/dev/nvidia0": 1}}, "the pod may not open its device nodes"),
        ({"nvml": {"uuids": [], "mig": [], "error": "libnvidia-ml.so.1: no"}}, "a library of the driver is missing"),
        ({"nvml": {"uuids": [], "mig": [], "error": ""}}, "the pod has fewer GPUs than it requested"),
        ({"nvml": {"uuids": [GPU, "GPU-b"], "mig": [], "error": ""}}, "the pod has more GPUs than it requested"),
        ({"cuda": [{"uuid": GPU, "ok": False, "error": 100, "text": "no device"}]}, "no device (CUDA 100)"),
        ({"cuda": [{"uuid": GPU, "ok": False, "error": None, "text": "libcuda.so.1 cannot be loaded"}]}, "a library of the driver"),
    ],
)  # fmt: skip
def test_a_pod_that_reports_anything_else_fails(changes: dict[str, Any], words: str) -> None:
    check = run(FakeApi(logs=[report(**changes)]))
    assert check.failed
    assert words in check.evidence
    assert check.remedy


def test_the_runtime_class_is_used_only_when_a_plain_pod_got_nothing() -> None:
    api = FakeApi(logs=[NOTHING, report()])
    api.classes = ("nvidia",)
    check = run(api)
    assert check.outcome == "ok"
    assert "RuntimeClass nvidia" in check.evidence
    assert [pod["spec"].get("runtimeClassName") for pod in api.created] == [None, "nvidia"]
    plain = FakeApi()
    plain.classes = ("nvidia",)
    run(plain)
    assert len(plain.created) == 1


def test_a_pod_that_is_never_scheduled_fails_with_the_schedulers_words() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"phase": "Pending", "conditions": [{**condition, "message": "0/1: Insufficient cpu"}]}
    check = run(FakeApi(statuses=[status]))
    assert check.failed
    assert check.evidence == "the pod is not scheduled: 0/1: Insufficient cpu"


def test_a_gpu_that_a_job_took_meanwhile_is_not_a_failure() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"phase": "Pending", "conditions": [{**condition, "message": "Insufficient"}]}
    check = run(FakeApi(statuses=[status], others=[holder("8")]))
    assert check.outcome == "not applicable"
    assert "all GPUs are in use" in check.evidence


def test_a_pod_that_does_not_finish_fails_with_its_last_warning() -> None:
    api = FakeApi(statuses=[{"phase": "Pending"}])
    api.warnings = [
        {"type": "Warning", "reason": "FailedCreatePodSandBox", "message": "no runtime for x"}
    ]
    check = run(api, 0.05)
    words = "did not start in time: 0 s; FailedCreatePodSandBox: no runtime for x"
    assert words in check.evidence
    api = FakeApi(statuses=[{"phase": "Pending"}])
    api.fails = {"events": "forbidden"}
    assert "phase Pending" in run(api, 0.05).evidence


def test_a_container_that_hangs_is_not_one_that_never_started() -> None:
    state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    status = {"phase": "Running", "containerStatuses": [{"state": state}]}
    assert "the pod timed out: 0 s" in run(FakeApi(statuses=[status]), 0.05).evidence


def test_a_pod_that_something_else_deletes_fails() -> None:
    api = FakeApi(statuses=[{"phase": "Pending"}])
    api.at_look = lambda: api.deleted.extend(pod["metadata"]["name"] for pod in api.present())
    assert "the pod was deleted before it finished" in run(api).evidence


def test_a_log_that_cannot_be_read_and_one_without_a_report_fail_differently() -> None:
    api = FakeApi()
    api.fails = {"log": "dial tcp 10.0.0.1:10250: connection refused"}
    assert "report cannot be read: dial tcp" in run(api).evidence
    assert "its output: MemoryError" in run(FakeApi(logs=[{}])).evidence


def refused(action: str, words: str) -> RefusedRequest:
    return RefusedRequest(f"https://k: {action}: {words}", 403, words=words)


def test_a_pod_that_the_server_refuses_is_not_a_question_of_rights() -> None:
    api = FakeApi()
    api.fails = {"create_pod": refused("create pod", "pods is forbidden: exceeded quota: none")}
    check = run(api)
    assert check.evidence.startswith("the API server refuses the pod: https://k: create pod: ")
    assert "ResourceQuota" in check.remedy


@pytest.mark.parametrize(
    ("request_", "verb", "resource"),
    [("create_pod", "create", "pods"), ("log", "get", "pods/log"), ("pod", "get", "pods")],
)
def test_a_missing_right_is_named_with_the_rule_to_add(
    request_: str, verb: str, resource: str
) -> None:
    api = FakeApi()
    words = f'pods "p" is forbidden: User "u" cannot {verb} resource "{resource}" in API group ""'
    api.fails = {request_: refused(request_, words)}
    try:
        check = run(api, 0.05)
    except ClusterError as error:
        check = podtest.request_failed(error)
    assert check.evidence.startswith("requests to the API server fail: https://k: ")
    rule = f'{{apiGroups: [""], resources: ["{resource}"], verbs: ["{verb}"]}}'
    assert check.remedy == f"add to a role of its user: {rule}"


def test_an_interrupted_pod_is_deleted_and_not_judged() -> None:
    api = FakeApi(statuses=[{"phase": "Running"}])
    assert run(api, stop=lambda: True).outcome == "not applicable"
    assert len(api.deleted) == 1


def test_a_pod_that_cannot_be_deleted_is_named() -> None:
    api = FakeApi()
    api.fails = {"delete_pod": "forbidden"}
    check = podtest.PodTest(api, api.found, "image:1", ["python"]).run(pods.GPU)
    assert check.outcome == "ok"
    assert f"cannot delete pod {api.created[0]['metadata']['name']}: forbidden" in check.evidence


def test_an_api_that_fails_for_the_whole_time_is_an_error_and_a_pod_is_deleted() -> None:
    api = FakeApi()
    api.fails = {"pod": "API server does not answer"}
    test = podtest.PodTest(api, api.found, "image:1", ["python"], 0.05)
    with pytest.raises(ClusterError, match="does not answer"):
        test.run(pods.GPU)
    assert api.deleted


def test_what_a_killed_validation_left_on_this_node_alone_is_deleted() -> None:
    api = FakeApi()
    for name, where in (("mine", "gpu1"), ("theirs", "gpu2")):
        api.left.append({"metadata": {"name": name, "annotations": {pods.FOR_NODE: where}}})
    podtest.remove_leftovers(api, "gpu1")
    assert api.deleted == ["mine"]


def test_a_device_plugin_that_has_just_started_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(podtest, "_REGISTER_S", 5)
    api = FakeApi(node(gpus="0"))
    waits = iter([None, None])

    def stop() -> bool:
        if next(waits, "ready"):
            api.found = node()
        return False

    assert podtest.free_resource(api, "gpu1", stop) == pods.GPU
    monkeypatch.setattr(podtest, "_REGISTER_S", 0.01)
    with pytest.raises(pods.Verdict, match="the Node has no GPU resource"):
        podtest.free_resource(FakeApi(node(gpus="0")), "gpu1", lambda: False)


def test_gpus_in_use_are_not_waited_for() -> None:
    with pytest.raises(pods.Verdict, match="all GPUs are in use"):
        podtest.free_resource(FakeApi(others=[holder("8")]), "gpu1", lambda: pytest.fail("waits"))
