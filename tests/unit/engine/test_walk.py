"""The walk of one node: this machine, in a temporary folder, with real programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from filestates import First, Runner, Second, Seen, Third, here, request

from gpustate import Disruption, Node, Plan, Policy, State, errors
from gpustate.core.change import Change
from gpustate.core.inventory import InventoryNode
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome, StateResult
from gpustate.core.planned import PlannedObservation
from gpustate.engine import fleet, verdicts, walk
from gpustate.engine.events import Event
from gpustate.engine.maintenance import NO_MAINTENANCE, Preview, Subject
from gpustate.engine.turns import AllAtOnce, Turn
from gpustate.ops.transaction import TransactionQuery
from gpustate.plan import document


@pytest.fixture
def node(tmp_path: Path) -> InventoryNode:
    return here(tmp_path / "state")


@pytest.fixture
def run(node: InventoryNode) -> Runner:
    def runner(*states: State[Any], **more: Any) -> fleet.FleetResult:
        return fleet.run(request(node, *states, **more))

    return runner


def outcomes(result: fleet.FleetResult) -> dict[str, Outcome]:
    return {state.state: state.outcome for state in result.nodes[0].states}


class Refuses:
    """Takes no node out of service."""

    begin = staticmethod(NO_MAINTENANCE.begin)
    rebooting = staticmethod(NO_MAINTENANCE.rebooting)
    end = staticmethod(NO_MAINTENANCE.end)

    def preview(self, subject: Subject) -> Preview:
        return Preview(("apply would refuse: cordoned by bob",), refused=True)


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ((NodeStatus.REFUSED,), errors.EXIT_REFUSED),
        ((NodeStatus.LOCKED,), errors.EXIT_LOCKED),
        ((NodeStatus.REFUSED, NodeStatus.LOCKED), errors.EXIT_REFUSED),
        ((NodeStatus.REFUSED, NodeStatus.OK), errors.EXIT_STOPPED),
        ((NodeStatus.REFUSED, NodeStatus.UNREACHABLE), errors.EXIT_STOPPED),
        ((), errors.EXIT_STOPPED),
    ],
)
def test_a_run_in_which_no_node_could_begin_says_why_by_its_exit_code(
    statuses: tuple[NodeStatus, ...], code: int
) -> None:
    nodes = [NodeResult(str(at), status) for at, status in enumerate(statuses)]
    assert fleet.FleetResult("r", nodes, ["others"], "failed nodes: 1").exit_code == code


def test_a_plan_exits_as_its_apply_where_a_node_cannot_be_taken_out_of_service(
    run: Runner, tmp_path: Path
) -> None:
    state = First(path=str(tmp_path / "a"))
    planned = run(state, apply=False, maintenance=Refuses())
    assert planned.exit_code == errors.EXIT_REFUSED
    assert planned.nodes[0].status is NodeStatus.OK
    assert planned.nodes[0].pending
    assert replace(planned, drift=True).exit_code == 0


class Watches(Refuses):
    """Keeps the names of the states that a scheduler is told of."""

    def __init__(self) -> None:
        self.states: list[tuple[str, ...]] = []
        self.spared: list[frozenset[str]] = []

    def preview(self, subject: Subject) -> Preview:
        self.states.append(subject.states())
        self.spared.append(subject.spared)
        return Preview()


class Releases(Refuses):
    """Tells what it does before and after a change."""

    def begin(self, subject: Subject, emit: Any, stop: Any) -> None:
        emit("holding n1")

    def end(self, subject: Subject, failed: str, emit: Any, stop: Any) -> tuple[str, ...]:
        emit("restarting nvidia-device-plugin")
        emit("released n1")
        return ()


def test_events_tell_the_return_to_service_from_the_drain(
    node: InventoryNode, tmp_path: Path
) -> None:
    told: list[Event] = []
    state = First(path=str(tmp_path / "a"), cost="drain")
    fleet.run(request(node, state, maintenance=Releases()), told.append)
    assert [(e.kind, e.text) for e in told if e.text.endswith(("n1", "-plugin"))] == [
        ("draining", "holding n1"),
        ("releasing", "restarting nvidia-device-plugin"),
        ("releasing", "released n1"),
    ]


def test_an_interrupted_return_to_service_can_be_resumed(
    node: InventoryNode, tmp_path: Path
) -> None:
    pressed: list[bool] = []

    class Waits(Refuses):
        def end(self, subject: Subject, failed: str, emit: Any, stop: Any) -> tuple[str, ...]:
            pressed.append(True)
            assert stop()
            raise errors.UnreleasedError("interrupted while pods restart; n1 stays out of service")

    state = First(path=str(tmp_path / "a"), cost="drain")
    asked = request(node, state, maintenance=Waits())
    result = fleet.run(asked, stop=lambda: bool(pressed))
    (row,) = result.nodes
    assert (row.status, result.interrupted) == (NodeStatus.INTERRUPTED, True)
    assert row.reason.endswith("interrupted while pods restart; n1 stays out of service")
    assert row.changed


class Stays(Refuses):
    """Refuses to take a node out of service."""

    def begin(self, subject: Subject, emit: Any, stop: Any) -> None:
        raise errors.RefusedError("a pod cannot leave")


@pytest.mark.parametrize("way", ["changed", "refused", "not drained", "as wanted"])
def test_what_precedes_the_first_change_waits_until_the_node_has_left_service(
    run: Runner, tmp_path: Path, way: str
) -> None:
    state = First(path=str(tmp_path / "a"), cost="drain")
    if way == "as wanted":
        run(state)
    seen: list[tuple[str, bool]] = []

    def record(node: NodeResult) -> None:
        seen.append((node.name, (tmp_path / "a").exists()))

    most = Disruption.NONE if way == "refused" else Disruption.REBOOT
    maintenance = Stays() if way == "not drained" else NO_MAINTENANCE
    run(state, before_change=record, max_disruption=most, maintenance=maintenance)
    assert seen == ([("here", False)] if way == "changed" else [])


class Returning:
    """Calls what precedes the wait for a node's GPUs."""

    preview = begin = rebooting = staticmethod(lambda *args: None)

    def end(self, subject: Subject, failed: str, emit: Any, stop: Any) -> tuple[str, ...]:
        subject.before_return()
        return ()


