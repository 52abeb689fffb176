"""Waves of a run: their nodes, how far it goes on after failures, pause, abort and soak time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest

from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.core.outcome import NodeResult, NodeStatus
from gpustate.core.policy import Policy
from gpustate.engine import fleet
from gpustate.engine.events import Event
from gpustate.engine.maintenance import STAYS_OUT
from gpustate.engine.turns import Turn
from gpustate.errors import UsageError
from gpustate.rollout import waves, windows
from gpustate.rollout.board import Control, read_progress
from gpustate.rollout.decide import Place, Rollout
from gpustate.rollout.strategy import Strategy
from gpustate.rollout.waves import Check, Waves, cut, no_check

NAMES = [f"n{number}" for number in range(10)]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of nodes whose walk fails."""
    names: set[str] = set()

    class Walk:
        def __init__(self, session: Any, resolved: Any, *_: Any) -> None:
            self.name = resolved.node.name

        def run(self) -> NodeResult:
            failed = self.name in names
            return NodeResult(self.name, NodeStatus.FAILED if failed else NodeStatus.OK)

    monkeypatch.setattr(fleet, "Walk", Walk)
    return names


def test_a_refused_node_stops_nothing_and_the_next_takes_its_place() -> None:
    places = tuple(
        Place(name, wave, domain="d" if name in ("n2", "n4") else "")
        for name, wave in (("n0", 0), ("n1", 1), ("n2", 1), ("n3", 2), ("n4", 2))
    )
    turns = Waves(Rollout(places, slots=5))
    begun: list[tuple[str, ...]] = []
    for status in (NodeStatus.REFUSED, NodeStatus.LOCKED, NodeStatus.OK, NodeStatus.OK):
        begun.append(turns.next(interrupted=False).start)
        for name in begun[-1]:
            turns.ended(NodeResult(name, status))
    assert begun == [("n0",), ("n1",), ("n2", "n4"), ("n3",)]
    assert not turns.stopped
    counted = Waves(Rollout(places, slots=5, max_failures=1))
    assert counted.next(interrupted=False).start == ("n0",)
    counted.ended(NodeResult("n0", NodeStatus.REFUSED))
    assert counted.next(interrupted=False).over
    assert counted.stopped == "1 node failed (--max-failures 1)"


def run(*, serial: tuple[str, ...] = (), max_failures: int = 0) -> fleet.FleetResult:
    inventory = Inventory("test", tuple(InventoryNode(name) for name in NAMES))
    strategy = Strategy(serial, max_failures)
    turns = Waves(strategy.rollout(inventory, 1, 0.0))
    return fleet.run(fleet.Request(Policy(), inventory, apply=True, forks=1, turns=turns))


def test_the_batch_of_the_first_failure_is_the_last(broken: set[str]) -> None:
    broken.add("n1")
    result = run(serial=("1", "3"))
    assert [node.name for node in result.nodes] == NAMES[:4]
    assert result.skipped == NAMES[4:]


@pytest.mark.parametrize(("most", "begun"), [(1, 2), (2, 5), (3, 10)])
def test_nothing_is_begun_once_so_many_have_failed(broken: set[str], most: int, begun: int) -> None:
    broken.update({"n1", "n4"})
    for serial in ((), ("2",), ("1", "3")):
        result = run(serial=serial, max_failures=most)
        assert [node.name for node in result.nodes] == NAMES[:begun]
        assert result.skipped == NAMES[begun:]


def test_without_batches_all_nodes_are_begun(broken: set[str]) -> None:
    broken.update(NAMES)
    assert run().skipped == []


# --- waves -----------------------------------------------------------------------------


def nodes(*names: str, **variables: str) -> list[InventoryNode]:
    return [InventoryNode(name, vars=variables) for name in names]


