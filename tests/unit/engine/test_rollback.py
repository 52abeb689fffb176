"""Back to before a run: records on the node, the way back, and rollback on failure. Real files on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from filestates import FileState, First, Second, Seen, Third, here
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustate import Plan, Policy, State, Step, ops
from gpustate.api import rollbacks
from gpustate.core.change import Change
from gpustate.core.drain import DrainPolicy
from gpustate.core.facts import FactsQuery, NodeView
from gpustate.core.inventory import Connection, Inventory, InventoryNode
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome
from gpustate.core.policy import Resolved
from gpustate.core.state import AnyState
from gpustate.engine import before, fleet
from gpustate.engine.before import RunBefore, StateBefore
from gpustate.engine.events import Event
from gpustate.engine.maintenance import NO_MAINTENANCE, STAYS_OUT, Subject, out_of_service
from gpustate.engine.probing import query_node
from gpustate.engine.reconnect import Link
from gpustate.errors import GraphError, RefusedError, StepFailed, UnreleasedError
from gpustate.formats import masking
from gpustate.plan.make import Observations
from gpustate.remote.session import Session
from gpustate.rollout.decide import Place, Rollout
from gpustate.rollout.waves import Waves

KINDS: dict[str, type[State[Any]]] = {"first": First, "second": Second, "third": Third}


class Versioned(FileState):
    """A file that keeps the text it has, unless its policy names one."""

    name: ClassVar[str] = "versioned"
    text: str = ""

    def desired(self, observed: Seen) -> Seen:
        return Seen(None if self.absent else self.text or observed.text or "newest")

    def apply(self, observed: Seen, plan: Plan) -> Iterator[Step]:
        yield ops.PutText(self.path, self.desired(observed).text or "")

    def pinned(self, observed: Seen) -> Mapping[str, Any]:
        return {"text": observed.text} if observed.text else {}


@dataclass(frozen=True, slots=True)
class SeenAt(Seen):
    """A file's text, and an address."""

    where: str = ""


class Addressed(FileState):
    """A file whose text follows from what its parameters made it observe, as the address of a repository."""

    name: ClassVar[str] = "addressed"

    def probe(self, node: Any) -> Seen:
        return SeenAt(node.read_text(self.path), self.text)

    def desired(self, observed: Any) -> Seen:
        return replace(observed, text=None if self.absent else observed.where)