def test_what_precedes_the_return_of_a_node_gets_it_as_it_became(
    run: Runner, tmp_path: Path
) -> None:
    seen: list[list[str]] = []

    def record(node: NodeResult) -> None:
        seen.append([one.outcome.value for one in node.states])

    for _ in range(2):
        state = First(path=str(tmp_path / "a"), cost="drain")
        run(state, before_return=record, maintenance=Returning())
    assert seen == [["changed"], ["unchanged"]]


class Lacking(Second):
    """Cannot choose before the first has run."""

    def refuse(self, observed: Seen) -> str | None:
        return "nothing is offered"


def test_a_scheduler_is_told_of_states_that_really_change(run: Runner, tmp_path: Path) -> None:
    first, second = First(path=str(tmp_path / "a"), cost="drain"), Second(path=str(tmp_path / "b"))
    watches = Watches()
    run(first, second, apply=False, maintenance=watches)
    (tmp_path / "b").write_text("x")
    run(first, second, apply=False, maintenance=watches)
    run(first, Lacking(path=str(tmp_path / "b")), apply=False, maintenance=watches)
    assert watches.states == [("first", "second"), ("first",), ("first", "second")]


class Sparing(First):
    """Leaves some pods alone."""

    def plan(self, observed: Seen) -> Plan:
        return replace(super().plan(observed), spared_pods=frozenset({"pod"}))


def test_pods_stay_only_where_every_change_that_needs_gpus_leaves_them_alone(
    run: Runner, tmp_path: Path
) -> None:
    watches = Watches()
    sparing = Sparing(path=str(tmp_path / "a"), cost="drain")
    for cost in ("reload", "drain"):
        also = Third(path=str(tmp_path / "b"), cost=cost)
        run(sparing, also, apply=False, maintenance=watches)
    run(sparing, Second(path=str(tmp_path / "c")), apply=False, maintenance=watches)
    assert watches.spared == [{"pod"}, set(), {"pod"}]


class Optional(Second):
    """Knows ahead that it will be refused."""

    def forecast(self, node: Node, preview: str) -> Plan:
        return Plan(refusal="nothing is offered")


class Foreseen(Optional):
    """GPUs are of no use without it."""

    essential: ClassVar[bool] = True


class Behind(Third):
    """Needs it."""

    needs: ClassVar[tuple[str, ...]] = ("second",)


def test_a_refusal_that_is_certain_before_it_comes_is_one_of_the_plan(
    run: Runner, tmp_path: Path
) -> None:
    states = (First(path=str(tmp_path / "a")), Foreseen(), Behind(path=str(tmp_path / "c")))
    planned = run(*states, apply=False, forecast=True)
    assert outcomes(planned) == {
        "first": Outcome.PENDING,
        "second": Outcome.REFUSED,
        "third": Outcome.NOT_RUN,
    }
    assert planned.nodes[0].reason == "second: nothing is offered"
    assert (planned.nodes[0].proceeds, planned.exit_code) == (False, errors.EXIT_REFUSED)


class Packaged(First):
    """Installs a package."""

    def plan(self, observed: Seen) -> Plan:
        changes = (Change("packages", {}, {"big": "1"}),)
        return replace(super().plan(observed), changes=changes) if observed.text is None else Plan()


class AlsoPackaged(Packaged):
    """Installs another one."""

    name: ClassVar[str] = "third"

    def plan(self, observed: Seen) -> Plan:
        return replace(super().plan(observed), installs=(("more", ""),))


