"""Nodes go out of service and back around a change, or stay out with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from gpustate.core.change import Disruption
from gpustate.core.drain import DrainPolicy
from gpustate.core.facts import NodeFacts
from gpustate.core.inventory import InventoryNode
from gpustate.engine.maintenance import Preview, Subject
from gpustate.errors import (
    ClusterError,
    GpustateError,
    LockHeld,
    RefusedError,
    UnreleasedError,
    UsageError,
)
from gpustate.formats import masking
from gpustate.formats.pci_gpus import PciGpu
from gpustate.rollout.access import Accesses
from gpustate.rollout.maintenance import WITHDRAWS, ScheduledMaintenance, kinds_of, scope_of
from gpustate.rollout.signals import Signals
from gpustate.schedulers.base import (
    Emit,
    HeldElsewhereError,
    Hold,
    Member,
    NotDrainedError,
    NotMemberError,
    NotRefreshedError,
    Scheduler,
    Scope,
    Stop,
    Why,
    Workload,
    discard,
    never,
)

IN_SERVICE = Member("n1", ready=True, schedulable=True)


CORDONED = (
    "Kubernetes at test: the node is cordoned before the change, and returned to service once the "
    "change has succeeded"
)
RESTARTED = ("DaemonSet nvidia/device-plugin", "is restarted")


@dataclass
class FakeScheduler:
    """One member, and every call. ``fails``: calls that raise."""

    out_word = "cordoned"
    title: str = "Kubernetes at test"
    current: Member = IN_SERVICE
    found: tuple[Workload, ...] = ()
    fails: dict[str, Exception] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    taken: tuple[str, ...] = ()
    left: str = ""
    unoffered: str = ""
    uncordoned: bool = False
    unknown: Exception | None = None

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name.partition(" ")[0] in self.fails:
            raise self.fails[name.partition(" ")[0]]

    def members(self, *, fresh: bool = False) -> Sequence[Member]:
        return [self.current]

    def member(self, facts: NodeFacts, name: str) -> Member:
        if self.unknown is not None:
            raise self.unknown
        return self.current

    def workloads(self, member: Member, scope: Scope, policy: DrainPolicy) -> Sequence[Workload]:
        return self.found

    def restarted(self, member: Member) -> Sequence[str]:
        return ("DaemonSet nvidia/device-plugin",) if self.title.startswith("Kubernetes") else ()

    def take_lease(self, why: Why, emit: Emit, stop: Stop) -> None:
        if "enter" in self.fails:
            raise self.fails["enter"]

    def drop_lease(self) -> None:
        self._call("leave")

    def hold(self, member: Member, why: Why) -> Member:
        self._call(f"hold {why.text}")
        hold = Hold(why.run, why.person, why.text, "held", "")
        return replace(member, schedulable=False, hold=hold)

    def note(self, member: Member, phase: str, why: str = "") -> Member:
        self._call(f"note {phase}")
        self.reasons.append(why)
        member = replace(member, foreign=self.taken)
        return replace(member, schedulable=self.uncordoned)

    def drain(
        self, member: Member, scope: Scope, policy: DrainPolicy, emit: Emit, stop: Stop
    ) -> None:
        self._call(f"drain {scope.value}")

    def refresh(self, member: Member, facts: NodeFacts, emit: Emit, stop: Stop) -> str:
        self._call("refresh")
        return self.unoffered

    def release(self, member: Member, emit: Emit = discard, stop: Stop = never) -> str:
        self._call("release")
        return self.left


def subject(worst: Disruption = Disruption.RESET, *agents: str) -> Subject:
    facts = NodeFacts(agents=agents or ("kubelet",))
    return Subject(InventoryNode("gpu1"), facts, worst, lambda: ("driver",))


def maintenance(**schedulers: Scheduler) -> ScheduledMaintenance:
    def access(node: InventoryNode, kind: str) -> Scheduler | None:
        return schedulers.get(kind)

    return ScheduledMaintenance(access, "r2", "ann@ops1", DrainPolicy())


def said(_: str) -> None:
    """Nobody listens."""


def never() -> bool:
    return False


@pytest.mark.parametrize(
    ("worst", "scope"),
    [
        (Disruption.NONE, None),
        (Disruption.RELOAD, None),
        (Disruption.RESTART, None),
        (Disruption.DRAIN, Scope.GPU),
        (Disruption.RESET, Scope.GPU),
        (Disruption.REBOOT, Scope.ALL),
    ],
)
def test_the_least_that_the_change_needs_leaves(worst: Disruption, scope: Scope | None) -> None:
    assert scope_of(worst) == scope


def test_a_node_is_said_to_be_held_once_it_is() -> None:
    words: list[str] = []
    scheduler = FakeScheduler(fails={"hold": HeldElsewhereError("cordoned by bob")})
    with pytest.raises(HeldElsewhereError):
        maintenance(Kubernetes=scheduler).begin(subject(), words.append, never)
    assert words == []
    maintenance(Kubernetes=FakeScheduler()).begin(subject(), words.append, never)
    assert words == ["holding n1 in Kubernetes at test"]


def test_a_change_that_disturbs_no_workload_holds_nothing() -> None:
    scheduler = FakeScheduler()
    found = maintenance(Kubernetes=scheduler)
    found.begin(subject(Disruption.RESTART), said, never)
    assert found.end(subject(Disruption.RESTART), "", said) == ()
    assert scheduler.calls == []


def test_a_node_is_held_drained_changed_and_released() -> None:
    scheduler = FakeScheduler()
    found = maintenance(Kubernetes=scheduler)
    found.begin(subject(), said, never)
    assert found.end(subject(), "", said) == ()
    wanted = ["hold changes driver", "drain gpu", "note drained", "note changing", "note validating", "refresh", "release"]  # fmt: skip
    assert scheduler.calls == wanted


@pytest.mark.parametrize("left", [False, True], ids=["of this run", "of an earlier one"])
def test_a_node_whose_gpus_nothing_offers_any_more_is_released_with_a_note(left: bool) -> None:
    scheduler = FakeScheduler(unoffered="nothing offers its GPUs")
    scheduler.current = LEFT if left else scheduler.current
    cluster = maintenance(Kubernetes=scheduler)
    change = subject(Disruption.NONE if left else Disruption.RESET)
    cluster.begin(change, said, never)
    assert cluster.end(change, "", said) == ("nothing offers its GPUs",)
    assert scheduler.calls[-2:] == ["refresh", "release"]


@pytest.mark.parametrize("left", [False, True], ids=["of this run", "of an earlier one"])
def test_a_held_node_gets_what_brings_its_gpus_back_before_they_are_waited_for(left: bool) -> None:
    scheduler = FakeScheduler()
    found = maintenance(Kubernetes=scheduler)
    before_return = lambda: scheduler.calls.append("before return")  # noqa: E731
    one = replace(
        subject(Disruption.NONE if left else Disruption.RESET), before_return=before_return
    )
    if left:
        scheduler.current = LEFT
    found.begin(one, said, never)
    assert found.end(one, "", said) == ()
    assert scheduler.calls[-4:] == ["note validating", "before return", "refresh", "release"]


def test_a_node_that_someone_else_cordoned_meanwhile_is_drained_again() -> None:
    """It may have been uncordoned before, and have new workloads."""
    scheduler = FakeScheduler(taken=("cordoned by bob",))
    maintenance(Kubernetes=scheduler).begin(subject(), said, never)
    assert scheduler.calls[-2:] == ["note changing", "drain gpu"]


def test_the_drain_of_a_node_may_be_another_than_that_of_the_others() -> None:
    seen: list[DrainPolicy] = []

    class Watching(FakeScheduler):
        def drain(
            self, member: Member, scope: Scope, policy: DrainPolicy, emit: Emit, stop: Stop
        ) -> None:
            seen.append(policy)

    own = DrainPolicy(wait_selector="app=train", wait_timeout_s=60.0)
    scheduler = Watching()
    for policies in ({"gpu1": own}, {"gpu2": own}):
        found = ScheduledMaintenance(
            lambda node, kind: scheduler if kind == "Kubernetes" else None,
            "r2",
            "ann@ops1",
            DrainPolicy(),
            policies=policies,
        )
        found.begin(subject(), said, never)
    assert seen == [own, DrainPolicy()]


def test_a_failed_change_keeps_the_node_held_with_the_reason() -> None:
    scheduler = FakeScheduler()
    found = maintenance(Kubernetes=scheduler)
    found.begin(subject(), said, never)
    (note,) = found.end(subject(), "driver failed", said)
    assert note == "Kubernetes at test: n1 stays out of service: driver failed"
    assert scheduler.calls[-1] == "note failed"
    assert scheduler.reasons[-1] == "driver failed"


def test_a_long_reason_is_kept_in_one_line_without_secrets() -> None:
    masking.remember("hunter2hunter2")
    scheduler = FakeScheduler()
    found = maintenance(Kubernetes=scheduler)
    found.begin(subject(), said, never)
    found.end(subject(), "apt failed:\n  password hunter2hunter2\n" + "x" * 5000, said)
    assert scheduler.reasons[-1].startswith("apt failed: password ")
    assert "hunter2" not in scheduler.reasons[-1]
    assert len(scheduler.reasons[-1]) == 1000


def test_an_error_that_nobody_expects_leaves_no_node_held_without_a_word() -> None:
    scheduler = FakeScheduler(fails={"drain": KeyError("pods")})
    kept = maintenance(Kubernetes=scheduler)
    with pytest.raises(GpustateError, match=r"^KeyError: 'pods' \(a bug in gpustate\)"):
        kept.begin(subject(), said, never)
    assert scheduler.calls[-1] == "release"
    scheduler = FakeScheduler(fails={"refresh": BrokenPipeError(32, "Broken pipe")})
    kept = maintenance(Kubernetes=scheduler)
    kept.begin(subject(), said, never)
    with pytest.raises(UnreleasedError, match=r"a bug in gpustate.*n1 stays out of service"):
        kept.end(subject(), "", said)
    assert scheduler.calls[-1] == "note failed"


class LeasedSchedulers(Accesses):
    """Those of a cluster."""

    def __init__(self, *schedulers: FakeScheduler) -> None:
        self.schedulers = schedulers

    def leased(self) -> list[Any]:
        return list(self.schedulers)


def test_nodes_that_a_run_has_left_held_are_named_with_what_ends_that() -> None:
    hold = Hold("r0", "ann@ops1", "changes driver", "changing", "10:00")
    scheduler = FakeScheduler(current=replace(IN_SERVICE, schedulable=False, hold=hold))
    kept = ScheduledMaintenance(LeasedSchedulers(scheduler), "r2", "ann@ops1", DrainPolicy())
    ((name, words),) = kept.left_held({"gpu1": "n1", "gpu2": None})
    assert name == "gpu1"
    assert words == (
        "Kubernetes at test: n1 stays out of service: run r0 holds it since 10:00 (changing); "
        "if run r0 is dead: gpustate rollout resume r0 on its machine, or its command again here"
    )
    scheduler.current = IN_SERVICE
    assert not list(kept.left_held({"gpu1": "n1"}))


def test_a_cluster_that_a_run_has_entered_and_lost_leaves_open_what_is_held() -> None:
    class Away(FakeScheduler):
        def members(self, *, fresh: bool = False) -> Sequence[Member]:
            raise ClusterError("it does not answer")

    signals = Signals()
    scheduler = Away()
    access = LeasedSchedulers(scheduler)
    kept = ScheduledMaintenance(access, "r2", "ann@ops1", DrainPolicy(), signals=signals)
    assert not list(kept.left_held({"gpu1": "n1"})), "nothing was held there"
    signals.entered.append(cast("Any", scheduler))
    ((_, words),) = kept.left_held({"gpu1": "n1"})
    assert "whether it stays out of service is not known: it does not answer" in words


def test_a_node_that_offers_no_gpus_afterwards_stays_held() -> None:
    scheduler = FakeScheduler(fails={"refresh": NotRefreshedError("offers no GPU")})
    found = maintenance(Kubernetes=scheduler)
    found.begin(subject(), said, never)
    with pytest.raises(NotRefreshedError, match="offers no GPU"):
        found.end(subject(), "", said)
    assert scheduler.calls[-1] == "note failed"
    assert scheduler.reasons[-1] == "offers no GPU"


def test_an_interruption_ends_the_wait_for_gpus_and_the_node_stays_held() -> None:
    stop, asked = (lambda: True), list[bool]()

    class Waits(FakeScheduler):
        def refresh(self, member: Member, facts: NodeFacts, emit: Emit, stop: Stop) -> str:
            asked.append(stop())
            raise NotDrainedError(
                "interrupted while its pods were restarted (allocatable has none)"
            )

    scheduler = Waits()
    found = maintenance(Kubernetes=scheduler)
    found.begin(subject(), said, never)
    with pytest.raises(UnreleasedError, match=r"\(allocatable has none\).*n1 stays out of service"):
        found.end(subject(), "", said, stop)
    assert asked == [True]
    assert scheduler.calls[-1] == "note validating", "its change has not failed"
    scheduler.current = LEFT
    (note,) = maintenance(Kubernetes=scheduler).end(subject(Disruption.NONE), "", said, stop)
    assert note.startswith("Kubernetes at test: n1 stays out of service: interrupted while")


def test_nodes_held_for_a_withdrawal_are_released_and_not_refreshed() -> None:
    scheduler = FakeScheduler()
    hold = Hold("r1", "ann@ops1", WITHDRAWS, "held", "")
    scheduler.current = replace(scheduler.current, schedulable=False, hold=hold)
    node = replace(subject(Disruption.NONE), before_return=lambda: scheduler.calls.append("labels"))
    assert maintenance(Kubernetes=scheduler).end(node, "", said) == ()
    # Nothing may offer GPUs yet that could be waited for, and nothing keeps them off any more.
    assert scheduler.calls == ["note validating", "labels", "release"]


def test_a_removal_holds_a_node_whose_workloads_stay_and_restarts_nothing_there() -> None:
    class Withdrawn(FakeScheduler):
        def note(self, member: Member, phase: str, why: str = "") -> Member:
            noted = super().note(member, phase, why)
            hold = Hold("r1", "ann@ops1", WITHDRAWS, phase, "")
            return replace(noted, hold=hold if phase == "validating" else noted.hold)

    cluster, slurm = Withdrawn(), FakeScheduler(title="Slurm at test")
    access = {"Kubernetes": cluster, "Slurm": slurm}
    found = ScheduledMaintenance(
        lambda node, kind: access.get(kind), "r1", "ann@ops1", DrainPolicy(), withdraws=True
    )
    node = subject(Disruption.RESTART)
    found.begin(node, said, never)
    assert found.end(node, "", said) == ()
    expected = ["hold changes driver", "note changing", "note validating", "release"]
    assert (cluster.calls, slurm.calls) == (expected, [])


def test_a_node_that_cannot_be_drained_is_released_unchanged() -> None:
    scheduler = FakeScheduler(fails={"drain": NotDrainedError("pod a/b stays")})
    with pytest.raises(NotDrainedError, match="pod a/b stays"):
        maintenance(Kubernetes=scheduler).begin(subject(), said, never)
    assert scheduler.calls == ["hold changes driver", "drain gpu", "release"]


def test_the_scheduler_is_told_which_pods_a_change_leaves_alone() -> None:
    spared: list[frozenset[str]] = []

    class Watched(FakeScheduler):
        def workloads(
            self, member: Member, scope: Scope, policy: DrainPolicy
        ) -> Sequence[Workload]:
            spared.append(member.spared)
            return ()

        def drain(
            self, member: Member, scope: Scope, policy: DrainPolicy, emit: Emit, stop: Stop
        ) -> None:
            spared.append(member.spared)

    found = maintenance(Kubernetes=Watched())
    change = replace(subject(), spared=frozenset({"uid"}))
    found.preview(change)
    found.begin(change, said, never)
    assert spared == [{"uid"}, {"uid"}]


def test_a_node_whose_drain_an_abort_ended_says_who_aborted() -> None:
    signals = Signals()

    class Aborted(FakeScheduler):
        def drain(
            self, member: Member, scope: Scope, policy: DrainPolicy, emit: Emit, stop: Stop
        ) -> None:
            signals.aborted, signals.stopped = True, "aborted by bob@ops2 since 10:00"
            assert stop()
            raise NotDrainedError("interrupted while it was drained")

    scheduler = Aborted()
    found = ScheduledMaintenance(
        lambda node, kind: scheduler if kind == "Kubernetes" else None,
        "r2",
        "ann@ops1",
        DrainPolicy(),
        signals=signals,
    )
    with pytest.raises(NotDrainedError, match=r"^aborted by bob@ops2 since 10:00 while it was"):
        found.begin(subject(), said, never)
    assert scheduler.calls[-1] == "release"


def test_a_node_that_failed_before_and_cannot_be_drained_stays_held() -> None:
    """Its rollback, or the next apply, has not begun: what it was changed by is still in place."""
    hold = Hold("r1", "ann@ops1", "changes driver", "failed", "")
    scheduler = FakeScheduler(
        current=Member("n1", ready=True, schedulable=False, hold=hold),
        fails={"drain": NotDrainedError("pod a/b stays")},
    )
    words = "pod a/b stays; Kubernetes at test: n1 stays out of service"
    with pytest.raises(NotDrainedError, match=words):
        maintenance(Kubernetes=scheduler).begin(subject(), said, never)
    assert scheduler.calls == ["hold changes driver", "drain gpu", "note failed"]
    assert scheduler.reasons[-1] == "pod a/b stays"


def test_a_failed_change_is_followed_by_its_rollback_in_the_same_run() -> None:
    scheduler = FakeScheduler()
    found = maintenance(Kubernetes=scheduler)
    found.begin(subject(), said, never)
    found.end(subject(), "driver failed", said)
    hold = Hold("r2", "ann@ops1", "changes driver", "failed", "")
    scheduler.current = Member("n1", ready=True, schedulable=False, hold=hold)
    scheduler.calls.clear()
    found.begin(subject(), said, never)
    assert found.end(subject(), "", said) == ()
    assert scheduler.calls[0] == "hold changes driver"
    assert scheduler.calls[-1] == "release"


@pytest.mark.parametrize("worst", [Disruption.NONE, Disruption.RESTART])
def test_a_failed_change_whose_rollback_disturbs_nothing_is_followed_by_its_release(
    worst: Disruption,
) -> None:
    """The change took itself back, or nothing of it came to the node."""
    scheduler = FakeScheduler()
    found = maintenance(Kubernetes=scheduler)
    found.begin(subject(), said, never)
    found.end(subject(), "driver failed", said)
    if worst is Disruption.RESTART:
        found.begin(subject(worst), said, never)
    assert found.end(subject(worst), "", said) == ()
    wanted = ["note failed", "note validating", "refresh", "release"]
    assert scheduler.calls[-4:] == wanted


def test_a_rollback_that_cannot_be_drained_leaves_the_node_held() -> None:
    scheduler = FakeScheduler()
    found = maintenance(Kubernetes=scheduler)
    found.begin(subject(), said, never)
    found.end(subject(), "driver failed", said)
    scheduler.fails["drain"] = NotDrainedError("pod a/b stays")
    with pytest.raises(NotDrainedError, match="n1 stays out of service"):
        found.begin(subject(), said, never)
    assert scheduler.calls[-1] == "note failed"


def test_gpus_of_a_node_whose_driver_was_removed_are_not_waited_for() -> None:
    fails: dict[str, Exception] = {"refresh": NotRefreshedError("offers no GPU")}
    scheduler = FakeScheduler(fails=fails)
    found = maintenance(Kubernetes=scheduler)
    before = subject()
    found.begin(before, said, never)
    gpu = PciGpu("0000:1b:00.0", "2330", "030200", None)
    after = replace(before, facts=replace(before.facts, pci=(gpu,)))
    assert found.end(after, "", said) == ()
    assert scheduler.calls[-2:] == ["note validating", "release"]
    scheduler.current = LEFT
    assert found.end(after, "", said) == ()
    assert scheduler.calls[-2:] == ["note validating", "release"]


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ("kubelet", "--kubeconfig FILE"),
        ("k3s", "--kubeconfig FILE"),
        ("slurmd", "gpustate_slurm_host"),
    ],
)
def test_without_access_the_change_is_refused_with_the_way_to_give_it(
    agent: str, words: str
) -> None:
    one = subject(Disruption.DRAIN, agent)
    with pytest.raises(RefusedError) as caught:
        maintenance().begin(one, said, never)
    text = str(caught.value)
    assert f"{agent} runs on this node and the change may cost drain (driver)" in text
    assert words in text
    assert "--ignore-scheduler" in text
    assert maintenance().preview(one) == Preview((f"apply would refuse: {text}",), refused=True)
    maintenance().begin(subject(Disruption.RESTART, agent), said, never)


STOPPED = NodeFacts(joined=("kubelet",))


def stopped(facts: NodeFacts = STOPPED) -> Subject:
    """A node whose kubelet does not run."""
    return Subject(InventoryNode("gpu1"), facts, Disruption.RESET, lambda: ("driver",))


@pytest.mark.parametrize("facts", [STOPPED, NodeFacts()])
def test_a_member_whose_kubelet_does_not_run_is_held_too(facts: NodeFacts) -> None:
    """Its pods run on without the kubelet."""
    scheduler = FakeScheduler()
    found = maintenance(Kubernetes=scheduler)
    assert found.preview(stopped(facts)).notes[0].startswith(CORDONED)
    found.begin(stopped(facts), said, never)
    assert scheduler.calls[:2] == ["hold changes driver", "drain gpu"]


def test_a_stopped_kubelet_of_a_cluster_without_access_is_a_refusal() -> None:
    with pytest.raises(RefusedError) as caught:
        maintenance().begin(stopped(), said, never)
    assert "kubelet is enabled on this node and the change may cost reset (driver), " in str(
        caught.value
    )
    assert maintenance().preview(stopped()).refused
    maintenance().begin(stopped(NodeFacts()), said, never)


def test_a_node_that_no_scheduler_knows_is_changed_where_none_runs_there() -> None:
    scheduler = FakeScheduler(unknown=NotMemberError("no Node is this machine"))
    found = maintenance(Kubernetes=scheduler, Slurm=scheduler)
    assert found.preview(stopped()) == Preview()
    found.begin(stopped(), said, never)
    assert found.end(stopped(), "", said) == ()
    assert scheduler.calls == []
    with pytest.raises(NotMemberError):
        found.begin(subject(), said, never)


@pytest.mark.parametrize("error", [ClusterError("does not answer"), RefusedError("two may be it")])
def test_who_cannot_tell_whether_a_node_is_a_member_keeps_it_from_being_changed(
    error: Exception,
) -> None:
    found = maintenance(Kubernetes=FakeScheduler(unknown=error))
    with pytest.raises(RefusedError, match=str(error)):
        found.begin(stopped(), said, never)
    assert found.preview(stopped()).refused


@pytest.mark.parametrize(
    ("error", "kind"),
    [(ClusterError("away", fix="wait"), RefusedError), (LockHeld("away; wait"), LockHeld)],
)
def test_a_cluster_that_cannot_be_entered_is_a_refusal(
    error: GpustateError, kind: type[Exception]
) -> None:
    scheduler = FakeScheduler(fails={"enter": error})
    with pytest.raises(kind, match=r"^away; wait$"):
        maintenance(Kubernetes=scheduler).begin(subject(), said, never)
    assert scheduler.calls == []


def test_a_cluster_that_is_lost_during_the_run_is_a_failure() -> None:
    """Later nodes of a rollout would be refused one by one otherwise."""
    scheduler = FakeScheduler()
    found = maintenance(Kubernetes=scheduler)
    found.begin(subject(), said, never)
    scheduler.unknown = ClusterError("away")
    with pytest.raises(ClusterError, match="away"):
        found.begin(subject(), said, never)


def test_a_kubeconfig_that_cannot_be_used_is_a_refusal() -> None:
    def access(node: InventoryNode, kind: str) -> Scheduler | None:
        raise UsageError("no such certificate")

    found = ScheduledMaintenance(access, "r2", "ann@ops1", DrainPolicy())
    with pytest.raises(RefusedError, match="no such certificate"):
        found.begin(subject(), said, never)


def test_a_node_of_two_schedulers_is_held_in_both_and_released_in_turn() -> None:
    first, second = FakeScheduler(), FakeScheduler("Slurm at test")
    found = maintenance(Kubernetes=first, Slurm=second)
    both = subject(Disruption.REBOOT, "kubelet", "slurmd")
    assert kinds_of(both.facts) == ("Kubernetes", "Slurm")
    found.begin(both, said, never)
    found.end(both, "", said)
    for scheduler in (first, second):
        assert scheduler.calls[0].startswith("hold")
        assert scheduler.calls[-1] == "release"


def test_the_second_scheduler_s_refusal_releases_the_first() -> None:
    first = FakeScheduler()
    second = FakeScheduler(fails={"hold": HeldElsewhereError("drained by bob")})
    found = maintenance(Kubernetes=first, Slurm=second)
    with pytest.raises(HeldElsewhereError, match="drained by bob"):
        found.begin(subject(Disruption.REBOOT, "kubelet", "slurmd"), said, never)
    assert first.calls == ["hold changes driver", "release"]


LEFT = Member("n1", True, False, hold=Hold("r1", "bob@ops2", "driver", "changing", ""))


def test_what_an_earlier_run_left_held_is_refreshed_and_released_when_the_node_is_right() -> None:
    scheduler = FakeScheduler(current=LEFT)
    assert maintenance(Kubernetes=scheduler).end(subject(Disruption.NONE), "", said) == ()
    assert scheduler.calls == ["note validating", "refresh", "release"]


def test_what_an_earlier_run_left_held_is_released_before_the_kubelet_has_started() -> None:
    scheduler = FakeScheduler(current=LEFT)
    one = Subject(InventoryNode("gpu1"), NodeFacts(), Disruption.NONE, lambda: ())
    assert maintenance(Kubernetes=scheduler).end(one, "", said) == ()
    assert scheduler.calls[-1] == "release"


def test_a_scheduler_that_does_not_answer_holds_up_one_node_that_may_not_need_it() -> None:
    asked: list[str] = []

    class Away(FakeScheduler):
        def member(self, facts: NodeFacts, name: str) -> Member:
            asked.append(name)
            raise ClusterError("does not answer")

    found = maintenance(Kubernetes=Away())
    for name in ("gpu1", "gpu2"):
        one = Subject(InventoryNode(name), NodeFacts(), Disruption.NONE, lambda: ())
        assert found.end(one, "", said) == ()
    assert asked == ["gpu1"]
    assert found.end(subject(Disruption.NONE), "", said) == ("does not answer",)


def test_what_a_living_run_holds_is_left_to_it() -> None:
    scheduler = FakeScheduler(current=LEFT, fails={"enter": LockHeld("bob@ops2 run r1 is at work")})
    (note,) = maintenance(Kubernetes=scheduler).end(subject(Disruption.NONE), "", said)
    assert note == "Kubernetes at test: n1 stays out of service: bob@ops2 run r1 is at work"
    assert scheduler.calls == []


def test_a_run_that_ends_before_it_takes_over_what_a_dead_one_holds_says_so() -> None:
    scheduler = FakeScheduler(current=LEFT, fails={"enter": NotDrainedError("interrupted")})
    with pytest.raises(
        NotDrainedError, match="interrupted; Kubernetes at test: n1 stays out of service"
    ):
        maintenance(Kubernetes=scheduler).begin(subject(Disruption.RESET), said, never)
    assert scheduler.calls == []


def test_what_someone_else_cordoned_is_not_refreshed_with_every_apply() -> None:
    assert LEFT.hold is not None
    left = replace(LEFT, hold=replace(LEFT.hold, phase="left"), foreign=("cordoned by bob",))
    scheduler = FakeScheduler(current=left, left="cordoned by bob")
    (note,) = maintenance(Kubernetes=scheduler).end(subject(Disruption.NONE), "", said)
    assert "cordoned by bob" in note
    assert scheduler.calls == ["release"]


@pytest.mark.parametrize("state", [(True, False), (False, False), (False, True), (True, True)])
def test_what_the_scheduler_itself_keeps_out_of_service_is_told(state: tuple[bool, bool]) -> None:
    """Its own reason has replaced that of the run that died."""
    scheduler = FakeScheduler("Slurm at test", Member("n1", *state, why="too few GPUs; resume it"))
    notes = maintenance(Slurm=scheduler).end(subject(Disruption.NONE, "slurmd"), "", said)
    told = ("Slurm at test: n1 stays out of service: too few GPUs; resume it",)
    assert notes == (() if state == (True, True) else told)
    assert scheduler.calls == []


def test_what_stays_out_of_service_after_a_change_is_told_once() -> None:
    scheduler = FakeScheduler("Slurm at test", left="inval: 7 < 8; resume it")
    found = maintenance(Slurm=scheduler)
    found.begin(subject(Disruption.RESET, "slurmd"), said, never)
    scheduler.current = Member("n1", ready=True, schedulable=False, why="too few GPUs")
    notes = found.end(subject(Disruption.RESET, "slurmd"), "", said)
    assert notes == ("Slurm at test: n1 stays out of service: inval: 7 < 8; resume it",)


def test_what_an_earlier_run_left_held_stays_so_where_it_offers_no_gpus() -> None:
    fails: dict[str, Exception] = {"refresh": NotRefreshedError("offers no GPU")}
    scheduler = FakeScheduler(current=LEFT, fails=fails)
    with pytest.raises(NotRefreshedError, match="offers no GPU"):
        maintenance(Kubernetes=scheduler).end(subject(Disruption.NONE), "", said)
    assert scheduler.calls == ["note validating", "refresh", "note failed"]


def test_a_node_that_someone_returned_to_service_is_not_changed() -> None:
    scheduler = FakeScheduler(uncordoned=True)
    with pytest.raises(HeldElsewhereError, match="n1 was returned to service by someone else"):
        maintenance(Kubernetes=scheduler).begin(subject(), said, never)
    assert scheduler.calls[-1] == "release"


def test_a_return_to_service_during_the_change_is_told() -> None:
    scheduler = FakeScheduler()
    found = maintenance(Kubernetes=scheduler)
    found.begin(subject(), said, never)
    scheduler.uncordoned = True
    (note,) = found.end(subject(), "", said)
    assert note == (
        "Kubernetes at test: n1 was returned to service by someone else during the change; "
        "restart workloads that have begun on it since"
    )
    assert scheduler.calls[-1] == "release"


@pytest.mark.parametrize("call", ["refresh", "note"])
def test_a_scheduler_that_is_away_when_a_node_is_ready_is_no_fault_of_the_node(call: str) -> None:
    scheduler = FakeScheduler()
    found = maintenance(Kubernetes=scheduler)
    found.begin(subject(), said, never)
    scheduler.fails = {call: ClusterError("does not answer")}
    with pytest.raises(UnreleasedError, match="does not answer"):
        found.end(subject(), "", said)


def test_a_node_that_cannot_be_released_is_a_failure() -> None:
    scheduler = FakeScheduler(fails={"release": ClusterError("does not answer")})
    found = maintenance(Kubernetes=scheduler)
    found.begin(subject(), said, never)
    with pytest.raises(
        UnreleasedError,
        match=r"n1 stays out of service: it was not released: does not answer; run gpustate",
    ):
        found.end(subject(), "", said)


WRONG = NotRefreshedError("Slurm at test: node n1: Kill task failed; resume it")


def test_a_node_that_its_scheduler_keeps_out_of_service_since_the_hold_has_failed() -> None:
    scheduler = FakeScheduler("Slurm at test", fails={"release": WRONG})
    found = maintenance(Slurm=scheduler)
    found.begin(subject(Disruption.RESET, "slurmd"), said, never)
    with pytest.raises(ClusterError) as caught:
        found.end(subject(Disruption.RESET, "slurmd"), "", said)
    assert str(caught.value) == f"{WRONG}; it stays out of service"
    assert scheduler.calls[-2:] == ["release", "note failed"]


def test_what_an_earlier_run_left_held_and_its_scheduler_keeps_out_of_service_has_failed() -> None:
    scheduler = FakeScheduler("Slurm at test", LEFT, fails={"release": WRONG})
    with pytest.raises(NotRefreshedError, match="Kill task failed; resume it; it stays out of"):
        maintenance(Slurm=scheduler).end(subject(Disruption.NONE, "slurmd"), "", said)
    assert scheduler.calls[-2:] == ["release", "note failed"]


def test_a_release_that_leaves_the_node_out_of_service_says_why() -> None:
    scheduler = FakeScheduler(left="cordoned by kubectl-cordon")
    found = maintenance(Kubernetes=scheduler)
    found.begin(subject(), said, never)
    assert found.end(subject(), "", said) == (
        "Kubernetes at test: n1 stays out of service: cordoned by kubectl-cordon",
    )


def test_a_plan_names_what_leaves_and_what_cannot() -> None:
    scheduler = FakeScheduler(
        found=(
            Workload("a/train", True),
            Workload("a/bare", True, lost=True),
            Workload("a/alone", True, "no controller"),
        )
    )
    preview = maintenance(Kubernetes=scheduler).preview(subject())
    assert preview == Preview(
        (
            CORDONED,
            "apply would refuse: Kubernetes at test: n1 cannot be drained: a/alone: no controller",
        ),
        refused=True,
        workloads=(
            ("a/train", "is evicted"),
            ("a/bare", "is deleted for good: no controller creates it again"),
            RESTARTED,
        ),
    )
    foreign = FakeScheduler(current=Member("n1", True, False, foreign=("cordoned by bob",)))
    preview = maintenance(Kubernetes=foreign).preview(subject())
    assert preview.refused
    assert preview.notes[0].startswith("apply would refuse: ")
    assert "cordoned by bob" in preview.notes[0]
    assert foreign.calls == []


@pytest.mark.parametrize(
    ("limit_s", "words"), [(0.0, "without a time limit"), (60.0, "60 s at most")]
)
def test_a_plan_says_what_is_waited_for_and_how_long(limit_s: float, words: str) -> None:
    scheduler = FakeScheduler()
    scheduler.found = (
        Workload("a/job", gpu=True, problem="a budget", waited=True),
        Workload("a/bare", gpu=True, waited=True, lost=True),
        Workload("a/train", gpu=True),
    )
    policy = DrainPolicy("app=job", limit_s)
    plan = ScheduledMaintenance(
        lambda node, kind: scheduler if kind == "Kubernetes" else None, "r2", "ann@ops1", policy
    )
    preview = plan.preview(subject())
    stuck = "; otherwise it cannot leave: a budget" if limit_s else ""
    deleted = (
        "; otherwise it is deleted for good: no controller creates it again" if limit_s else ""
    )
    assert preview.workloads == (
        ("a/job", f"is waited for, {words}{stuck}"),
        ("a/bare", f"is waited for, {words}{deleted}"),
        ("a/train", "is evicted"),
        RESTARTED,
    )
    assert not preview.refused


def test_a_plan_says_of_each_job_what_becomes_of_it_at_the_limit() -> None:
    scheduler = FakeScheduler(
        "Slurm at test",
        found=(
            Workload("job 1 of ann", True, waited=True, limit="requeued after 60 s"),
            Workload("job 2 of bob", True, "Requeue=0", waited=True, limit="60 s at most"),
        ),
    )
    preview = maintenance(Slurm=scheduler).preview(subject(Disruption.RESET, "slurmd"))
    assert preview.workloads == (
        ("job 1 of ann", "is waited for, requeued after 60 s"),
        ("job 2 of bob", "is waited for, 60 s at most; otherwise it cannot leave: Requeue=0"),
    )
    assert not preview.refused, "it may complete"