class Node:
    """This machine as one node of a run, or as two."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = here(folder / "state")
        self.events: list[Event] = []

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def apply(self, *states: State[Any], **more: Any) -> fleet.FleetResult:
        request = fleet.Request(
            Policy(*states), Inventory("test", (self.node,)), apply=True, **more
        )
        return fleet.run(request, self.events.append)

    def fail(self, script: str = "exit 3", **more: Any) -> fleet.FleetResult:
        """Change a file that was ``one``, then fail, and go back by itself."""
        self.apply(First(path=self.path("a"), text="one"))
        return self.apply(
            First(path=self.path("a"), text="two"),
            Third(path=self.path("c"), script=script),
            rollback_on_failure=True,
            **more,
        )

    def records(self) -> tuple[RunBefore, ...]:
        session = Session(self.node)
        session.connect()
        try:
            query = before.BeforeQuery()
            return query_node(self.node, lambda node: node.query(query), session.answer)
        finally:
            session.close()

    def way(self, run: str = "") -> before.WayBack:
        records = self.records()
        kinds = {**KINDS, "versioned": Versioned, "addressed": Addressed, "validates": Validates}
        return before.way_back(records, before.target(records, run), kinds)

    def back(self, run: str = "", **more: Any) -> NodeResult:
        way = self.way(run)
        plans = [(Resolved(self.node, way.states), fleet.ordered(way.states))]
        request = fleet.Request(
            Policy(), Inventory("test", (self.node,)), apply=True, plans=plans,
            undoes={"here": way.run}, **more,
        )  # fmt: skip
        return fleet.run(request).nodes[0]

    def files(self) -> dict[str, str]:
        return {one.name: one.read_text() for one in sorted(self.folder.iterdir()) if one.is_file()}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_what_a_run_put_there_goes_and_what_it_changed_comes_back(node: Node) -> None:
    node.apply(First(path=node.path("a"), text="one"))
    before_it = node.files()
    run = node.apply(First(path=node.path("a"), text="two"), Third(path=node.path("c"))).run
    assert node.files() == {"a": "two", "c": "x"}
    result = node.back(run)
    assert (result.status, node.files()) == (NodeStatus.OK, before_it)


def test_a_second_rollback_does_nothing_and_that_of_a_rollback_goes_forth(node: Node) -> None:
    node.apply(First(path=node.path("a"), text="one"))
    run = node.apply(First(path=node.path("a"), text="two")).run
    assert node.back().changed
    again = node.back()
    assert not again.changed
    assert again.execs == 1
    (*_, last) = node.records()
    assert last.undoes == run
    assert node.back(last.run).changed
    assert node.files() == {"a": "two"}


def test_killed_in_the_middle_of_a_rollback_it_converges(node: Node) -> None:
    flag = node.folder / "state/kill"
    script = (
        f'if [ -e {flag} ]; then rm {flag}; kill -9 "$(cat "$R/pid")"; exit 1; fi; '
        f"printf old >{node.path('c')}"
    )
    old = (
        First(path=node.path("a"), text="one"),
        Third(path=node.path("c"), text="old", script=script),
    )
    node.apply(*old)
    then = node.files()
    run = node.apply(
        First(path=node.path("a"), text="two"), Third(path=node.path("c"), text="new")
    ).run
    flag.touch()
    killed = node.back()
    assert killed.status is NodeStatus.FAILED
    assert "killed" in "; ".join((killed.reason, *killed.notes))
    assert node.files() == {"a": "one", "c": "new"}
    # Without a name it is still the run that the killed rollback was to undo.
    assert node.way().run == run
    assert node.back().status is NodeStatus.OK
    assert node.files() == then


def test_an_earlier_run_takes_what_followed_with_it(node: Node) -> None:
    node.apply(First(path=node.path("a"), text="one"))
    run = node.apply(First(path=node.path("a"), text="two")).run
    node.apply(Third(path=node.path("c")))
    node.apply(First(path=node.path("a"), text="three"))
    node.back(run)
    assert node.files() == {"a": "one"}


def test_a_run_that_had_nothing_to_do_leaves_no_record(node: Node) -> None:
    state = First(path=node.path("a"))
    node.apply(state)
    node.apply(state)
    assert len(node.records()) == 1


def test_a_removal_is_rolled_back(node: Node) -> None:
    node.apply(First(path=node.path("a"), text="one"))
    node.apply(First(path=node.path("a"), ensure="absent"))
    assert node.files() == {}
    node.back()
    assert node.files() == {"a": "one"}


def test_versions_that_no_policy_names_come_back(node: Node) -> None:
    node.apply(Versioned(path=node.path("v")))
    node.apply(Versioned(path=node.path("v"), text="2.0"))
    node.back()
    assert node.files() == {"v": "newest"}


def test_a_state_with_unknown_parameters_stays_and_says_so(node: Node) -> None:
    (node.folder / "a").write_text("somebody's")
    node.apply(First(path=node.path("a")))
    way = node.way()
    assert way.states == ()
    assert way.stays == (
        "first cannot go back: it was there before gpustate's records begin, so its parameters "
        "are unknown; it stays as it is",
    )


def test_a_secret_is_in_no_record_and_its_state_stays(node: Node) -> None:
    secret = "S3cr3t-of-a-file-91"
    masking.remember(secret)
    node.apply(First(path=node.path("a"), text="one"))
    node.apply(First(path=node.path("a"), text=secret))
    kept = [one.read_text() for one in (node.folder / "state/before").iterdir()]
    assert not any(secret in text for text in kept)
    node.apply(First(path=node.path("a"), text="two"))
    assert "contain a secret" in node.way().stays[0]


def test_a_file_that_something_else_has_changed_since_is_named(node: Node) -> None:
    node.apply(First(path=node.path("a"), text="one"))
    node.apply(First(path=node.path("a"), text="two"))
    (node.folder / "a").write_text("theirs")
    way = node.way()

    def check(states: Any, observations: Any) -> Any:
        changed = before.changed_since(way, observations)
        return RefusedError(", ".join(changed)) if changed else None

    refused = node.back(checks=(check,))
    assert (refused.status, refused.reason) == (NodeStatus.REFUSED, node.path("a"))
    assert node.files() == {"a": "theirs"}
    for text in ("one", "two"):
        (node.folder / "a").write_text(text)
        assert node.back(checks=(check,)).status is NodeStatus.OK


def test_a_file_that_follows_the_node_has_not_been_changed_by_something_else(node: Node) -> None:
    class Computed(FileState):
        """A file whose text follows from another one of the node."""

        name: ClassVar[str] = "computed"
        computed: ClassVar[tuple[str, ...]] = ("text",)

        def probe(self, node: Any) -> Seen:
            return SeenAt(node.read_text(self.path), node.read_text(f"{self.path}.facts") or "")

        def desired(self, observed: Any) -> Any:
            return replace(observed, text=None if self.absent else observed.where)

    (node.folder / "a.facts").write_text("one GPU")
    run = node.apply(Computed(path=node.path("a"))).run
    way = before.way_back(node.records(), run, {"computed": Computed})
    seen: dict[str, object] = {"computed": SeenAt("one GPU", "two GPUs")}
    view = NodeView("n", (), {}, FactsQuery().placeholder())
    assert before.changed_since(way, Observations(view, seen)) == ()
    Computed.computed = ()
    assert before.changed_since(way, Observations(view, seen)) == (node.path("a"),)


def test_a_run_is_judged_by_what_its_own_parameters_observe(node: Node) -> None:
    node.apply(Addressed(path=node.path("a"), text="one"))
    node.apply(Addressed(path=node.path("a"), text="two"))
    way = node.way()

    def check(states: Any, observations: Any) -> Any:
        changed = before.changed_since(way, observations)
        return RefusedError(", ".join(changed)) if changed else None

    (node.folder / "a").write_text("theirs")
    assert node.back(checks=(check,)).reason == node.path("a")
    (node.folder / "a").write_text("two")
    assert node.back(checks=(check,)).status is NodeStatus.OK
    assert node.files() == {"a": "one"}


def test_of_several_files_each_is_compared_with_its_own_text() -> None:
    """An interrupted rollback has restored one of them already."""

    class Several(State[Any]):
        """Files in one field, a change for each."""

        name: ClassVar[str] = "several"
        text: str = ""

        def probe(self, node: Any) -> Any:
            raise NotImplementedError

        def desired(self, observed: Any) -> Any:
            raise NotImplementedError

        def plan(self, observed: Any) -> Plan:
            rows = {path: text for path, text in observed.items() if text != self.text}
            return Plan(
                tuple(Change("files", text, self.text, path=path) for path, text in rows.items())
            )

        def apply(self, observed: Any, plan: Plan) -> Iterator[Step]:
            raise NotImplementedError

    applied: dict[str, tuple[AnyState, ...]] = {"several": (Several(text="new"),)}
    way = before.WayBack(
        "r",
        (Several(text="old"),),
        before={"several": {"files": {"/a": "old", "/b": "old"}}},
        applied=applied,
    )

    def changed(**texts: str) -> tuple[str, ...]:
        view = NodeView("n", (), {}, FactsQuery().placeholder())
        seen = {f"/{name}": text for name, text in texts.items()}
        return before.changed_since(way, Observations(view, {"several": seen}))

    assert changed(a="old", b="new") == ()
    assert changed(a="theirs", b="new") == ("/a",)
    # A rollback was killed in between, before or after it had written a file.
    applied["several"] += (Several(text="old"),)
    assert changed(a="old", b="new") == ()
    assert changed(a="theirs", b="new") == ("/a",)


def test_a_failed_node_goes_back_by_itself(node: Node) -> None:
    result = node.fail("echo 'fatal: broken' >&2; exit 3")
    (row,) = result.nodes
    assert node.files() == {"a": "one"}
    assert row.status is NodeStatus.ROLLED_BACK
    assert row.reason == (
        f"third: the script ended with 3: fatal: broken; rolled back to before run {result.run}"
    )
    assert {one.state: one.outcome for one in row.states} == {
        "first": Outcome.ROLLED_BACK,
        "third": Outcome.FAILED,
    }
    assert result.exit_code == 7
    assert "changed=0" in result.summary()
    assert node.records()[-1].undoes == result.run


class Keeps:
    """Keeps a node out of service whose change failed."""

    preview = staticmethod(NO_MAINTENANCE.preview)
    begin = staticmethod(NO_MAINTENANCE.begin)
    rebooting = staticmethod(NO_MAINTENANCE.rebooting)

    def end(self, subject: Subject, failed: str, emit: Any, stop: Any) -> tuple[str, ...]:
        return (f"here {STAYS_OUT}: {failed}",) if failed else ("here was released",)


def test_a_node_that_is_back_in_service_is_not_said_to_be_out_of_it(node: Node) -> None:
    result = node.fail(maintenance=Keeps())
    assert "here was released" in result.nodes[0].notes
    assert not any(STAYS_OUT in note for note in result.nodes[0].notes)


class Validates(First):
    """A file whose presence validates the others."""

    name: ClassVar[str] = "validates"
    validating: ClassVar[bool] = True


def test_a_failed_node_with_packages_and_a_validator_goes_back(node: Node) -> None:
    good = Validates(path=node.path("v"), text="valid")
    node.apply(Versioned(path=node.path("a"), text="one"), good)
    result = node.apply(
        Versioned(path=node.path("a"), text="two"),
        Third(path=node.path("c"), script="exit 3"),
        good,
        rollback_on_failure=True,
    )
    assert result.nodes[0].status is NodeStatus.ROLLED_BACK, result.nodes[0].reason
    assert node.files() == {"a": "one", "v": "valid"}
    ends = [event.text for event in node.events if event.kind == "finished"]
    assert ends == ["ok", "rolled back"], "one of each run"


def test_a_run_that_only_validates_is_not_the_one_to_roll_back(node: Node) -> None:
    check = Validates(path=node.path("v"), text="valid")
    change = node.apply(First(path=node.path("a"), text="one"), check)
    (node.folder / "v").write_text("due again")
    assert node.apply(check).nodes[0].status is NodeStatus.OK
    assert node.files() == {"a": "one", "v": "valid"}
    assert [one.run for one in node.records()] == [change.run]
    way = node.way()
    assert (way.run, [state.name for state in way.states]) == (change.run, ["first", "validates"])
    removal = node.apply(Validates(path=node.path("v"), ensure="absent"))
    assert node.records()[-1].run == removal.run


def test_a_rollback_whose_validation_fails_is_said_to_be_back(node: Node) -> None:
    """Its packages and files are those of before."""
    gpus, valid = node.folder / "state/gpus", node.folder / "v"
    script = f"[ -e {gpus} ] || {{ echo 'no GPU' >&2; exit 3; }}; printf x >{valid}"
    check = Validates(path=str(valid), script=script)
    gpus.parent.mkdir(exist_ok=True)
    gpus.touch()
    node.apply(Versioned(path=node.path("a"), text="one"), check)
    gpus.unlink()
    valid.write_text("due again")
    result = node.apply(
        Versioned(path=node.path("a"), text="two"),
        check,
        rollback_on_failure=True,
        maintenance=Keeps(),
    )
    (row,) = result.nodes
    assert node.files() == {"a": "one", "v": "due again"}
    assert (row.status, row.changed, result.exit_code) == (NodeStatus.FAILED, False, 3)
    assert "changed=0" in result.summary()
    assert {one.state: one.outcome for one in row.states} == {
        "versioned": Outcome.ROLLED_BACK,
        "validates": Outcome.FAILED,
    }
    failed = "validates: the script ended with 3: no GPU"
    assert row.reason == (
        f"{failed}; rolled back to before run {result.run}, and its validation failed: {failed}; "
        f"it {STAYS_OUT}"
    )


def test_a_rollback_whose_states_have_no_order_is_a_failure_of_its_node_alone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_order(*_: object) -> None:
        raise GraphError("dependency cycle: a -> b -> a")

    monkeypatch.setattr(before, "way_back", no_order)
    result = node.fail()
    assert result.nodes[0].status is NodeStatus.FAILED
    assert "; its rollback failed: dependency cycle: a -> b -> a" in result.nodes[0].reason


class Holding:
    """A maintenance that keeps a node out of service after a failure, as a scheduler does."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses
        self.held = False

    preview = NO_MAINTENANCE.preview
    rebooting = NO_MAINTENANCE.rebooting

    def begin(self, subject: Subject, emit: Any, stop: Any) -> None:
        if self.held and self.refuses:
            raise RefusedError(self.refuses)
        self.held = True

    def end(self, subject: Subject, failed: str, emit: Any, stop: Any) -> tuple[str, ...]:
        self.held = bool(failed)
        return (f"here {STAYS_OUT}: {failed}",) if failed else ()