@pytest.mark.parametrize("apply", [False, True])
def test_packages_of_all_states_need_room_together(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apply: bool
) -> None:
    asked: list[TransactionQuery] = []

    def script(self: TransactionQuery) -> str:
        asked.append(self)
        size = "After this operation, 9 GB of additional disk space will be used."
        return f"printf '%s\\n' '=size {size}' '=room 1024 /usr' '=room 999999 /var'"

    monkeypatch.setattr(TransactionQuery, "script", script)
    states = Packaged(path=str(tmp_path / "a")), AlsoPackaged(path=str(tmp_path / "c"))
    planned = run(*states, Second(path=str(tmp_path / "b")), apply=apply, forecast=not apply)
    assert outcomes(planned) == {
        "first": Outcome.REFUSED,
        "second": Outcome.NOT_RUN,
        "third": Outcome.NOT_RUN,
    }
    assert planned.nodes[0].reason == (
        "first: /usr has 1 MiB free, and the packages need 9216 MiB for first, third; free disk space there (clean the "
        "package cache, remove old kernels, df -h), then apply again"
    )
    assert asked[0].install == (("big", "1"), ("more", ""))
    assert not [*tmp_path.glob("[abc]")]


@pytest.mark.parametrize("removed", [False, True])
def test_nothing_is_certain_beside_a_removal_that_may_make_room(
    run: Runner, tmp_path: Path, removed: bool
) -> None:
    (tmp_path / "c").write_text("x")
    component = Behind(path=str(tmp_path / "c"), ensure="absent" if removed else "present")
    states = (First(path=str(tmp_path / "a")), Foreseen(), component)
    planned = run(*states, apply=False, forecast=True)
    expected = Outcome.KNOWN_AFTER if removed else Outcome.REFUSED
    assert outcomes(planned)["second"] is expected


class Reads(First):
    """Reads what it is about to add, and finds it unreadable."""

    def preview(self, observed: Seen) -> str:
        return "add"

    def forecast(self, node: Node, preview: str) -> Plan:
        return Plan(refusal="nothing is offered" if preview == "add" else None)


@pytest.mark.parametrize("refuses", ["first", "second"])
@pytest.mark.parametrize("apply", [False, True])
def test_a_refusal_that_is_certain_leaves_the_node_alone(
    run: Runner, tmp_path: Path, apply: bool, refuses: str
) -> None:
    path = str(tmp_path / "a")
    states = (Reads(path=path), Second()) if refuses == "first" else (First(path=path), Foreseen())
    result = run(*states, apply=apply, forecast=True)
    assert not (tmp_path / "a").exists()
    assert (result.nodes[0].status, result.nodes[0].proceeds) == (NodeStatus.REFUSED, False)
    assert result.nodes[0].reason == f"{refuses}: nothing is offered"
    assert " changed=0 " in result.summary()


class Last(Third):
    """Needs what will be refused."""

    name: ClassVar[str] = "last"
    needs: ClassVar[tuple[str, ...]] = ("second",)


@pytest.mark.parametrize("apply", [False, True])
def test_a_refusal_that_is_certain_blocks_only_what_depends_on_it(
    run: Runner, tmp_path: Path, apply: bool
) -> None:
    first, last = First(path=str(tmp_path / "a")), Last(path=str(tmp_path / "d"))
    states = (first, Optional(path=str(tmp_path / "b")), Third(path=str(tmp_path / "c")), last)
    result = run(*states, apply=apply, forecast=True)
    done = Outcome.CHANGED if apply else Outcome.PENDING
    assert outcomes(result) == {
        "first": done,
        "second": Outcome.REFUSED,
        "third": done,
        "last": Outcome.NOT_RUN,
    }
    assert result.nodes[0].reason == "second: nothing is offered"
    assert (result.nodes[0].proceeds, result.exit_code) == (not apply, errors.EXIT_REFUSED)
    assert [(tmp_path / name).exists() for name in "abcd"] == [apply, False, apply, False]


def test_a_plan_writes_nothing(run: Runner, tmp_path: Path) -> None:
    result = run(First(path=str(tmp_path / "a")), apply=False)
    assert outcomes(result) == {"first": Outcome.PENDING}
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "state").exists()


def test_a_second_apply_changes_nothing_and_costs_one_exec(run: Runner, tmp_path: Path) -> None:
    first = run(First(path=str(tmp_path / "a")))
    assert outcomes(first) == {"first": Outcome.CHANGED}
    assert first.nodes[0].execs == 3
    before = (tmp_path / "a").stat().st_mtime_ns
    second = run(First(path=str(tmp_path / "a")))
    assert outcomes(second) == {"first": Outcome.UNCHANGED}
    assert second.nodes[0].execs == 1
    assert (tmp_path / "a").stat().st_mtime_ns == before


