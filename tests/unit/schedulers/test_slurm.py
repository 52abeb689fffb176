"""Slurm's nodes are read, held, drained and released by commands, never over someone else's reason."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gpustate.core.drain import DrainPolicy
from gpustate.core.facts import NodeFacts
from gpustate.errors import ClusterError, ConnectionFailed, RefusedError
from gpustate.schedulers.base import (
    HeldElsewhereError,
    NotDrainedError,
    NotRefreshedError,
    Scope,
    Why,
)
from gpustate.schedulers.slurm import Slurm
from gpustate.schedulers.slurm.rows import SlurmNode, matching, read_nodes

WHY = Why("20261124-1", "ann@ops1", 'driver "580"')
#: As Debian's 22.05.8 and 24.11.5 print the format of the module.
ROWS = """\
gpu1|10.217.0.11|gpu1|drained*|root|2026-11-23T10:00:00|gpustate:r1: changes driver (held) by ann@ops1
gpu1|10.217.0.11|gpu1|drained*|root|2026-11-23T10:00:00|gpustate:r1: changes driver (held) by ann@ops1
gpu2|10.217.0.12|gpu2|mixed|Unknown|Unknown|none
gpu3|10.217.0.13|gpu3|inval|slurm|2026-11-23T10:00:00|gres/gpu count reported lower than configured (7 < 8)
gpu4|gpu4.example.net|gpu4|draining|bob|2026-11-23T10:00:00|disk | swap
"""


def test_rows_are_read_once_a_node() -> None:
    first, second, third, fourth = read_nodes(ROWS)
    assert first.is_own
    assert first.drained_or_down
    assert not first.answers
    assert (second.reason, second.drained_or_down, second.answers) == ("", False, True)
    assert third.by_slurm
    assert third.drained_or_down
    assert fourth.reason == "disk | swap"
    assert not fourth.is_own


def test_rows_of_26_05_are_read() -> None:
    text = (Path(__file__).parents[2] / "data/slurm/sinfo-26.05.5.txt").read_text()
    seen = {}
    for section in text.split("## ")[1:]:
        title, _, rows = section.partition("\n")
        seen[title] = {one.name: one for one in read_nodes(rows)}
    invalid, idle = seen["registered; gpu2 has 7 of 8"].values()
    assert (invalid.host, invalid.address, invalid.by_slurm) == ("head", "10.9.9.1", True)
    assert (invalid.drained_or_down, idle.drained_or_down, idle.reason) == (True, False, "")
    states = [
        (title, one.drained_or_down, one.is_own, one.answers)
        for title, nodes in seen.items()
        for one in [nodes["rack7-01"]]
    ]
    assert states == [
        ("registered; gpu2 has 7 of 8", False, False, True),
        ("a job", False, False, True),
        ("draining", True, True, True),
        ("drained", True, True, True),
        ("undrained", False, False, False),
        ("no reason", False, False, False),
        ("again", True, False, False),
        ("resumed", False, False, False),
        ("slurmd gone", True, True, False),
        ("undrained while down", True, True, False),
        ("back", False, False, True),
        ("reservation", False, False, True),
    ]


def test_what_slurm_adds_to_a_reason_is_not_part_of_it() -> None:
    reason = "gpustate:r1: CHG-7: driver (changing) by ann@ops1 : Not responding"
    member = slurm(Controller("drained*", reason)).member(FACTS, "gpu1")
    assert member.hold is not None
    assert (member.hold.run, member.hold.text) == ("r1", "CHG-7: driver")
    assert (member.hold.phase, member.hold.person) == ("changing", "ann@ops1")


def test_a_node_that_registered_with_too_few_gpus_is_explained() -> None:
    controller = Controller("inval", "gpustate:r: x (changing) by ann@ops1")
    scheduler = slurm(controller)
    with pytest.raises(NotRefreshedError, match=r"fewer GPUs than slurm\.conf .* State=RESUME"):
        scheduler.release(scheduler.member(FACTS, "gpu1"))
    assert not [one for one in controller.commands if one.startswith("scontrol update")]


@dataclass
class Controller:
    """slurmctld, as far as three commands show it. ``jobs``: those on gpu1."""

    state: str = "idle"
    reason: str = ""
    user: str = "root"
    jobs: list[str] = field(default_factory=list)
    requeues: bool = True
    no_requeue: tuple[str, ...] = ()
    interactive: tuple[str, ...] = ()
    completing: tuple[str, ...] = ()
    commands: list[str] = field(default_factory=list)
    overwritten_by: str = ""
    undrain_to: str = "idle"
    resume_to: str = "idle"
    keeps_reason: bool = False
    booted: str = "2026-11-24T10:00:00"

    def _job(self, job: str) -> str:
        state = "COMPLETING" if job in self.completing else "RUNNING"
        batch, requeue = job not in self.interactive, job not in self.no_requeue
        return f"{job:40}|{state:20}|{'ann':64}|{batch:<2}|{requeue:<2}|{'gres/gpu:2':200}\n"

    def run(self, command: str) -> tuple[int, str]:
        words = shlex.split(command)
        utc = words[:2] == ["env", "TZ=UTC0"]
        if utc:
            words = words[3:]
        self.commands.append(command)
        if words[0] == "sinfo" and words[-1] == "%N|%G":
            return 0, "gpu1|gpu:h100:8(S:0-1)\ncpu1|(null)\n"
        if words[:4] == ["scontrol", "-o", "show", "node"]:
            return (
                0,
                f"NodeName={words[4]} Arch=x86_64 BootTime={self.booted} SlurmdStartTime=None\n",
            )
        if words[0] == "sinfo":
            since = "2026-11-23T10:00:00Z" if utc else "2026-11-23T05:00:00"
            row = ("gpu1", "10.0.0.1", "gpu1", self.state, self.user, since, self.reason or "none")
            return 0, f"{'|'.join(row)}\n"
        if words[0] == "squeue":
            return 0, "".join(map(self._job, self.jobs))
        if words[:2] == ["scontrol", "requeue"]:
            found = [job for job in self.jobs if job.partition("+")[0] == words[2]]
            if not found:
                return 1, f"Invalid job id specified for job {words[2]}"
            if self.requeues:
                self.jobs = [job for job in self.jobs if job not in found]
                return 0, ""
            return 1, "Requested operation is presently disabled"
        values = dict(word.split("=", 1) for word in words[2:])
        if values.get("State") == "DRAIN":
            self.state = "draining" if self.jobs else "drained"
        if values.get("State") in ("UNDRAIN", "RESUME"):
            self.state = self.undrain_to if values["State"] == "UNDRAIN" else self.resume_to
        if values.get("Reason") or not self.keeps_reason:
            self.reason = values.get("Reason", self.reason)
        if self.overwritten_by:
            self.reason, self.user = self.overwritten_by, "bob"
        return 0, ""


class Clock:
    def __init__(self, controller: Controller, ends_at: float = 0.0) -> None:
        self.now, self.controller, self.ends_at = 0.0, controller, ends_at

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.ends_at and self.now >= self.ends_at:
            self.controller.jobs = []
            state = self.controller.state.replace("draining", "drained")
            self.controller.state = state.replace("down*", "idle")

    def __call__(self) -> float:
        return self.now


def slurm(controller: Controller, ends_at: float = 0.0) -> Slurm:
    clock = Clock(controller, ends_at)
    return Slurm(controller.run, "head", sleep=clock.sleep, clock=clock)


FACTS = NodeFacts(hostname="gpu1.example.net")


def drain(scheduler: Slurm, timeout_s: float = 0.0) -> list[str]:
    told: list[str] = []
    member = scheduler.member(FACTS, "gpu1")
    scheduler.drain(
        member, Scope.GPU, DrainPolicy(jobs_timeout_s=timeout_s), told.append, lambda: False
    )
    return told


def test_times_are_in_utc_whatever_the_host_has() -> None:
    controller = Controller("drained", "disk swap", "bob")
    (foreign,) = slurm(controller).member(FACTS, "gpu1").foreign
    assert foreign == "drained by bob since 2026-11-23T10:00:00Z: disk swap"
    asked = [one for one in controller.commands if "%H" in one]
    assert all(one.startswith("env TZ=UTC0 SLURM_TIME_FORMAT=%Y-%m-%dT%H:%M:%SZ ") for one in asked)


def test_a_hold_and_its_release() -> None:
    controller = Controller()
    scheduler = slurm(controller)
    member = scheduler.hold(scheduler.member(FACTS, "gpu1"), WHY)
    assert controller.reason == 'gpustate:20261124-1: driver "580" (held) by ann@ops1'
    assert member.hold is not None
    assert (member.hold.run, member.hold.person, member.hold.phase) == (
        "20261124-1",
        "ann@ops1",
        "held",
    )
    assert scheduler.note(member, "changing").hold.phase == "changing"  # type: ignore[union-attr]
    assert scheduler.release(member) == ""
    assert (controller.state, controller.reason) == ("idle", "")


def test_a_foreign_drain_is_neither_taken_nor_lifted() -> None:
    controller = Controller("draining", "disk swap", "bob")
    scheduler = slurm(controller)
    member = scheduler.member(FACTS, "gpu1")
    assert member.foreign == ("draining by bob since 2026-11-23T10:00:00Z: disk swap",)
    with pytest.raises(HeldElsewhereError, match=r"by bob since .*: disk swap"):
        scheduler.hold(member, WHY)
    words = "disk swap; once that is over: scontrol update NodeName=gpu1 State=RESUME"
    assert scheduler.release(member).endswith(words)
    assert not [one for one in controller.commands if one.startswith("scontrol update")]


def test_a_drain_by_slurm_itself_keeps_its_reason_and_is_explained() -> None:
    words = TOO_FEW
    controller = Controller("drained", words, "slurm")
    scheduler = slurm(controller)
    member = scheduler.hold(scheduler.member(FACTS, "gpu1"), WHY)
    assert member.foreign == ()
    assert member.why.startswith("drained by slurm since ")
    assert f": {words}; once its cause is gone: " in member.why
    assert member.why.endswith("scontrol update NodeName=gpu1 State=RESUME")
    assert controller.reason == words
    assert "scontrol update NodeName=gpu1 State=RESUME" in scheduler.release(member)
    assert controller.state == "drained"


TOO_FEW = "gres/gpu count reported lower than configured (7 < 8)"


@pytest.mark.parametrize("reason", [TOO_FEW, ""])
def test_a_drain_by_slurm_itself_during_the_hold_ends_once_slurmd_has_registered(
    reason: str,
) -> None:
    controller = Controller()
    scheduler = slurm(controller)
    member = scheduler.hold(scheduler.member(FACTS, "gpu1"), WHY)
    controller.state, controller.reason, controller.keeps_reason = "drained", reason, True
    assert scheduler.release(member) == ""
    assert (controller.state, controller.reason) == ("idle", "none" if reason else "")


def test_a_drain_by_slurm_itself_during_the_hold_ends_with_the_rollback() -> None:
    controller = Controller()
    scheduler = slurm(controller)
    member = scheduler.hold(scheduler.member(FACTS, "gpu1"), WHY)
    controller.state, controller.reason = "inval", TOO_FEW
    with pytest.raises(NotRefreshedError, match=r"node gpu1: slurmd registered with fewer GPUs"):
        scheduler.release(member)
    member = scheduler.hold(scheduler.member(FACTS, "gpu1"), WHY)
    assert member.hold is None
    controller.state = "drained"
    assert scheduler.release(member) == ""
    assert controller.state == "idle"


def test_a_drain_during_the_hold_that_a_registration_does_not_end_is_a_failure() -> None:
    controller = Controller()
    scheduler = slurm(controller)
    member = scheduler.hold(scheduler.member(FACTS, "gpu1"), WHY)
    controller.state, controller.reason = "drained", "Kill task failed"
    words = "drained by root since .*: Kill task failed; once its cause is gone: scontrol update"
    with pytest.raises(NotRefreshedError, match=f"Slurm at head: node gpu1: {words}"):
        scheduler.release(member)
    assert controller.state.startswith("drained")


def test_a_node_that_was_down_before_the_hold_stays_so_without_a_failure() -> None:
    scheduler = slurm(Controller("down*", "Not responding"))
    member = scheduler.hold(scheduler.member(FACTS, "gpu1"), WHY)
    assert "Not responding; once its cause is gone: " in scheduler.release(member)


def test_a_drain_over_an_emptied_reason_is_slurm_s_own() -> None:
    controller = Controller("drained", "none", "root")
    scheduler = slurm(controller)
    member = scheduler.hold(scheduler.member(FACTS, "gpu1"), WHY)
    assert (member.foreign, member.hold) == ((), None)
    assert member.why.startswith("drained: Slurm itself did, over an emptied reason;")
    assert scheduler.release(member) == member.why
    assert controller.state == "drained"
    (unknown,) = read_nodes("gpu1|10.0.0.1|gpu1|drained|Unknown|Unknown|none")
    assert not unknown.by_slurm, "someone drained it without a reason"


@pytest.mark.parametrize(
    ("state", "reason", "why"),
    [
        ("idle", "", ""),
        ("drained", "gpustate:r: x (held) by ann@ops1", ""),
        ("drained", "disk swap", ""),
        ("inval", "gres/gpu count 7 < 8", "inval by root since .*: gres/gpu count 7 < 8; slurmd registered with fewer GPUs .*"),
        ("down*", "Not responding", r"down\* by root since .*: Not responding; slurmd has not registered .*"),
        ("idle*", "", r"it is idle\*: slurmd has not registered since; look there: journalctl -u slurmd"),
    ],
)  # fmt: skip
def test_what_slurm_itself_has_against_a_node_is_told(state: str, reason: str, why: str) -> None:
    (member,) = slurm(Controller(state, reason)).members()
    assert re.fullmatch(why, member.why)


def test_a_hold_whose_reason_slurm_has_replaced_is_told_as_slurm_s_own() -> None:
    controller = Controller()
    scheduler = slurm(controller)
    scheduler.hold(scheduler.member(FACTS, "gpu1"), WHY)
    controller.state = "inval"
    controller.reason = "gres/gpu count reported lower than configured (7 < 8)"
    member = scheduler.member(FACTS, "gpu1")
    assert (member.hold, member.available) == (None, False)
    assert "(7 < 8); slurmd registered with fewer GPUs" in member.why
    assert member.why.endswith("scontrol update NodeName=gpu1 State=RESUME")


def test_someone_who_drains_at_the_same_time_wins() -> None:
    controller = Controller(overwritten_by="disk swap")
    scheduler = slurm(controller)
    with pytest.raises(HeldElsewhereError, match=r"at the same time.*disk swap"):
        scheduler.hold(scheduler.member(FACTS, "gpu1"), WHY)


def test_a_node_that_booted_during_the_hold_is_resumed() -> None:
    controller = Controller("down", "gpustate:r: x (changing) by ann@ops1")
    scheduler = slurm(controller)
    assert scheduler.release(scheduler.member(FACTS, "gpu1")) == ""
    assert any("State=RESUME" in one for one in controller.commands)


def test_a_reason_that_a_dead_run_left_is_emptied() -> None:
    controller = Controller("idle", "gpustate:r: x (validating) by ann@ops1")
    scheduler = slurm(controller)
    assert scheduler.release(scheduler.member(FACTS, "gpu1")) == ""
    assert (controller.state, controller.reason) == ("idle", "")
    assert not any("State=" in one for one in controller.commands)


@pytest.mark.parametrize("state", ["maint", "mixed$", "allocated$"])
def test_a_foreign_reservation_for_maintenance_is_left_alone(state: str) -> None:
    scheduler = slurm(Controller(state))
    member = scheduler.member(FACTS, "gpu1")
    assert (member.foreign, member.available) == (("reserved for maintenance",), False)
    assert member.undo == "scontrol show reservation"
    with pytest.raises(HeldElsewhereError, match="reserved for maintenance"):
        scheduler.hold(member, WHY)


def test_jobs_are_named_in_the_order_of_their_numbers() -> None:
    controller = Controller(jobs=["10", "9_2", "9_1", "7+1", "7+0"])
    scheduler = slurm(controller)
    member = scheduler.member(FACTS, "gpu1")
    found = scheduler.workloads(member, Scope.GPU, DrainPolicy())
    names = [one.name.removesuffix(" of ann") for one in found]
    assert names == ["job 7+0", "job 7+1", "job 9_1", "job 9_2", "job 10"]


def test_nodes_that_runs_hold_are_known_by_every_name() -> None:
    reason = "gpustate:r1: changes driver (failed) by ann@ops1"
    assert slurm(Controller("drained", reason)).nodes.held() >= {"gpu1"}
    assert slurm(Controller("drained", "disk")).nodes.held() == frozenset()


def test_a_node_that_is_drained_and_reserved_by_others_shows_both() -> None:
    controller = Controller("drained$")
    controller.reason, controller.user = "disk swap", "bob"
    (foreign,) = slurm(controller).member(FACTS, "gpu1").foreign
    assert foreign == (
        "reserved for maintenance; drained by bob since 2026-11-23T10:00:00Z: disk swap"
    )


def test_what_slurm_adds_to_an_emptied_reason_is_its_own() -> None:
    (node,) = read_nodes("gpu1|10.0.0.1|gpu1|down*|slurm|2026-11-24T10:00:00|none : Not responding")
    assert (node.reason, node.by_slurm) == ("Not responding", True)


def test_an_invalid_node_whose_older_reason_was_emptied_is_slurm_s_own() -> None:
    scheduler = slurm(Controller("inval", "none", "root"))
    member = scheduler.member(FACTS, "gpu1")
    assert (member.foreign, member.schedulable) == ((), False)
    assert "State=RESUME" in scheduler.release(scheduler.hold(member, WHY))


def test_a_controller_that_has_answered_is_waited_for() -> None:
    controller = Controller()
    clock = Clock(controller)

    def run(command: str) -> tuple[int, str]:
        if 0 <= clock.now < 10:
            raise ConnectionFailed("head: connection refused")
        if 10 <= clock.now < 20:
            return 1, "slurm_load_node: Unable to contact slurm controller (connect failure)\n"
        return controller.run(command)

    scheduler = Slurm(run, "head", sleep=clock.sleep, clock=clock)
    clock.now = -1.0
    scheduler.members()
    clock.now = 0.0
    assert [one.name for one in scheduler.members(fresh=True)] == ["gpu1"]
    assert clock.now >= 20


@pytest.mark.parametrize("reached", [False, True])
def test_a_controller_that_has_never_answered_is_tried_once_for_all_nodes(reached: bool) -> None:
    tried: list[str] = []

    def run(command: str) -> tuple[int, str]:
        tried.append(command)
        if not reached:
            raise ConnectionFailed("connection to head:22 timed out after 10 s")
        return 1, "slurm_load_node: Unable to contact slurm controller (connect failure)\n"

    clock = Clock(Controller())
    scheduler = Slurm(run, "head", sleep=clock.sleep, clock=clock)
    words = "Unable to contact slurm .*; start slurmctld" if reached else "connection to head:22"
    for _ in range(3):
        with pytest.raises(ClusterError, match=f"Slurm at head: .*{words}"):
            scheduler.members()
    assert len(tried) == 1
    assert clock.now == 0
    clock.now = 61.0
    with pytest.raises(ClusterError):
        scheduler.members()
    assert len(tried) == 2, "a run of hours tries again"


def test_a_node_that_booted_has_to_register_again() -> None:
    controller = Controller()
    scheduler = slurm(controller)
    before = replace(FACTS, boot_id="one")
    member = scheduler.hold(scheduler.member(before, "gpu1"), WHY)
    scheduler.refresh(member, before, print, lambda: False)
    after = replace(FACTS, boot_id="two")
    with pytest.raises(NotRefreshedError, match="slurmd has not registered since the boot"):
        scheduler.refresh(member, after, print, lambda: False)
    controller.booted = "2026-11-24T10:05:00"
    scheduler.refresh(member, after, print, lambda: False)


@pytest.mark.parametrize(
    ("state", "words"), [("inval", "fewer GPUs than slurm.conf"), ("drained*", "not registered")]
)
def test_a_change_after_which_slurmd_does_not_register_as_before_has_failed(
    state: str, words: str
) -> None:
    controller = Controller()
    scheduler = slurm(controller)
    member = scheduler.hold(scheduler.member(FACTS, "gpu1"), WHY)
    scheduler.refresh(member, FACTS, print, lambda: False)
    controller.state = state
    with pytest.raises(NotRefreshedError, match=words):
        scheduler.refresh(member, FACTS, print, lambda: False)
    # What did not answer before is not the change's fault.
    scheduler.refresh(replace(member, ready=False), FACTS, print, lambda: False)
    scheduler.refresh(replace(member, hold=None), FACTS, print, lambda: False)


def test_nodes_without_gpus_in_slurm_conf_do_not_count() -> None:
    rows = "gpu1|10.0.0.1|gpu1|idle|||none\ncpu1|10.0.0.2|cpu1|down*|||none\n"
    gres = "gpu1|gpu:h100:8(S:0-1)\ncpu1|(null)\n"
    found = Slurm(lambda command: (0, gres if "%G" in command else rows), "head").members()
    assert [(one.name, one.counts) for one in found] == [("gpu1", True), ("cpu1", False)]


def test_what_another_run_took_over_is_neither_changed_nor_released() -> None:
    controller = Controller()
    scheduler = slurm(controller)
    member = scheduler.hold(scheduler.member(FACTS, "gpu1"), WHY)
    scheduler.hold(member, Why("other", "bob@ops2", "x"))
    with pytest.raises(HeldElsewhereError, match="run other of bob@ops2 has taken it over"):
        scheduler.note(member, "changing")
    assert scheduler.release(member) == "run other of bob@ops2 has taken it over"
    assert controller.state == "drained"


def test_jobs_are_waited_for() -> None:
    controller = Controller(jobs=["17"])
    assert drain(slurm(controller, ends_at=60.0)) == ["waiting for job 17 of ann"]
    assert not [one for one in controller.commands if "requeue" in one]


def test_jobs_that_are_late_are_requeued() -> None:
    controller = Controller(jobs=["17"])
    assert drain(slurm(controller), timeout_s=60.0)[-1] == "requeueing job 17 of ann"
    assert controller.jobs == []


def requeued(controller: Controller) -> list[str]:
    return [one for one in controller.commands if one.startswith("scontrol requeue")]


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("no_requeue", r"Requeue=0 \(sbatch --no-requeue\)"),
        ("interactive", "it was not submitted with sbatch"),
    ],
)
def test_nothing_is_requeued_where_one_job_cannot_be(which: str, words: str) -> None:
    controller = Controller(jobs=["17", "18"], **{which: ("18",)})  # type: ignore[arg-type]
    told: list[str] = []
    found = slurm(controller)
    member = found.member(FACTS, "gpu1")
    policy = DrainPolicy(jobs_timeout_s=60.0)
    problem = f"it cannot be requeued: {words}; pass a longer --set drain.timeout_s, or cancel it: scancel 18"
    with pytest.raises(
        NotDrainedError,
        match=f"not drained within 60 s, and nothing was requeued: job 18 of ann: {problem}",
    ):
        found.drain(member, Scope.GPU, policy, told.append, lambda: False)
    assert requeued(controller) == []
    assert told[0] == "waiting for job 17 of ann, job 18 of ann"
    assert re.fullmatch(f"job 18 of ann is waited for 60 s at most: {problem}", told[1])
    first, second = found.workloads(member, Scope.GPU, policy)
    assert (first.problem, first.limit) == ("", "requeued after 60 s")
    assert re.fullmatch(problem, second.problem)
    assert second.limit == "60 s at most"
    assert [one.problem for one in found.workloads(member, Scope.GPU, DrainPolicy())] == ["", ""]


def test_a_job_on_its_way_out_is_neither_requeued_nor_in_the_way() -> None:
    controller = Controller(jobs=["17", "18"], no_requeue=("18",), completing=("18",))
    drain(slurm(controller, ends_at=65.0), timeout_s=60.0)
    assert requeued(controller) == ["scontrol requeue 17"]


def test_a_job_of_several_components_is_requeued_once() -> None:
    controller = Controller(jobs=["17+0", "17+1", "20_3"])
    drain(slurm(controller), timeout_s=60.0)
    assert requeued(controller) == ["scontrol requeue 17", "scontrol requeue 20_3"]


def test_a_job_that_ended_before_it_was_requeued_is_gone() -> None:
    controller = Controller(jobs=["17", "18"])

    def run(command: str) -> tuple[int, str]:
        if command == "scontrol requeue 17":
            controller.jobs.remove("18")
        return controller.run(command)

    clock = Clock(controller)
    drain(Slurm(run, "head", sleep=clock.sleep, clock=clock), timeout_s=60.0)
    assert len(requeued(controller)) == 2


def test_a_job_that_slurm_does_not_requeue_is_named() -> None:
    controller = Controller(jobs=["17"], requeues=False)
    with pytest.raises(NotDrainedError, match=r"job 17 of ann .*presently disabled.*scancel"):
        drain(slurm(controller), timeout_s=60.0)


def node(name: str, host: str = "", address: str = "") -> SlurmNode:
    """Slurm's defaults: the host is the name, the address is the host."""
    return SlurmNode(host or name, address or host or name, name, "idle")