def test_canaries_come_first_and_sizes_count_all_nodes() -> None:
    found = cut(nodes(*NAMES), (1, 2, 5), frozenset({"n4", "n7"}))
    assert found == [["n4", "n7"], ["n0"], ["n1", "n2"], ["n3", "n5", "n6", "n8", "n9"]]


def test_nodes_of_an_nvlink_domain_come_in_one_wave() -> None:
    domains = {"n1": "d1", "n8": "d1", "n2": "d2", "n3": "d2"}
    found = cut(nodes(*NAMES), (1, 2), frozenset({"n8"}), domains)
    assert found[0] == ["n1", "n8"], "a canary brings its whole domain"
    assert found[1:] == [["n0"], ["n2", "n3"], ["n4", "n5"], ["n6", "n7"], ["n9"]]


def fleet_of(*found: InventoryNode) -> Inventory:
    return Inventory("test", found)


def test_nodes_that_are_held_already_come_first_after_the_canaries() -> None:
    inventory = fleet_of(*nodes(*NAMES[:5]))

    def waves(strategy: Strategy) -> list[tuple[str, int]]:
        places = strategy.rollout(inventory, 5, 0.0, held={"n3", "n4"}).places
        return [(place.name, place.wave) for place in places]

    assert waves(Strategy()) == [(name, 0) for name in ("n3", "n4", "n0", "n1", "n2")]
    assert waves(Strategy(("1", "3"), canary="n1")) == [
        ("n3", 1), ("n4", 2), ("n0", 2), ("n1", 0), ("n2", 2),
    ]  # fmt: skip


def test_a_node_that_was_rolled_back_is_a_failure_and_in_service() -> None:
    rack = {f"n{number}": "r1" for number in (0, 1)}
    places = tuple(Place(name, rack=rack.get(name, "")) for name in ("n0", "n1", "n2"))
    for notes, phase, out in (([], "released", False), ([f"n0 {STAYS_OUT}"], "failed", True)):
        turns = Waves(Rollout(places, slots=1, max_failures=2))
        assert turns.next(interrupted=False).start == ("n0",)
        turns.ended(NodeResult("n0", NodeStatus.ROLLED_BACK, "driver: broken", notes=notes))
        assert turns.document()["nodes"]["n0"]["phase"] == phase
        assert turns.next(interrupted=False).start == (("n2",) if out else ("n1",))
        assert turns._progress.failures == 1


def test_the_inventory_or_the_cluster_names_racks_and_domains() -> None:
    inventory = fleet_of(*nodes("a", "b", gpustate_rack="r1"), *nodes("c"))
    rollout = Strategy(spread="gpustate_rack").rollout(inventory, 5, 0.0)
    assert [place.rack for place in rollout.places] == ["gpustate_rack=r1"] * 2 + [""]
    labels = {"topology.kubernetes.io/rack": {"c": "r9"}, "nvidia.com/gpu.clique": {"a": "u.1"}}
    by_label = Strategy(("1",), spread="topology.kubernetes.io/rack")
    rollout = by_label.rollout(inventory, 5, 0.0, lambda key: labels.get(key, {}))
    assert [place.rack for place in rollout.places] == ["", "", "topology.kubernetes.io/rack=r9"]
    with pytest.raises(UsageError, match=r"rollout\.spread row: no node has"):
        Strategy(spread="row").rollout(inventory, 5, 0.0)


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (Strategy(soak="10"), "rollout.soak: invalid duration"),
        (Strategy(window="22-05"), "invalid maintenance window"),
        (Strategy(window="Mon-Fry 22:00-05:00"), "invalid days"),
        (Strategy(window="22:00-24:30"), "invalid time 24:30"),
        (Strategy(window="22:00-22:00"), "is never open"),
        (Strategy(window="22:00-05:00 Mars/Olympus"), "unknown time zone"),
        (Strategy(window="Mon 08:00-12:00"), "never open inside of rollout.window"),
        (Strategy(("x",)), "--serial"),
    ],
)
def test_what_cannot_be_is_refused_before_any_node_is_reached(
    strategy: Strategy, words: str
) -> None:
    inventory = fleet_of(*nodes("a", gpustate_window="Sat 08:00-12:00 Europe/Berlin"))
    with pytest.raises(UsageError, match=words):
        strategy.rollout(inventory, 5, 0.0)