def test_what_is_queried_after_the_steps_costs_no_exec(
    run: Runner, node: InventoryNode, tmp_path: Path
) -> None:
    def query(on: Node) -> str:
        return on.shell("echo told").stdout

    without = run(First(path=str(tmp_path / "a")), apply=True).nodes[0].execs
    answers: dict[str, Any] = {}
    result = run(First(path=str(tmp_path / "b")), apply=True, afterwards=query, answers=answers)
    assert result.nodes[0].execs == without
    away = replace(node, connection=replace(node.connection, kind="ssh", host="192.0.2.1"))
    assert fleet.question([away], 1, query, answers) == [(away, "told\n", None)]


def test_what_looks_behind_a_change_is_planned_in_a_later_stage(
    run: Runner, tmp_path: Path
) -> None:
    states = (Second(path=str(tmp_path / "b")), First(path=str(tmp_path / "a")))
    planned = run(*states, apply=False)
    assert outcomes(planned) == {"first": Outcome.PENDING, "second": Outcome.KNOWN_AFTER}
    done = run(*states)
    assert outcomes(done) == {"first": Outcome.CHANGED, "second": Outcome.CHANGED}
    assert done.nodes[0].execs == 5


def test_what_a_failed_step_leaves_to_another_state_is_no_change_of_the_plan(
    run: Runner, tmp_path: Path
) -> None:
    (tmp_path / "c").write_text("x")
    script = f"echo broken >{tmp_path / 'c'}; echo 'fatal: no such luck' >&2; exit 3"
    result = run(Third(path=str(tmp_path / "c")), First(path=str(tmp_path / "a"), script=script))
    assert outcomes(result) == {"third": Outcome.NOT_RUN, "first": Outcome.FAILED}
    left = next(state for state in result.nodes[0].states if state.state == "third")
    assert (left.reason, left.plan.changes) == ("because first failed", ())


class Unfit(Third):
    """Refuses until another state has changed."""

    def refuse(self, observed: Seen) -> str | None:
        return "no first file" if observed.text is None else None


def test_what_the_plan_refused_stays_refused_for_that_reason(run: Runner, tmp_path: Path) -> None:
    script = f"echo x >{tmp_path / 'a'}; echo y >{tmp_path / 'c'}"
    result = run(Unfit(path=str(tmp_path / "c")), First(path=str(tmp_path / "a"), script=script))
    refused = next(state for state in result.nodes[0].states if state.state == "third")
    assert (refused.outcome, refused.reason) == (Outcome.REFUSED, "no first file")


def test_a_state_that_needs_a_failed_one_is_not_run_and_says_why(
    run: Runner, tmp_path: Path
) -> None:
    result = run(
        First(path=str(tmp_path / "a"), script="echo 'fatal: no such luck' >&2; exit 3"),
        Second(path=str(tmp_path / "b")),
        Third(path=str(tmp_path / "c")),
    )
    assert outcomes(result) == {
        "first": Outcome.FAILED,
        "second": Outcome.NOT_RUN,
        "third": Outcome.CHANGED,
    }
    node = result.nodes[0]
    assert node.status is NodeStatus.FAILED
    assert node.reason == "first: the script ended with 3: fatal: no such luck"
    assert node.outcomes(Outcome.NOT_RUN)[0].reason == "because first failed"
    assert result.exit_code == 1


def test_what_the_node_says_decides_and_not_the_exit_code_of_a_step(
    run: Runner, tmp_path: Path
) -> None:
    result = run(First(path=str(tmp_path / "a"), script="true"))
    assert outcomes(result) == {"first": Outcome.FAILED}
    assert "still differs after its steps: text is None, expected 'x'" in result.nodes[0].reason


def test_a_later_stage_that_costs_more_than_announced_is_not_run(
    run: Runner, tmp_path: Path
) -> None:
    result = run(First(path=str(tmp_path / "a")), Second(path=str(tmp_path / "b"), cost="drain"))
    assert outcomes(result) == {"first": Outcome.CHANGED, "second": Outcome.REFUSED}
    assert not (tmp_path / "b").exists()
    assert result.exit_code == 5


def test_more_disruption_than_allowed_leaves_the_node_untouched(
    run: Runner, tmp_path: Path
) -> None:
    result = run(
        First(path=str(tmp_path / "a")),
        Third(path=str(tmp_path / "c"), cost="drain"),
        max_disruption=Disruption.RESTART,
    )
    assert result.nodes[0].status is NodeStatus.REFUSED
    assert "may cause disruption drain (third)" in result.nodes[0].reason
    assert not (tmp_path / "a").exists()


def saved(result: fleet.FleetResult) -> dict[str, Any]:
    made = document.plan_document(Policy(), "test", result.nodes, run="r", created="now")
    return json.loads(json.dumps(made))


def test_a_saved_plan_is_refused_once_the_node_has_moved_and_names_the_states(
    run: Runner, tmp_path: Path
) -> None:
    state = First(path=str(tmp_path / "a"))
    plan = saved(run(state, apply=False))
    (tmp_path / "a").write_text("somebody")
    result = run(
        state,
        planned=document.planned_observations(plan),
        planned_at="2026-11-28T14:19:05Z",
        announced=document.announced_disruptions(plan),
    )
    assert result.exit_code == 5
    assert result.nodes[0].reason == "here has changed since 2026-11-28 14:19Z (first); plan again"
    assert (tmp_path / "a").read_text() == "somebody"


