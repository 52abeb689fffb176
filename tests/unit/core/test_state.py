"""The contract's own parts: differences, costs, and what a state says of itself."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from filestates import FileState, Seen, file_state
from pydantic import ValidationError

from gpustate import Disruption, Plan, diff, where
from gpustate.core.change import Change


@dataclass(frozen=True, slots=True)
class Two:
    text: str | None
    names: tuple[str, ...] = ()


def test_only_fields_that_differ_are_changes() -> None:
    assert diff(Two("a", ("x",)), Two("a", ("x",))) == Plan()
    assert diff(Two("a"), Two("b", ("x",))).changes == (
        Change("text", "a", "b"),
        Change("names", [], ["x"]),
    )


def test_each_field_has_its_own_cost_reason_path_and_secrecy() -> None:
    plan = diff(
        Two("a"),
        Two("b", ("x",)),
        costs={"text": Disruption.DRAIN},
        why={"names": "asked for"},
        paths={"text": "/etc/x"},
        secret=frozenset({"names"}),
        notes=("n",),
    )
    assert plan.changes == (
        Change("text", "a", "b", Disruption.DRAIN, path="/etc/x"),
        Change("names", [], ["x"], why="asked for", secret=True),
    )
    assert plan.notes == ("n",)
    assert plan.fields == {"text", "names"}
    assert plan.disruption is Disruption.DRAIN


def test_a_plan_is_true_when_something_changes() -> None:
    assert not Plan(notes=("only a word",))
    assert not Plan(refusal="no")
    assert Plan((Change("a", 1, 2),))
    assert Plan().disruption is Disruption.NONE


def test_disruptions_have_an_order_and_words() -> None:
    assert [level.word for level in sorted(Disruption)] == [
        "none",
        "reload",
        "restart",
        "drain",
        "reset",
        "reboot",
    ]
    assert all(Disruption.parse(level.word) is level for level in Disruption)
    with pytest.raises(
        ValueError, match="'reebot' is not a disruption level \\(one of none, reload"
    ):
        Disruption.parse("reebot")


def test_a_state_is_frozen_closed_and_strict() -> None:
    state = FileState(path="/x")
    with pytest.raises(ValidationError, match="frozen"):
        state.path = "/y"
    for wrong in ({"pth": "/x"}, {"path": 7}, {"ensure": "gone"}):
        with pytest.raises(ValidationError):
            FileState(**wrong)  # type: ignore[arg-type]


def test_a_condition_may_be_given_as_text() -> None:
    state = FileState(only="group('a') & gpu")  # type: ignore[arg-type]
    assert state.only == where.group("a") & where.gpu


def test_a_state_knows_what_it_observes() -> None:
    assert FileState.observation_type() is Seen
    assert file_state("other").observation_type() is Seen


def test_what_is_not_overridden_does_nothing() -> None:
    state = FileState(path="/x", text="x")
    assert state.refuse(Seen(None)) is None
    assert state.reboot_blocker(Seen(None)) is None
    assert state.verify(Seen("x")) == state.plan(Seen("x")) == Plan()
    assert not state.absent
    assert FileState(ensure="absent").absent
