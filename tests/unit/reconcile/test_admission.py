"""The condition GPUHealthy and the start-up taint: what a run says about a Node, and who may go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpustate.cluster import pods
from gpustate.cluster.node_status import CONDITION_MANAGER, OtherWriter
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome, StateResult
from gpustate.documents import Json
from gpustate.errors import EXIT_VALIDATION, ClusterError
from gpustate.reconcile.admission import Admission, Admitted
from gpustate.reconcile.verdicts import (
    FALSE,
    TRUE,
    UNKNOWN,
    Verdict,
    after_health,
    after_quarantine,
    of_findings,
    of_result,
    reason_of_health,
)
from gpustate.validation import pods as validation
from gpustate.validation import site_tests

TAINT = "example.com/new"
GOOD = Verdict(TRUE, "Validated", "cuda: kernel ran on 8 devices", fresh=False)
BAD = Verdict(FALSE, "XidError", "health: GPU 3: Xid 79")


def node(name: str = "n1", *, gpus: int = 8, taints: tuple[str, ...] = (), **more: Any) -> Json:
    return {
        "metadata": {"name": name, "resourceVersion": "1", **more},
        "spec": {"taints": [{"key": one, "effect": "NoSchedule"} for one in taints]},
        "status": {"conditions": [], "allocatable": {"nvidia.com/gpu": str(gpus)}},
    }


class Api:
    """The Nodes of a cluster in memory."""

    def __init__(self, *nodes: Json) -> None:
        self.found = {one["metadata"]["name"]: one for one in nodes}
        self.written: list[tuple[str, Json | None]] = []
        self.lifted: list[str] = []
        self.error: ClusterError | None = None

    def nodes(self) -> list[Json]:
        return list(self.found.values())

    def apply_condition(self, name: str, condition: Mapping[str, str] | None) -> None:
        if self.error is not None:
            raise self.error
        self.written.append((name, dict(condition) if condition else None))
        live = self.found[name]
        live["status"]["conditions"] = [{"type": "GPUHealthy", **condition}] if condition else []
        live["metadata"]["managedFields"] = [
            {"manager": CONDITION_MANAGER, "operation": "Apply", "subresource": "status"}
        ]

    def lift_taint(self, node: Json, key: str) -> bool:
        self.lifted.append(node["metadata"]["name"])
        return True


def report(api: Api, verdict: Verdict, now: str = "t1", **more: Any) -> Admitted:
    clock = iter(range(0, 10000, 10))
    own: Json = {"sleep": lambda seconds: None, "clock": lambda: float(next(clock)), **more}
    return Admission(api, now, **own).report([(one, verdict) for one in api.nodes()])


def test_a_condition_is_written_once_and_its_heartbeat_only_by_a_validation() -> None:
    api = Api(node())
    done = report(api, GOOD)
    (line,) = map(str, done.notes)
    assert line == "node/n1: GPUHealthy is True (Validated: cuda: kernel ran on 8 devices)"
    assert api.written == [
        (
            "n1",
            {
                **{"status": "True", "reason": "Validated", "message": GOOD.message},
                **{"lastHeartbeatTime": "t1", "lastTransitionTime": "t1"},
            },
        )
    ]
    assert not report(api, GOOD, "t2").notes
    assert len(api.written) == 1
    assert not report(api, Verdict(TRUE, "Validated", GOOD.message), "t3").notes
    assert api.written[1][1] is not None
    assert api.written[1][1]["lastHeartbeatTime"] == "t3"
    assert api.written[1][1]["lastTransitionTime"] == "t1"


def test_the_transition_is_of_the_status_alone() -> None:
    api = Api(node())
    for verdict, now in ((GOOD, "t1"), (BAD, "t2"), (Verdict(FALSE, "GPULost", "x"), "t3")):
        report(api, verdict, now)
    last = api.written[-1][1]
    assert last is not None
    assert (last["lastTransitionTime"], last["lastHeartbeatTime"]) == ("t2", "t3")


@pytest.mark.parametrize(
    ("verdict", "kept"),
    [
        (replace(GOOD, validated_at=1772353799), True),
        (replace(GOOD, validated_at=0), True),
        (replace(GOOD, validated_at=1772353801), False),
        (replace(GOOD, fresh=True), False),
        (Verdict(UNKNOWN, "RolledBack", "x"), False),
    ],
)
def test_a_false_that_is_newer_than_the_validation_stays(verdict: Verdict, kept: bool) -> None:
    api = Api(node(taints=(TAINT,)))
    failed = Verdict(FALSE, "PodNotStarted", "pod: CreateContainerError")
    report(api, failed, "2026-03-01T08:30:00Z")
    api.written.clear()
    done = report(api, verdict, "2026-03-01T09:00:00Z", taint=TAINT)
    words = "; ".join(map(str, done.notes))
    assert bool(api.written) != kept
    assert (
        "GPUHealthy stays False, for nothing was validated since (PodNotStarted: pod: CreateContainerError); "
        "once it is fixed: gpustate validate" in words
    ) == kept
    if kept:
        assert f"start-up taint {TAINT} stays: PodNotStarted" in words
    assert bool(api.lifted) == (verdict.passed and not kept)


def test_an_equal_condition_of_somebody_else_is_not_taken_for_ours() -> None:
    found = node()
    found["status"]["conditions"] = [
        {"type": "GPUHealthy", "status": "True", "reason": "Validated", "message": GOOD.message}
        | {"lastTransitionTime": "t0", "lastHeartbeatTime": "t0"}
    ]
    api = Api(found)
    api.error = OtherWriter('conflict with "node-problem-detector": .status.conditions')
    done = report(api, GOOD)
    (line,) = map(str, done.notes)
    assert "has another writer" in line
    assert "node-problem-detector" in line
    assert not done.failures


def test_a_condition_that_is_forbidden_does_not_keep_the_taint() -> None:
    api = Api(node(taints=(TAINT,)))
    api.error = ClusterError("forbidden", fix="add to a role of its user: nodes/status")
    done = report(api, GOOD, taint=TAINT)
    assert api.lifted == ["n1"]
    assert ["could not be written" in str(one) for one in done.notes] == [True, False]
    assert "add to a role" in str(done.notes[0])


@pytest.mark.parametrize(
    ("gpus", "verdict", "blocked", "why"),
    [
        (8, BAD, "", "XidError: health: GPU 3: Xid 79"),
        (8, Verdict(UNKNOWN, "RebootPending", "later"), "", "RebootPending: later"),
        (0, GOOD, "", "the Node offers no GPU"),
        (8, GOOD, "the run was stopped", "the run was stopped"),
    ],
)
def test_the_taint_stays_and_the_reason_is_named(
    gpus: int, verdict: Verdict, blocked: str, why: str
) -> None:
    api = Api(node(gpus=gpus, taints=(TAINT, "other")))
    done = report(api, verdict, taint=TAINT, offers_gpus=True, blocked=blocked)
    assert not api.lifted
    assert f"start-up taint {TAINT} stays: {why}" in str(done.notes[-1])


def test_the_taint_of_a_validated_node_is_lifted_and_others_are_not_looked_at() -> None:
    api = Api(node(taints=(TAINT,)), node("n2", taints=("other",)))
    done = report(api, GOOD, taint=TAINT, offers_gpus=True)
    assert api.lifted == ["n1"]
    assert str(done.notes[-1]) == f"node/n1: start-up taint {TAINT} lifted"


def test_a_device_plugin_that_registers_late_is_waited_for() -> None:
    api = Api(node(gpus=0, taints=(TAINT,)))

    def register(seconds: float) -> None:
        api.found["n1"] = node(taints=(TAINT,))

    report(api, GOOD, taint=TAINT, offers_gpus=True, sleep=register)
    assert api.lifted == ["n1"]


def test_only_our_condition_is_withdrawn() -> None:
    ours, theirs = node(), node("n2")
    api = Api(ours, theirs)
    api.apply_condition("n1", {"status": "True"})
    api.written.clear()
    done = Admission(api, "t").withdraw(api.nodes())
    assert api.written == [("n1", None)]
    assert list(map(str, done.notes)) == ["node/n1: condition GPUHealthy removed"]


# --- verdicts -------------------------------------------------------------------------------------


def check(name: str, outcome: str, evidence: str = "e") -> dict[str, object]:
    return {"name": name, "outcome": outcome, "evidence": evidence, "remedy": "r"}


def validated(outcome: Outcome, *checks: dict[str, object], **more: Any) -> NodeResult:
    states = [StateResult("validator", outcome, validating=True, reason="it failed")]
    return NodeResult("n1", states=states, checks=list(checks), **more)


def test_a_validated_node_is_healthy_by_what_does_not_change_from_run_to_run() -> None:
    checks = (check("cuda", "ok", "kernel ran on 8 devices, results correct; slowest 0.3 s"),)
    found = of_result(validated(Outcome.CHANGED, *checks))
    assert found == Verdict(
        TRUE, "Validated", "cuda: kernel ran on 8 devices, results correct", fresh=True
    )
    again = of_result(validated(Outcome.UNCHANGED, *checks, validated_at=7))
    assert again is not None
    assert (again.fresh, again.validated_at) == (False, 7)


@pytest.mark.parametrize(
    ("name", "evidence", "reason"),
    [
        ("driver", "not loaded", "DriverNotLoaded"),
        ("pod", "the pod timed out: 60 s", "PodNotStarted"),
        ("health", "GPU 3 (0000:41:00.0): Xid 79 GPU has fallen off the bus", "XidError"),
        ("health", "GPU 1 (0000:41:00.0): row remapping failed; GPU 2: Xid 48", "RowRemapFailed"),
        ("health", "compute mode Prohibited", "GPUUnhealthy"),
        ("site-test", "x", "SiteTestFailed"),
    ],
)
def test_a_failed_check_is_the_reason(name: str, evidence: str, reason: str) -> None:
    checks = (check("pci", "ok"), check(name, "failed", evidence))
    found = of_result(validated(Outcome.FAILED, *checks, status=NodeStatus.FAILED))
    assert found == Verdict(FALSE, reason, f"{name}: {evidence}")


def test_a_failed_validation_names_the_quarantined_gpus() -> None:
    held = "in quarantine: GPU 3 until 2027: fans (ann)"
    health = check("health", "ok", f"7 GPUs healthy; {held}")
    failed = StateResult("validator", Outcome.FAILED, reason="2 tests failed", validating=True)
    for checks, message in (
        ((health, check("cuda", "failed", "x")), f"cuda: x; {held}"),
        ((check("health", "failed", f"GPU 1: Xid 79; {held}"),), f"health: GPU 1: Xid 79; {held}"),
        (
            (
                check("driver", "failed", "y"),
                check("health", "not applicable", f"no GPU answers; {held}"),
            ),
            f"driver: y; {held}",
        ),
        ((health,), f"validator: 2 tests failed; {held}"),
    ):
        found = of_result(NodeResult("n1", NodeStatus.FAILED, states=[failed], checks=[*checks]))
        assert found is not None
        assert (found.status, found.message) == (FALSE, message)
    condition = {"status": "False", "reason": "XidError", "message": f"GPU 1: Xid 79; {held}"}
    for verdict, message in (
        (of_findings(["GPU 2: Xid 79"]), f"GPU 2: Xid 79; {held}"),
        (None, f"no GPU has a fault any more; not validated since; {held}"),
    ):
        now = after_health(verdict, condition)
        assert now is not None
        assert now.message == message


def test_a_pod_that_could_not_be_tried_says_nothing_of_the_gpus() -> None:
    result = validated(Outcome.CHANGED, check("cuda", "ok"))
    validation.add(result, pods.failed("refused", "exceeded quota: none"))
    assert result.exit_code == EXIT_VALIDATION
    assert of_result(result, fresh=True) is None
    site_tests.add(result, [site_tests.SiteTest("test_fans", "n1", "failed")])
    found = of_result(result, fresh=True)
    assert found is not None
    assert (found.status, found.reason) == (FALSE, "SiteTestsFailed")


def test_a_failure_before_the_validator_leaves_the_gpus_unknown() -> None:
    states = [
        StateResult("driver", Outcome.FAILED, reason="apt failed"),
        StateResult("validator", Outcome.NOT_RUN, validating=True),
    ]
    old = [check("cuda", "failed", "of an earlier run")]
    found = of_result(NodeResult("n1", NodeStatus.FAILED, states=states, checks=old))
    assert found == Verdict(UNKNOWN, "DriverFailed", "driver: apt failed")


@pytest.mark.parametrize(
    "status",
    [NodeStatus.UNREACHABLE, NodeStatus.LOCKED, NodeStatus.REFUSED, NodeStatus.INTERRUPTED],
)
def test_a_node_that_was_not_touched_is_not_judged(status: NodeStatus) -> None:
    assert of_result(validated(Outcome.UNCHANGED, status=status)) is None


def test_without_a_validator_nothing_is_said() -> None:
    assert of_result(NodeResult("n1", states=[StateResult("driver", Outcome.CHANGED)])) is None


def test_rolled_back_and_rebooting_nodes_are_unknown() -> None:
    back = of_result(NodeResult("n1", NodeStatus.ROLLED_BACK, "cuda failed"))
    assert back == Verdict(UNKNOWN, "RolledBack", "cuda failed")
    later = of_result(NodeResult("n1", states=[StateResult("driver", Outcome.REBOOT_PENDING)]))
    assert later is not None
    assert (later.status, later.reason) == (UNKNOWN, "RebootPending")


def test_health_takes_back_only_what_it_said() -> None:
    fault = of_findings(["GPU 3: Xid 79", "GPU 4: row remapping failed"])
    assert fault == Verdict(FALSE, "XidError", "GPU 3: Xid 79; GPU 4: row remapping failed")
    assert after_health(fault, None) == fault
    assert of_findings([]) is None
    good = {"status": "True", "reason": "Validated", "message": "m"}
    assert after_health(None, good) == Verdict(TRUE, "Validated", "m")
    mended = after_health(None, {"status": "False", "reason": "XidError", "message": "m"})
    assert mended is not None
    assert (mended.status, mended.reason) == (UNKNOWN, "NotValidated")
    assert after_health(None, {"status": "False", "reason": "PodNotStarted"}) is None
    unseen = after_health(None, None)
    assert unseen is not None
    assert unseen.status == UNKNOWN


def test_a_lost_gpu_and_nvml_have_their_reasons() -> None:
    assert reason_of_health("GPU 3: GPU is lost (NVML 15)") == "GPULost"
    assert reason_of_health("NVML: Driver Not Loaded; diagnose it") == "NVMLFailed"


def test_a_quarantine_is_named_in_the_message_alone() -> None:
    healthy = {"status": TRUE, "reason": "Validated", "message": "driver: x; health: 8 healthy"}
    found = after_quarantine(["GPU-3 until 2027: fans; twice (ann)"], healthy)
    words = "driver: x; health: 8 healthy; in quarantine: GPU-3 until 2027: fans, twice (ann)"
    assert found == Verdict(TRUE, "Validated", words, fresh=False)
    ended = after_quarantine([], {**healthy, "message": words})
    assert ended == Verdict(TRUE, "Validated", healthy["message"], fresh=False)
    unseen = after_quarantine(["GPU-3 until 2027: fans (ann)"], None)
    assert unseen is not None
    assert (unseen.status, unseen.reason) == (UNKNOWN, "NotValidated")
    assert unseen.message == "not validated yet; in quarantine: GPU-3 until 2027: fans (ann)"
    assert after_quarantine([], None) is None