@pytest.mark.parametrize(
    ("nodes", "hostname", "addresses", "reached", "names"),
    [
        ([node("gpu1"), node("gpu2")], "gpu1.example.net", (), "gpu1", ["gpu1"]),
        ([node("a-01", "gpu1"), node("a-02", "gpu2")], "gpu2", (), "10.0.0.2", ["a-02"]),
        ([node("a-01", "", "10.0.0.1"), node("a-02", "", "10.0.0.2")], "gpu2", ("10.0.0.2", "fe80::2"), "gpu2", ["a-02"]),
        ([node("a-01", "", "10.0.0.1")], "gpu1", (), "10.0.0.1", ["a-01"]),
        ([node("a-01", "", "gpu1.mgmt")], "gpu1", (), "x", ["a-01"]),
        ([node("a-01", "", "fd00:0::1")], "gpu1", ("fd00::1",), "x", ["a-01"]),
        ([node("a", "gpu1.one.net"), node("b", "gpu1.two.net")], "gpu1.two.net", (), "gpu1.two.net", ["b"]),
        ([node("a", "gpu1.one.net"), node("b", "gpu1.two.net")], "gpu1", (), "x", ["a", "b"]),
        ([node("a", "gpu1"), node("b", "x", "10.0.0.1")], "gpu1", ("10.0.0.1",), "gpu1", ["a", "b"]),
        ([node("n[1]", "head", "127.0.0.1"), node("n[2]", "head", "127.0.0.1")], "gpu1", ("127.0.0.1",), "127.0.0.1", []),
        ([node("gpu1", "", "10.0.0.1")], "10", (), "x", []),
        ([node("gpu1")], "", (), "", []),
    ],
)  # fmt: skip
def test_a_machine_is_matched_by_host_name_and_address(
    nodes: list[SlurmNode],
    hostname: str,
    addresses: tuple[str, ...],
    reached: str,
    names: list[str],
) -> None:
    facts = NodeFacts(hostname=hostname, addresses=addresses)
    assert [one.name for one in matching(nodes, facts, reached)] == names