@pytest.mark.parametrize(
    ("text", "at", "wait_h"),
    [
        ("Mon-Fri 22:00-05:00", "2026-11-27T21:00", 1),  # a Friday
        ("Mon-Fri 22:00-05:00", "2026-11-28T04:59", 0),  # its night
        ("Mon-Fri 22:00-05:00", "2026-11-28T05:00", 65),  # until Monday 22:00
        ("22:00-05:00 Europe/Berlin", "2026-11-27T21:00", 0),
        ("Sat,Sun 00:00-24:00", "2026-11-27T23:00", 1),
        ("Sun 08:00-09:00; Mon 08:00-09:00", "2026-11-29T09:00", 23),
        ("02:00-03:00 Europe/Berlin", "2026-10-25T00:30", 0),  # clocks go back at 01:00Z
    ],
)
def test_windows_open_on_their_days_in_their_time_zone(text: str, at: str, wait_h: float) -> None:
    found = windows.parse(text)
    now = datetime.fromisoformat(f"{at}:00+00:00").timestamp()
    assert windows.wait_s(found, now) == wait_h * 3600


# --- the loop --------------------------------------------------------------------------


@dataclass
class Desk:
    """A board in memory."""

    request: str | None = ""
    shown: list[str] = field(default_factory=list)

    def publish(self, progress: str) -> None:
        self.shown.append(progress)

    def control(self) -> str | None:
        return self.request

    def set_control(self, control: str) -> bool:
        if self.request is None:
            return False
        self.request = control
        return True


@dataclass
class Loop:
    """A rollout whose nodes take no time, with a clock of its own."""

    strategy: Strategy
    check: Check = no_check
    slots: int = 5
    now: float = 1_795_000_000.0
    desk: Desk = field(default_factory=Desk)
    said: list[str] = field(default_factory=list)
    waves: Waves = field(init=False)

    def __post_init__(self) -> None:
        rollout = self.strategy.rollout(fleet_of(*nodes(*NAMES)), self.slots, self.now)
        self.waves = Waves(
            rollout,
            "r1",
            "ann@ops1",
            check=self.check,
            boards=(self.desk,),
            clock=lambda: self.now,
            say=self.said.append,
        )

    def step(self, seconds: float = 3.0) -> Turn:
        self.now += seconds
        return self.waves.next(interrupted=False)

    def end(self, *names: str, status: NodeStatus = NodeStatus.OK) -> None:
        for name in names:
            self.waves.ended(NodeResult(name, status))

    def until(self, done: Callable[[Turn], bool], seconds: float = 3.0) -> Turn:
        for _ in range(2000):
            turn = self.step(seconds)
            if done(turn):
                return turn
            if self.waves._checking is not None:
                wait(
                    [self.waves._checking]
                )  # a check runs in a thread of its own, this clock does not wait for it
        raise AssertionError(self.waves.document())

    def phases(self) -> dict[str, str]:
        return {name: row["phase"] for name, row in self.waves.document()["nodes"].items()}


def test_a_pause_holds_the_next_nodes_until_it_is_lifted() -> None:
    loop = Loop(Strategy(("2",)))
    assert loop.step().start == ("n0", "n1")
    loop.desk.request = Control("r1", "pause", "bob@ops2", "2026-11-24T10:00:00Z").text()
    loop.end("n0", "n1")
    assert loop.step().start == ()
    assert loop.waves.signals.paused == "paused by bob@ops2 since 2026-11-24T10:00:00Z"
    assert loop.waves.state == "paused"
    loop.desk.request = None
    assert loop.step().start == (), "a board that cannot be read lifts no pause"
    loop.desk.request = Control("r0", "pause", "bob@ops2", "x").text()
    assert loop.step().start == ("n2", "n3"), "a request to another run does not count"