def test_a_node_that_took_its_change_back_itself_is_released(node: Node) -> None:
    node.apply(First(path=node.path("a"), text="one"))
    holding = Holding()
    undone = f'roll_back "{node.path("a")}"; exit 3'
    result = node.apply(
        First(path=node.path("a"), text="two", script=undone),
        rollback_on_failure=True,
        maintenance=holding,
    )
    (row,) = result.nodes
    assert (row.status, holding.held, out_of_service(row)) == (NodeStatus.ROLLED_BACK, False, ())
    assert row.reason.endswith(f"; rolled back to before run {result.run}")
    assert [one.changed for one in node.records()] == [("first",), ()]


def test_a_node_on_which_nothing_of_the_change_began_is_released(node: Node) -> None:
    holding = Holding()

    def full(self: Any, program: Any) -> None:
        raise StepFailed("the disk is full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Link, "upload", full)
        state = First(path=node.path("a"))
        (row,) = node.apply(state, rollback_on_failure=True, maintenance=holding).nodes
    assert node.records() == ()
    assert (row.status, holding.held, out_of_service(row)) == (NodeStatus.ROLLED_BACK, False, ())
    assert row.reason.startswith("the disk is full; rolled back")


def test_a_node_that_cannot_be_returned_to_service_keeps_its_change(node: Node) -> None:
    class Away(Holding):
        def end(self, subject: Subject, failed: str, emit: Any, stop: Any) -> tuple[str, ...]:
            raise UnreleasedError("the API server does not answer; here stays out of service")

    state = First(path=node.path("a"), text="one")
    result = node.apply(state, rollback_on_failure=True, maintenance=Away())
    (row,) = result.nodes
    assert (row.status, result.exit_code) == (NodeStatus.FAILED, 1)
    assert "does not answer" in row.reason
    assert "rolled back" not in row.reason
    assert len(node.records()) == 1, "there was no second run"


def test_a_rollback_that_is_refused_says_that_the_node_stays_out_of_service(node: Node) -> None:
    (row,) = node.fail(maintenance=Holding(refuses="a/train stays")).nodes
    assert row.status is NodeStatus.FAILED
    assert row.reason == (
        "third: the script ended with 3: no output; its rollback failed: refused: a/train stays; "
        "it stays out of service"
    )
    assert out_of_service(row) == (f"here {STAYS_OUT}: third: the script ended with 3: no output",)


def test_a_node_whose_way_back_is_refused_stays_as_it_is_and_out_of_service(node: Node) -> None:
    def refuse(where: InventoryNode, way: before.WayBack) -> None:
        raise RefusedError(f"{where.name}: {', '.join(state.name for state in way.states)}")

    (row,) = node.fail(maintenance=Holding(), back_check=refuse).nodes
    assert node.files()["a"] == "two"
    assert row.status is NodeStatus.FAILED
    assert row.reason.endswith(f"its rollback failed: here: first, third; it {STAYS_OUT}")


def test_a_state_that_no_run_changed_is_left_out_where_what_it_needs_goes() -> None:
    """The runtime is not on the node, so its state had nothing to do."""

    class Runtime(FileState):
        name: ClassVar[str] = "runtime"
        needs: ClassVar[tuple[str, ...]] = ("first",)

    def names(*runs: RunBefore) -> set[tuple[str, bool]]:
        way = before.way_back(runs, "r", {**KINDS, "runtime": Runtime})
        return {(state.name, state.absent) for state in way.states}

    settled = StateBefore({}, settled=True, observed={"text": None})
    rows = {"first": StateBefore({}, absent=True), "runtime": settled, "third": settled}
    assert names(RunBefore("r", states=rows)) == {("first", True), ("third", False)}
    stays = {**rows, "first": settled}
    assert ("runtime", False) in names(RunBefore("r", states=stays))
    later = RunBefore("s", states={"runtime": StateBefore({}, observed={"text": None})})
    assert ("runtime", False) in names(RunBefore("r", states=rows), later)


class Waits(FileState):
    """A file that is not written where the third failed."""

    name: ClassVar[str] = "waits"
    needs: ClassVar[tuple[str, ...]] = ("third",)


def test_a_record_names_what_the_run_changed(node: Node) -> None:
    path = node.path("b")
    node.apply(
        First(path=node.path("a")),
        Second(path=path, script=f'keep "{path}"; echo x >"{path}"; roll_back "{path}"; exit 3'),
        Third(path=node.path("c"), script="exit 3"),
        Waits(path=node.path("d")),
    )
    (record,) = node.records()
    assert record.changed == ("first", "third")
    assert set(record.states) == {"first", "second", "third", "waits"}


def test_without_the_option_a_failed_node_stays_as_it_is(node: Node) -> None:
    result = node.apply(
        First(path=node.path("a"), text="two"), Third(path=node.path("c"), script="exit 3")
    )
    assert result.exit_code == 1
    assert node.files() == {"a": "two"}


def test_a_node_that_nothing_was_changed_on_is_not_rolled_back(node: Node) -> None:
    node.apply(First(path=node.path("a"), text="one"))
    result = node.apply(
        First(path=node.path("a"), text="two"),
        rollback_on_failure=True,
        planned={"here": {"first": {"text": "other"}}},
    )
    assert result.nodes[0].status is NodeStatus.REFUSED
    assert node.files() == {"a": "one"}


def test_a_rollback_that_fails_says_both(node: Node) -> None:
    (node.folder / "a").write_text("somebody's")
    result = node.apply(
        First(path=node.path("a"), text="two"),
        Third(path=node.path("c"), script="exit 3"),
        rollback_on_failure=True,
    )
    (row,) = result.nodes
    assert row.status is NodeStatus.FAILED
    assert "; its rollback failed: first cannot go back: " in row.reason
    assert result.exit_code == 1


class Fails(FileState):
    """A file that only one of two nodes can have."""

    name: ClassVar[str] = "fails"

    def apply(self, observed: Seen, plan: Plan) -> Iterator[Step]:
        if self.absent:
            yield ops.Run(f'rm -f "{self.path}.${{G##*/}}"', "its removal")
            return
        yield ops.Run(
            f'case $G in *bad*) exit 3 ;; esac; echo -n x >"{self.path}.${{G##*/}}"', "it"
        )

    def probe(self, node: Any) -> Seen:
        return Seen(node.read_text(f"{self.path}.{node.name}"))


def test_others_of_the_failed_wave_go_back_and_earlier_ones_stay(tmp_path: Path) -> None:
    def named(name: str) -> InventoryNode:
        folder = str(tmp_path / name)
        return InventoryNode(
            name,
            vars={"gpustate_state_folder": folder, "gpustate": {"first": {"path": f"{folder}.a"}}},
            connection=Connection(kind="local"),
        )

    nodes = tuple(named(name) for name in ("early", "good", "bad"))
    policy = Policy(First(text="new"), Fails(path=str(tmp_path / "f"), ensure="present"))
    done = fleet.run(
        fleet.Request(
            policy,
            Inventory("test", nodes),
            apply=True,
            turns=Waves(Rollout((Place("early"), Place("good", 1), Place("bad", 1)), slots=2)),
            rollback_on_failure=True,
            known={"first", "fails"},
        )
    )
    rows = {node.name: node for node in done.nodes}
    assert {name: row.status for name, row in rows.items()} == {
        "early": NodeStatus.OK,
        "good": NodeStatus.ROLLED_BACK,
        "bad": NodeStatus.ROLLED_BACK,
    }
    assert rows["good"].reason.startswith("bad failed in the same wave; rolled back")
    assert sorted(one.name for one in tmp_path.iterdir() if one.is_file()) == ["early.a", "f.early"]
    assert done.exit_code == 7


def test_what_could_not_be_observed_stays_unless_it_was_recorded() -> None:
    rows = {"first": StateBefore({"text": "two"})}
    way = before.way_back((RunBefore("r", states=rows),), "r", KINDS)
    assert "it could not be observed before the run" in way.stays[0]
    earlier = RunBefore("q", states={"first": StateBefore({"text": "one"})})
    way = before.way_back((earlier, RunBefore("r", states=rows)), "r", KINDS)
    assert [getattr(state, "text", "") for state in way.states] == ["one"]


def test_what_was_observed_before_decides_where_parameters_cannot() -> None:
    class Adapting(FileState):
        """A file that may not have been there, whatever its parameters say."""

        name: ClassVar[str] = "adapting"

        def as_before(self, wanted: Seen, observed: Seen, before: Mapping[str, Any]) -> Seen:
            return wanted if before["text"] else Seen(None)

    def wanted(text: str | None, *, settled: bool = False) -> object:
        row = StateBefore(
            {"text": "two"}, settled=settled, pinned={"text": "one"}, observed={"text": text}
        )
        runs = (RunBefore("r", states={"adapting": row}),)
        way = before.way_back(runs, "r", {"adapting": Adapting})
        return way.states[0].desired(Seen("two"))

    assert wanted(None) == Seen(None)
    assert wanted("one") == Seen("one")
    # The run left it as it was.
    assert wanted(None, settled=True) == Seen("one")
    # It could not be observed before the run, and an earlier one is recorded.
    runs = tuple(RunBefore(n, states={"adapting": StateBefore({"text": n})}) for n in "qr")
    (state, *_) = before.way_back(runs, "r", {"adapting": Adapting}).states
    assert state.desired(Seen("r")) == Seen("q")


@pytest.mark.parametrize("refused", [True, False])
def test_a_state_that_could_not_choose_yet_when_a_run_began_goes_back(
    node: Node, refused: bool
) -> None:
    """As a driver whose repository the same run adds: it plans nothing, and is changed afterwards."""

    class Waiting(FileState):
        """A file that can only be chosen when the first one says so."""

        name: ClassVar[str] = "waiting"
        needs: ClassVar[tuple[str, ...]] = ("first",)
        known_after: ClassVar[tuple[str, ...]] = ("first",)

        def desired(self, observed: Seen) -> Seen:
            return super().desired(observed) if self.absent or self._chosen() else observed

        def refuse(self, observed: Seen) -> str | None:
            return "nothing to choose from" if refused and not self._chosen() else None

        def _chosen(self) -> bool:
            first = Path(node.path("a"))
            return self.text == "one" or (first.exists() and first.read_text() == "two")

    if not refused:
        Waiting.as_before = lambda self, wanted, observed, before: wanted  # type: ignore[method-assign]
    for text in ("one", "two"):
        states = (First(path=node.path("a"), text=text), Waiting(path=node.path("b"), text=text))
        run = node.apply(*states).run
    assert node.files() == {"a": "two", "b": "two"}
    (*_, record) = node.records()
    assert not record.states["waiting"].settled
    way = before.way_back(node.records(), run, {**KINDS, "waiting": Waiting})
    assert {state.name: getattr(state, "text", "") for state in way.states} == {
        "first": "one",
        "waiting": "one",
    }


def test_what_a_run_added_goes_first_in_reverse_then_the_rest_goes_back() -> None:
    class Dependent(First):
        name: ClassVar[str] = "dependent"
        needs: ClassVar[tuple[str, ...]] = ("second",)
        after: ClassVar[tuple[str, ...]] = ("first",)

    states = [
        First(), Second(ensure="absent"), Dependent(ensure="absent"), Versioned(),
    ]  # fmt: skip
    names = [state.name for state in fleet.ordered(states)]
    assert names[:2] == ["dependent", "second"]
    assert set(names[2:]) == {"first", "versioned"}


@given(st.binary(max_size=60))
def test_a_damaged_record_is_left_out(data: bytes) -> None:
    whole = RunBefore("r", states={"first": StateBefore({"text": "x"})}).text()
    assert before.read(whole) is not None
    text = data.decode("utf-8", "replace")
    assert before.read(whole[: len(data)] + text) is None or text in ("", whole[len(data) :])
    assert before.read(json.dumps({"format": before.FORMAT, "states": text})) is None


TEXTS = st.sampled_from((None, "one", "two", "three"))


@settings(max_examples=5)
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=2, max_size=4), st.data())
def test_apply_then_rollback_leads_to_the_observation_before(
    tmp_path_factory: pytest.TempPathFactory,
    wishes: list[tuple[str | None, str | None]],
    data: st.DataObject,
) -> None:
    """Any sequence of runs, then back to before any of them: the files are as they were then."""
    node = Node(tmp_path_factory.mktemp("back"))
    runs: dict[str, dict[str, str]] = {}
    for one, three in wishes:
        then = node.files()
        states = [
            kind(path=node.path(name), text=text or "", ensure="present" if text else "absent")
            for kind, name, text in ((First, "a", one), (Third, "c", three))
        ]
        result = node.apply(*states)
        if any(record.run == result.run for record in node.records()):
            runs[result.run] = then
    if not runs:
        return
    run = data.draw(st.sampled_from(sorted(runs)))
    assert node.back(run).status is NodeStatus.OK
    assert node.files() == runs[run]