def test_a_machine_without_a_node_and_one_with_two_are_refused_with_names() -> None:
    with pytest.raises(RefusedError, match=r"no node has the host name other or an address of it"):
        slurm(Controller()).member(NodeFacts(hostname="other"), "gpu7")
    rows = "gpu1|gpu1|a|idle|||none\ngpu9|10.0.0.1|b|idle|||none\n"
    twice = Slurm(lambda _: (0, rows), "head", {"gpu1": "10.0.0.1"})
    words = r"a \(NodeHostname gpu1, NodeAddr gpu1\); b \(NodeHostname gpu9, NodeAddr 10\.0\.0\.1\)"
    with pytest.raises(RefusedError, match=words):
        twice.member(NodeFacts(hostname="gpu1"), "gpu1")


def test_the_reason_is_emptied_once_a_resumed_node_has_registered() -> None:
    controller = Controller("drained*", "gpustate:r: x (changing) by ann@ops1", undrain_to="down*")
    controller.resume_to = "down*"  # until slurmd registers
    scheduler = slurm(controller, ends_at=10.0)
    assert scheduler.release(scheduler.member(FACTS, "gpu1")) == ""
    assert (controller.state, controller.reason) == ("idle", "")


def test_a_release_that_is_interrupted_names_what_is_left_and_the_command() -> None:
    controller = Controller("drained*", "gpustate:r: x (changing) by ann@ops1", undrain_to="down*")
    controller.resume_to = "down*"
    clock, said = Clock(controller), list[str]()
    scheduler = Slurm(controller.run, "head", sleep=clock.sleep, clock=clock)
    words = (
        r"node gpu1: interrupted while slurmd had not registered: it is down\*; "
        r"once it has: scontrol update NodeName=gpu1 State=RESUME"
    )
    with pytest.raises(NotRefreshedError, match=words):
        scheduler.release(scheduler.member(FACTS, "gpu1"), said.append, lambda: True)
    assert clock.now < 10
    assert said == ["waiting for slurmd of gpu1 to register with slurmctld: it is down*"]