def test_a_saved_plan_that_still_fits_is_carried_out(run: Runner, tmp_path: Path) -> None:
    states = (First(path=str(tmp_path / "a")), Second(path=str(tmp_path / "b")))
    plan = saved(run(*states, apply=False))
    result = run(
        *states,
        planned=document.planned_observations(plan),
        planned_at="2026-11-28T14:19:05Z",
        announced=document.announced_disruptions(plan),
    )
    assert outcomes(result) == {"first": Outcome.CHANGED, "second": Outcome.CHANGED}


def test_a_lock_of_somebody_else_keeps_the_node_untouched(run: Runner, tmp_path: Path) -> None:
    lock = tmp_path / "state" / "lock"
    lock.mkdir(parents=True)
    info = {
        "run": "other",
        "holder": "ann@desk",
        "reason": "locked: burn-in",
        "since": 1,
        "expires": int(time.time()) + 99,
    }
    (lock / "info").write_text(json.dumps(info))
    (lock / "run").write_text("other")
    (lock / "expires").write_text(str(info["expires"]))
    result = run(First(path=str(tmp_path / "a")))
    assert result.exit_code == 8
    assert "held by ann@desk (locked: burn-in)" in result.nodes[0].reason
    assert not (tmp_path / "a").exists()


def held(folder: Path, run: str = "other") -> None:
    """Somebody's lock, as a run leaves it from one stage to the next."""
    folder.mkdir(parents=True)
    info = {"run": run, "holder": "ann@desk", "reason": "apply", "since": 1}
    (folder / "info").write_text(json.dumps({**info, "expires": int(time.time()) + 99}))
    (folder / "run").write_text(run)
    (folder / "expires").write_text(str(int(time.time()) + 99))


class Choosy(First):
    """Refuses a node on which somebody is at work, whatever it looks like."""

    def refuse(self, observed: Seen) -> str | None:
        return "something else listens on port 5555"


class LockedWhileLooking(Choosy):
    """Somebody takes the lock, and begins, after the ledger was read."""

    folder: str = ""

    def probe(self, node: Node) -> Seen:
        node.shell(
            f"mkdir -p {self.folder}/runs; mv {self.folder}/later {self.folder}/lock; "
            f"mkdir {self.folder}/runs/theirs-1; :"
        )
        return super().probe(node)


def test_a_node_that_is_held_is_told_as_locked_before_it_is_judged(
    run: Runner, tmp_path: Path
) -> None:
    held(tmp_path / "state/lock")
    result = run(Choosy(path=str(tmp_path / "a")))
    assert result.exit_code == 8
    assert "held by ann@desk (apply)" in result.nodes[0].reason


def test_a_run_that_began_during_the_look_is_told_instead_of_a_refusal(
    run: Runner, tmp_path: Path
) -> None:
    held(tmp_path / "state/later", "theirs")
    state = LockedWhileLooking(path=str(tmp_path / "a"), folder=str(tmp_path / "state"))
    result = run(state)
    assert result.exit_code == 8
    assert (
        "run theirs-1 started while this one was probing: held by ann@desk"
        in result.nodes[0].reason
    )


def test_a_plan_of_a_node_that_is_held_says_that_it_may_be_half_done(
    run: Runner, tmp_path: Path
) -> None:
    held(tmp_path / "state/lock")
    result = run(First(path=str(tmp_path / "a")), apply=False)
    assert "held by ann@desk (apply)" in result.nodes[0].notes[0]
    assert "half done" in result.nodes[0].notes[0]


class Owning(First):
    """A file that is wholly gpustate's."""

    def probe(self, node: Node) -> Seen:
        return Seen(node.own_text(self.path))


