"""The order of a MIG change by label: pending, held, drained, paused, changed, resumed, refreshed, released."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from gpustate.core.change import Disruption
from gpustate.core.drain import DrainPolicy
from gpustate.core.facts import NodeFacts
from gpustate.core.inventory import InventoryNode
from gpustate.engine.maintenance import Subject
from gpustate.errors import ClusterError, GpustateError, RefusedError
from gpustate.rollout.by_label import MigNode
from gpustate.rollout.maintenance import ScheduledMaintenance
from gpustate.schedulers.base import Emit, Hold, Member, NotDrainedError, Scheduler, Stop
from gpustate.schedulers.kubernetes import Kubernetes


class FakeCluster:
    """A scheduler and the protocol, which notes what is done; ``fails``: calls that raise."""

    title = "Kubernetes at x"
    out_word = "cordoned"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails: dict[str, GpustateError] = {}
        self.node = "gpu1"

    @property
    def mig(self) -> FakeCluster:
        return self

    @property
    def nvidia_pods(self) -> FakeCluster:
        return self

    def _call(self, word: str) -> None:
        self.calls.append(word)
        if word in self.fails:
            raise self.fails[word]

    def begin(self, name: str, run: str) -> None:
        self._call("pending")

    def pause(self, name: str, emit: Emit, stop: Stop) -> None:
        self._call("pause")

    def resume(self, name: str, ours: Any) -> None:
        self._call("resume")

    def rebooting(self, name: str) -> None:
        self._call("rebooting")

    def member(self, facts: NodeFacts, name: str) -> Member:
        return Member(self.node, ready=True, schedulable=True)

    def restarted(self, member: Member) -> list[str]:
        return []

    def members(self, *, fresh: bool = False) -> list[Member]:
        return []

    def take_lease(self, *_: object) -> None: ...

    def hold(self, member: Member, why: object) -> Member:
        self._call("hold")
        return replace(member, schedulable=False, hold=Hold("r", "p", "t", "held", ""))

    def note(self, member: Member, phase: str, *_: object) -> Member:
        return member

    def drain(self, *_: object) -> None:
        self._call("drain")

    def refresh(self, *_: object) -> str:
        self._call("refresh")
        return ""

    def release(self, member: Member, emit: Emit, stop: Stop) -> str:
        self._call("release")
        return ""


def parts(*, open_: bool = False) -> tuple[FakeCluster, ScheduledMaintenance]:
    cluster = FakeCluster()

    def access(node: InventoryNode, kind: str) -> Scheduler | None:
        return cast(Scheduler, cluster) if kind == "Kubernetes" else None

    mig = {"gpu1": MigNode(cast(Kubernetes, cluster), "gpu1", "all-1g", open=open_)}
    return cluster, ScheduledMaintenance(access, "r", "p", DrainPolicy(), mig=mig)


def subject(worst: Disruption = Disruption.DRAIN, *pending: str) -> Subject:
    facts = NodeFacts(agents=("kubelet",))
    return Subject(
        InventoryNode("gpu1"), facts, worst, lambda: ("mig",), frozenset(pending or ("mig",))
    )


def said(_: str) -> None: ...


def never() -> bool:
    return False


def test_workloads_leave_before_programs_do_and_these_are_back_before_the_release() -> None:
    cluster, maintenance = parts()
    maintenance.begin(subject(), said, never)
    assert cluster.calls == ["pending", "hold", "drain", "pause"]
    maintenance.rebooting(subject())
    assert maintenance.end(subject(), "", said) == ()
    assert cluster.calls[4:] == ["rebooting", "resume", "refresh", "release"]


def test_a_change_that_disturbs_no_workload_pauses_programs_without_a_hold() -> None:
    cluster, maintenance = parts()
    maintenance.begin(subject(Disruption.NONE), said, never)
    maintenance.end(subject(Disruption.NONE), "", said)
    assert cluster.calls == ["pending", "pause", "resume", "refresh"]


def test_other_changes_of_the_node_leave_the_labels_alone() -> None:
    cluster, maintenance = parts()
    maintenance.begin(subject(Disruption.DRAIN, "driver"), said, never)
    maintenance.rebooting(subject(Disruption.DRAIN, "driver"))
    maintenance.end(subject(Disruption.DRAIN, "driver"), "", said)
    assert cluster.calls == ["hold", "drain", "refresh", "release"]


def test_programs_that_an_earlier_run_left_paused_run_again() -> None:
    cluster, maintenance = parts(open_=True)
    maintenance.end(subject(Disruption.NONE, "driver"), "", said)
    assert cluster.calls == ["resume"]


@pytest.mark.parametrize("fails", ["drain", "pause"])
def test_what_does_not_leave_ends_the_change_and_everything_is_as_before(fails: str) -> None:
    cluster, maintenance = parts()
    cluster.fails[fails] = NotDrainedError("it stays")
    with pytest.raises(NotDrainedError, match="it stays"):
        maintenance.begin(subject(), said, never)
    assert cluster.calls[-1] == "release"
    assert ("resume" in cluster.calls) is (fails == "pause")


def test_a_failed_change_lets_programs_run_again_and_keeps_the_node_out() -> None:
    cluster, maintenance = parts()
    maintenance.begin(subject(), said, never)
    notes = maintenance.end(subject(), "it broke", said)
    assert "resume" in cluster.calls
    assert "release" not in cluster.calls
    assert any("stays out of service" in note for note in notes)


def test_programs_that_cannot_run_again_keep_the_node_out() -> None:
    cluster, maintenance = parts()
    maintenance.begin(subject(), said, never)
    cluster.fails["resume"] = ClusterError("the server is away")
    with pytest.raises(ClusterError, match="still kept off Node gpu1: the server is away"):
        maintenance.end(subject(), "", said)
    assert "release" not in cluster.calls


def test_a_node_of_the_same_name_that_is_another_machine_is_refused() -> None:
    cluster, maintenance = parts()
    cluster.node = "gpu2"
    with pytest.raises(RefusedError, match="gpu1 is Node gpu2"):
        maintenance.begin(subject(), said, never)
    assert cluster.calls == []