def test_a_request_at_one_place_is_shown_at_all_of_them() -> None:
    loop, other = Loop(Strategy(("2",))), Desk()
    loop.waves.boards = (loop.desk, other)
    loop.step()
    loop.desk.request = Control("r1", "pause", "bob@ops2", "10:00").text()
    loop.step()
    assert other.request == loop.desk.request
    late = Desk()
    loop.waves.boards = (loop.desk, other, late)
    loop.step()
    assert late.request == loop.desk.request, "a Lease that is taken later has it, too"
    assert late.shown, "and how far the rollout is, at once"
    other.request = None
    late.request = ""
    loop.step()
    assert (loop.waves.signals.paused, loop.desk.request) == ("", "")
    other.request = Control("r1", "pause", "bob@ops2", "10:00").text()
    loop.step()
    assert other.request == "", "what was lifted while it was away does not come back"


def test_an_abort_is_not_taken_back() -> None:
    loop, other = Loop(Strategy(("2",))), Desk()
    loop.waves.boards = (loop.desk, other)
    loop.step()
    other.request = Control("r1", "abort", "bob@ops2", "10:00").text()
    loop.desk.request = Control("r1", "pause", "ann@ops1", "10:00").text()
    loop.step()
    loop.desk.request = ""
    loop.step()
    assert loop.waves.signals.aborted
    assert loop.desk.request == other.request
    assert json.loads(str(other.request))["action"] == "abort"


def test_an_abort_ends_it_after_the_nodes_under_way() -> None:
    loop = Loop(Strategy(("2",)))
    loop.step()
    loop.desk.request = Control("r1", "abort", "bob@ops2", "10:00").text()
    turn = loop.step()
    assert (turn.start, turn.over) == ((), True)
    assert loop.waves.signals.aborted
    loop.end("n0", "n1")
    assert loop.step().over
    assert loop.waves.stopped == "aborted by bob@ops2 at 10:00"
    assert loop.phases()["n0"] == "released"
    assert loop.phases()["n9"] == "skipped"
    assert loop.desk.shown[-1] == "", "nothing is left behind"


def test_the_nodes_done_so_far_are_checked_during_the_soak_time() -> None:
    checks: list[tuple[float, dict[str, float], bool]] = []
    loop = Loop(Strategy(("2",), soak="10m"))

    def check(nodes: Mapping[str, float], last: bool) -> Mapping[str, str]:
        checks.append((loop.now, dict(nodes), last))
        return {}

    loop.waves.check = check
    loop.step()
    begun = loop.now
    loop.now += 40
    loop.end("n0", "n1")
    ended = loop.now
    assert loop.until(lambda turn: bool(turn.start)).start == ("n2", "n3")
    assert loop.now - ended >= 600
    assert [set(ages) for _, ages, _ in checks] == [{"n0", "n1"}] * len(checks)
    assert [last for _, _, last in checks] == [False] * (len(checks) - 1) + [True]
    assert checks[-1][0] - ended >= 600, "once at its end"
    assert len(checks) > 5, "and every minute"
    assert 640 <= checks[-1][1]["n0"] <= 740
    assert checks[-1][1]["n0"] == checks[-1][0] - begun


def test_a_failed_check_stops_the_rollout_and_names_the_node() -> None:
    loop = Loop(Strategy(("2",), soak="10m"), check=lambda *_: {"n1": "GPU 0: Xid 79"})
    loop.step()
    loop.end("n0", "n1")
    loop.until(lambda turn: turn.over)
    assert loop.waves.stopped == "a check during the soak time failed: n1: GPU 0: Xid 79"
    assert loop.phases() == {"n0": "released", "n1": "failed"} | dict.fromkeys(NAMES[2:], "skipped")