def test_a_link_in_the_place_of_a_file_is_refused_before_anything_is_changed(
    run: Runner, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("y")
    (tmp_path / "a").symlink_to(theirs)
    states = (Owning(path=str(tmp_path / "a")), Third(path=str(tmp_path / "b")))
    result = run(*states, apply=False)
    assert outcomes(result)["first"] is Outcome.REFUSED
    assert result.nodes[0].states[0].reason == (
        f"{tmp_path}/a is a symbolic link to {theirs}: managed by something else; "
        "replace it by a plain file or leave it to its owner"
    )
    theirs.write_text("x")
    assert outcomes(run(*states, apply=False))["first"] is Outcome.UNCHANGED


def test_a_refusal_stays_one_where_nobody_is_at_work(run: Runner, tmp_path: Path) -> None:
    result = run(Choosy(path=str(tmp_path / "a")))
    assert result.exit_code == 5
    assert "listens on port 5555" in result.nodes[0].reason


def test_an_expired_lock_holds_nobody_and_none_is_left_behind(run: Runner, tmp_path: Path) -> None:
    lock = tmp_path / "state" / "lock"
    lock.mkdir(parents=True)
    info = {"run": "other", "holder": "ann@desk", "reason": "apply", "since": 1, "expires": 2}
    (lock / "info").write_text(json.dumps(info))
    (lock / "run").write_text("other")
    (lock / "expires").write_text("2")
    result = run(First(path=str(tmp_path / "a")), Second(path=str(tmp_path / "b")))
    assert result.exit_code == 0
    assert not lock.exists()


def test_a_killed_program_is_told_and_the_next_apply_converges(
    run: Runner, node: InventoryNode, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    kill = f"kill -9 $(cat {state}/runs/*/pid); sleep 5"
    result = run(First(path=str(tmp_path / "a"), script=kill))
    assert result.exit_code == 1
    assert "killed" in result.nodes[0].reason
    again = run(First(path=str(tmp_path / "a")), Second(path=str(tmp_path / "b")))
    assert outcomes(again) == {"first": Outcome.CHANGED, "second": Outcome.CHANGED}
    assert not (state / "lock").exists()


def orphan(tmp_path: Path) -> None:
    """The program of a killed controller, which writes a file two seconds later."""
    support = str(Path(__file__).parents[2] / "support")
    code = f"""
import sys; sys.path.insert(0, {support!r})
from filestates import First, Path, fleet, here, request
state = First(path={str(tmp_path / "a")!r}, script="sleep 2; printf x >{tmp_path}/a")
fleet.run(request(here(Path({str(tmp_path / "state")!r})), state))
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 20
    while not list((tmp_path / "state").glob("runs/*/out.1")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()


def planned(node: InventoryNode, *states: State[Any]) -> NodeResult:
    return fleet.run(replace(request(node, *states), apply=False)).nodes[0]


def test_a_controller_that_dies_leaves_a_program_that_finishes(
    node: InventoryNode, tmp_path: Path
) -> None:
    orphan(tmp_path)
    result = fleet.run(
        request(node, First(path=str(tmp_path / "a")), Second(path=str(tmp_path / "b")))
    )
    assert outcomes(result) == {"first": Outcome.UNCHANGED, "second": Outcome.CHANGED}
    assert "was followed to its end" in result.nodes[0].notes[0]
    assert (tmp_path / "a").read_text() == "x"


@pytest.mark.parametrize("now", [True, False])
def test_a_plan_of_the_same_command_is_not_stale_by_what_that_program_did(
    node: InventoryNode, tmp_path: Path, now: bool
) -> None:
    states = (First(path=str(tmp_path / "a")), Second(path=str(tmp_path / "b")))
    orphan(tmp_path)
    plan = planned(node, *states)
    assert plan.pending
    result = fleet.run(
        replace(request(node, *states), planned={"here": plan.observed}, planned_now=now)
    )
    assert (tmp_path / "a").read_text() == "x"
    if now:
        assert outcomes(result) == {"first": Outcome.UNCHANGED, "second": Outcome.CHANGED}
    else:
        assert "has changed since" in result.nodes[0].reason


@pytest.mark.parametrize("now", [True, False])
def test_it_may_have_ended_between_the_plan_and_the_apply(
    node: InventoryNode, tmp_path: Path, now: bool
) -> None:
    states = (First(path=str(tmp_path / "a")), Second(path=str(tmp_path / "b")))
    orphan(tmp_path)
    plan = planned(node, *states)
    assert plan.moving
    while planned(node, *states).moving:
        time.sleep(0.1)
    moving = frozenset({"here"}) if now else frozenset[str]()
    again = replace(request(node, *states), planned={"here": plan.observed})
    result = fleet.run(replace(again, planned_now=True, moving=moving))
    if now:
        assert outcomes(result) == {"first": Outcome.UNCHANGED, "second": Outcome.CHANGED}
    else:
        assert "has changed since" in result.nodes[0].reason
        assert "run the same command again" in result.nodes[0].reason


def test_an_interruption_finishes_the_running_step_and_begins_no_other(
    node: InventoryNode, tmp_path: Path
) -> None:
    observed: list[Event] = []

    states = (
        First(path=str(tmp_path / "a"), script=f"sleep 1; printf x >{tmp_path}/a"),
        Third(path=str(tmp_path / "c")),
    )
    result = fleet.run(
        request(node, *states), observed.append, lambda: any(e.kind == "step" for e in observed)
    )
    assert outcomes(result) == {"first": Outcome.CHANGED, "third": Outcome.INTERRUPTED}
    assert result.exit_code == 130
    assert not (tmp_path / "c").exists()
    assert not (tmp_path / "state" / "lock").exists()


@pytest.mark.skipif(
    os.geteuid() != 0, reason="a full disk is made with a small tmpfs, which takes root"
)
def test_a_full_disk_is_refused_before_anything_is_changed(run: Runner, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(state)], check=True)
    try:
        result = run(First(path=str(tmp_path / "a")))
        assert result.exit_code == 1
        assert "is full" in result.nodes[0].reason
        assert not (tmp_path / "a").exists()
        assert list(state.glob("runs/*")) == []
        assert not (state / "lock").exists()
    finally:
        subprocess.run(["umount", str(state)], check=True)


def test_what_was_put_there_is_taken_away_in_reverse_order(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("theirs")
    states = (First(path=str(tmp_path / "a")), Second(path=str(tmp_path / "b")))
    run(*states)
    absent = [state.model_copy(update={"ensure": "absent"}) for state in states]
    result = run(*absent)
    assert [state.state for state in result.nodes[0].states] == ["second", "first"]
    assert (tmp_path / "a").read_text() == "theirs"
    assert not (tmp_path / "b").exists()


class Console(First):
    """A file, and then somebody has to be at the console."""

    name: ClassVar[str] = "console"

    def plan(self, observed: Seen) -> Plan:
        person = not Path(self.path + ".person").exists()
        return replace(super().plan(observed), blocked="be there" if person else None)


class Waits(Third):
    """Needs what only a person can finish."""

    name: ClassVar[str] = "waits"
    needs: ClassVar[tuple[str, ...]] = ("console",)
    known_after: ClassVar[tuple[str, ...]] = ("console",)


def test_what_needs_a_console_is_an_end_of_its_own_and_the_rest_goes_on(
    run: Runner, tmp_path: Path
) -> None:
    states = (
        Console(path=str(tmp_path / "a")),
        Waits(path=str(tmp_path / "b")),
        First(path=str(tmp_path / "c")),
    )
    first = run(*states)
    assert outcomes(first) == {
        "console": Outcome.BLOCKED,
        "waits": Outcome.NOT_RUN,
        "first": Outcome.CHANGED,
    }
    node = first.nodes[0]
    assert (node.status, node.reason) == (NodeStatus.BLOCKED, "console: be there")
    assert node.changed
    assert first.exit_code == 9
    assert " blocked=1 " in first.summary()
    before = (tmp_path / "a").stat().st_mtime_ns
    again = run(*states)
    assert outcomes(again)["console"] is Outcome.BLOCKED
    assert again.nodes[0].execs == 1
    assert not again.nodes[0].changed
    assert (tmp_path / "a").stat().st_mtime_ns == before
    (tmp_path / "a.person").touch()
    after = run(*states)
    assert outcomes(after) == {
        "console": Outcome.UNCHANGED,
        "waits": Outcome.CHANGED,
        "first": Outcome.UNCHANGED,
    }
    assert after.exit_code == 0
    assert "blocked" not in after.summary()


class Fourth(Third):
    """A file that comes after the second, and needs to know nothing."""

    name: ClassVar[str] = "fourth"
    after: ClassVar[tuple[str, ...]] = ("second",)


def test_what_comes_after_something_not_known_yet_waits_for_its_stage(
    run: Runner, tmp_path: Path
) -> None:
    there = f"test -e {tmp_path}/b && printf x >{tmp_path}/d"
    result = run(
        Fourth(path=str(tmp_path / "d"), script=there),
        Second(path=str(tmp_path / "b")),
        First(path=str(tmp_path / "a")),
    )
    assert set(outcomes(result).values()) == {Outcome.CHANGED}
    assert result.nodes[0].execs == 5


def test_the_last_line_counts_nodes_as_the_plan_does() -> None:
    pending = StateResult("a", Outcome.PENDING)
    done = StateResult("a", Outcome.CHANGED)
    result = fleet.FleetResult(
        "r",
        [
            NodeResult("one", NodeStatus.REFUSED, states=[pending]),
            NodeResult("two", NodeStatus.OK, states=[pending]),
            NodeResult("three", NodeStatus.FAILED, states=[pending]),
        ],
    )
    assert " changed=1 unchanged=0 failed=1 " in result.summary()
    result.nodes[1].would_refuse = True
    assert " ok=0 changed=0 unchanged=0 failed=1 unreachable=0 refused=2 " in result.summary()
    proofs = fleet.FleetResult("r", [NodeResult("one", states=[done])], applied=True)
    assert " changed=1 unchanged=0 " in proofs.summary()
    proofs.proved = True
    assert " changed=0 unchanged=1 " in proofs.summary()


def test_what_its_own_steps_did_not_settle_is_shown_where_it_differs() -> None:
    same = "nvidia.com/gpu.machine=a\n" * 20
    change = Change("text", same + "count=8\n", same + "count=7\n", path="/etc/x")
    told = verdicts.differences((change,))
    assert "count=8" in told
    assert "count=7" in told
    assert len(told) < 400
    assert "find out what else writes /etc/x" in verdicts.next_step((change,))
    assert "count" not in verdicts.differences((replace(change, secret=True),))
    many = [Change(f"f{n}", n, n + 1) for n in range(6)]
    assert verdicts.differences(many).endswith("f3 is 3, expected 4; and 2 more")


class _TwoTurns(AllAtOnce):
    """Looks at all nodes first, as waves do."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self.looking = True

    def next(self, *, interrupted: bool) -> Turn:
        return replace(super().next(interrupted=interrupted), over=not self.looking)

    def ended(self, node: NodeResult) -> None:
        if node.deferred:
            self.looking, self._names = False, (node.name,)

    @property
    def surveying(self) -> bool:
        return self.looking


@pytest.mark.parametrize(("fresh_s", "probes"), [(60.0, 2), (0.0, 3)])
def test_a_node_whose_turn_comes_at_once_is_not_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_s: float, probes: int
) -> None:
    monkeypatch.setattr(walk, "_FRESH_S", fresh_s)
    events: list[Event] = []
    state = First(path=str(tmp_path / "a"))
    asked = request(here(tmp_path / "state"), state, turns=_TwoTurns(["here"]))
    result = fleet.run(asked, events.append)
    assert result.nodes[0].status is NodeStatus.OK
    assert (tmp_path / "a").read_text() == "x"
    assert [one.kind for one in events].count("probing") == probes, "before and after the change"


@dataclass(frozen=True, slots=True)
class SeenWithDriver(Seen):
    """What is there for a driver."""

    driver: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict[str, str])