def test_workloads_leave_and_nodes_take_turns_as_in_the_run_that_is_undone(node: Node) -> None:
    drain = DrainPolicy(wait_selector="app=train", wait_timeout_s=60.0)
    policy = Policy(Third(path=node.path("a"), text="1"), drain=drain, rollout={"serial": "2,10%"})
    fleet.run(fleet.Request(policy, Inventory("test", (node.node,)), apply=True, run="r1"))
    way = node.way()
    assert rollbacks.drains_of({"here": way}) == {"here": drain}
    assert rollbacks.rollout_of({"here": way}).serial == ("2", "10%")
    # A rollback of the rollback does, too.
    request = fleet.Request(
        Policy(*way.states, rollout=way.rollout),
        Inventory("test", (node.node,)),
        apply=True,
        run="r2",
        drains={"here": drain},
    )
    fleet.run(request)
    assert rollbacks.drains_of({"here": node.way("r2")}) == {"here": drain}


def test_a_drain_of_a_newer_release_is_left_out() -> None:
    way = before.WayBack("r1", drain={"of_tomorrow": 1})
    assert rollbacks.drains_of({"a": way, "b": before.WayBack("r2")}) == {"b": DrainPolicy()}


def test_a_resumed_run_and_the_one_that_it_continued_go_back_together() -> None:
    """Between them the node was half changed; a node that only the second one changed goes back by either name."""
    first, begun = RunBefore("r1"), RunBefore("r2")
    again = RunBefore("r3", resumes="r2")
    once_more = RunBefore("r4", resumes="r3")
    read = before.read(again.text())
    assert read is not None
    assert read.resumes == "r2"
    half = (first, begun, again, once_more)
    assert [before.target(half, run) for run in ("r1", "r2", "r3", "r4", "")] == ["r1", *["r2"] * 4]
    other = (first, again)
    assert [before.target(other, run) for run in ("r2", "r3", "", "r9")] == ["r3", "r3", "r3", ""]
    undo = RunBefore("r5", undoes="r3")
    assert before.target((*half, undo)) == "r2"
    assert before.target((*half, undo), "r5") == "r5"