def test_a_check_that_cannot_be_made_stops_the_rollout() -> None:
    def check(nodes: Mapping[str, float], last: bool) -> Mapping[str, str]:
        raise ValueError("no")

    loop = Loop(Strategy(("2",), soak="1m"), check=check)
    loop.step()
    loop.end("n0", "n1")
    loop.until(lambda turn: turn.over)
    assert "ValueError: no" in loop.waves.stopped


def test_a_budget_that_is_used_up_ends_the_run_and_says_so() -> None:
    loop = Loop(Strategy(max_failures=5), slots=1)
    loop.step()
    loop.waves.signals.exhausted = "--max-unavailable 1 is used up by n0"
    loop.end("n0", status=NodeStatus.REFUSED)
    assert loop.step().over
    assert loop.said == ["no further node is started: --max-unavailable 1 is used up by n0"]


def test_outside_of_its_window_nothing_begins_and_the_loop_says_why() -> None:
    loop = Loop(Strategy(window="Sat 00:00-24:00"), now=1_795_000_000.0)  # a Wednesday
    turn = loop.step()
    assert (turn.start, turn.over) == ((), False)
    assert loop.said == ["outside of the maintenance window until 2026-11-21T00:00Z"]
    assert loop.waves.state == "waiting"
    assert loop.until(lambda turn: bool(turn.start), 3600.0).start == tuple(NAMES[:5])
    assert loop.waves.signals.closed("n0") == ""
    loop.now += 24 * 3600
    assert loop.waves.signals.closed("n0") == "outside of the maintenance window"


def test_the_phase_of_every_node_is_shown_with_the_reason() -> None:
    loop = Loop(Strategy(("3",)))
    loop.step()
    loop.waves.signals.note("n0", "held", "n0 in Kubernetes")
    loop.waves.hear(Event("n1", "started", "stage 1: driver"))
    loop.end("n2", status=NodeStatus.FAILED)
    loop.waves.note("n3", "failed", "x " * 200)
    shown = loop.waves.document()["nodes"]
    assert (shown["n0"]["phase"], shown["n0"]["why"]) == ("held", "n0 in Kubernetes")
    assert (shown["n1"]["phase"], shown["n1"]["why"]) == ("changing", "stage 1: driver")
    assert shown["n2"]["phase"] == "failed"
    assert shown["n3"]["why"] == f"{'x ' * 97}x ..."
    assert (shown["n5"]["phase"], shown["n5"]["why"]) == ("queued", "waits for wave 1")


def test_a_place_that_does_not_answer_delays_no_node_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waves, "_VISIT_S", 0.02)
    answers = threading.Event()

    class Slow(Desk):
        def control(self) -> str | None:
            answers.wait(30)
            return ""

    here = Desk(Control("r1", "abort", "bob@ops2", "10:00").text())
    loop = Loop(Strategy(("2",)), desk=Slow())
    assert loop.step().start == ("n0", "n1")
    answers.set()
    loop.until(lambda _: loop.waves._visiting is None)
    loop.waves.boards = (here, Desk(None))
    assert loop.until(lambda turn: turn.over).start == (), "one place alone is enough for a request"


def test_progress_of_thousands_of_nodes_fits_into_an_annotation() -> None:
    names = [f"gpu{number:04}.rack{number % 97}.site.example" for number in range(5000)]
    rollout = Strategy(("1", "10%")).rollout(fleet_of(*nodes(*names)), 20, 0.0)
    desk = Desk()
    Waves(rollout, "r1", "ann@ops1", boards=(desk,)).next(interrupted=False)
    (text,) = desk.shown
    assert len(text) < 200_000 < len(json.dumps(read_progress(text)))
    progress = read_progress(text)
    assert progress is not None
    assert set(progress["nodes"]) == set(names)
    assert read_progress(text[:-8]) is read_progress("eJw=") is read_progress("nothing") is None