class Following(Second):
    """Installs what fits the driver."""

    predicted: ClassVar[tuple[str, ...]] = ("text",)
    follows: ClassVar[tuple[str, ...]] = ("driver", "packages")

    def probe(self, node: Node) -> Seen:
        return SeenWithDriver(None)

    def desired(self, observed: Seen) -> Seen:
        assert isinstance(observed, SeenWithDriver)
        return replace(observed, text=" ".join(filter(None, (observed.driver, *observed.packages))))

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        return {"toolkit": planned.value("text")}


class Driving(First):
    """Chooses a driver."""

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        return {"driver": "580.65.06"}


class Driver(Driving):
    """Plans the packages of a driver, too."""

    name: ClassVar[str] = "driver"

    def plan(self, observed: Seen) -> Plan:
        plan = super().plan(observed)
        packages = Change("packages", {}, {"libcuda1": "580.65.06-1"})
        return replace(plan, changes=(*plan.changes, packages)) if plan else plan


def test_what_follows_the_driver_knows_the_packages_to_come(run: Runner, tmp_path: Path) -> None:
    class After(Following):
        """Waits for the driver."""

        needs: ClassVar[tuple[str, ...]] = ()
        known_after: ClassVar[tuple[str, ...]] = ("driver",)

    planned = run(Driver(path=str(tmp_path / "a")), After(), apply=False, forecast=True)
    (change,) = planned.nodes[0].states[1].plan.changes
    assert change.after == "580.65.06 libcuda1"