def test_a_release_that_is_interrupted_ends_well_where_slurmd_answers_a_moment_later() -> None:
    controller = Controller("drained", "gpustate:r: x (held) by ann@ops1", undrain_to="down*")
    controller.resume_to = "down*"
    scheduler = slurm(controller, ends_at=2.0)
    assert scheduler.release(scheduler.member(FACTS, "gpu1"), print, lambda: True) == ""
    assert (controller.state, controller.reason) == ("idle", "")


def test_where_no_empty_reason_is_taken_it_becomes_none() -> None:
    controller = Controller("drained", "gpustate:r: x (changing) by ann@ops1", keeps_reason=True)
    scheduler = slurm(controller)
    assert scheduler.release(scheduler.member(FACTS, "gpu1")) == ""
    assert controller.reason == "none"
    assert scheduler.member(FACTS, "gpu1").hold is None


def test_a_node_that_undrain_leaves_down_is_resumed() -> None:
    controller = Controller("drained", "gpustate:r: x (changing) by ann@ops1", undrain_to="down")
    scheduler = slurm(controller)
    assert scheduler.release(scheduler.member(FACTS, "gpu1")) == ""
    assert [one.rpartition("State=")[2] for one in controller.commands if "State=" in one] == [
        "UNDRAIN",
        "RESUME",
    ]
    assert (controller.state, controller.reason) == ("idle", "")


def test_a_command_that_fails_is_one_line() -> None:
    def refuse(command: str) -> tuple[int, str]:
        return 1, "slurm_update error: Invalid user id\n"

    with pytest.raises(ClusterError, match=re.escape("Invalid user id; the commands need root")):
        Slurm(refuse, "head").members()