def test_what_follows_the_driver_is_predicted_without_a_cost(run: Runner, tmp_path: Path) -> None:
    states = Driving(path=str(tmp_path / "a")), Following()
    planned = run(*states, apply=False, forecast=True)
    result = planned.nodes[0].states[1]
    assert result.outcome is Outcome.KNOWN_AFTER
    (change,) = result.plan.changes
    assert (change.before, change.after) == (None, "580.65.06")
    assert result.plan.facts == {"toolkit": "580.65.06"}
    assert result.plan.disruption is Disruption.NONE
    assert run(*states, apply=False).nodes[0].states[1].plan.changes == (), "a run does not predict"


class Lacks(Following):
    """No repository has what fits the driver."""

    essential: ClassVar[bool] = True

    def plan(self, observed: Seen) -> Plan:
        return Plan(refusal="no repository offers it")


class Follows(Third):
    """A repository whose own plan waits for another state."""

    known_after: ClassVar[tuple[str, ...]] = ("first",)

    def preview(self, observed: Seen) -> str:
        return "add"


@pytest.mark.parametrize("apply", [False, True])
def test_what_no_repository_has_for_the_driver_is_refused_before_the_driver_changes(
    run: Runner, tmp_path: Path, apply: bool
) -> None:
    path = tmp_path / "a"
    result = run(Driving(path=str(path)), Lacks(), apply=apply, forecast=True).nodes[0]
    assert (result.status, result.proceeds) == (NodeStatus.REFUSED, False)
    assert result.reason == "second: no repository offers it"
    assert not path.exists()


class Operation(Third):
    """Of a family, as operations are, which may add a repository."""

    family: ClassVar[str] = "third"


@pytest.mark.parametrize("other", [Follows, Operation])
def test_nothing_is_missing_for_certain_while_a_repository_is_not_known(
    run: Runner, tmp_path: Path, other: type[Third]
) -> None:
    repository = other(path=str(tmp_path / "b"))
    planned = run(
        Driving(path=str(tmp_path / "a")), Lacks(), repository, apply=False, forecast=True
    )
    assert planned.nodes[0].status is NodeStatus.OK
    assert outcomes(planned)["second"] is Outcome.KNOWN_AFTER
