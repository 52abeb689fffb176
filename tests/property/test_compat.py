"""The matrix on random facts: it never breaks, and what it is sure of stays so when more is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from shares import tries

from gpustate import compat
from gpustate.compat.facts import FACTS, Fact, find, value
from gpustate.compat.versions import parse
from gpustate.errors import UsageError

RULES = compat.load()
MANY = tries(2000, 60)
#: What the tests of the rules know of each fact: values near the edges.
SEEN: dict[str, list[object]] = {}
for _rule in RULES:
    for _facts in _rule.tests.values():
        assert isinstance(_facts, dict)
        for _name, _written in _facts.items():
            SEEN.setdefault(_name, []).append(_written)


def values(fact: Fact) -> st.SearchStrategy[object]:
    """Values that a fact may have."""
    near = st.sampled_from(SEEN[fact.name]) if fact.name in SEEN else st.nothing()
    if fact.kind == "version":
        part = st.integers(0, 700)
        made = st.lists(part, min_size=1, max_size=4).map(lambda p: ".".join(map(str, p)))
        return near | made | st.just("none")
    if fact.kind == "words" and fact.words:
        return near | st.lists(st.sampled_from(fact.words), min_size=1, max_size=3, unique=True)
    if fact.kind == "flag":
        return st.booleans()
    return near | (st.integers(0, 500) if fact.kind == "number" else st.sampled_from(["debian"]))


ANY = st.lists(
    st.sampled_from(sorted(FACTS)).flatmap(
        lambda name: st.tuples(st.just(name), values(FACTS[name]))
    ),
    max_size=25,
).map(dict)


def complaint(read: Callable[[], object]) -> str:
    """What is said of something that cannot be read; nothing when it can."""
    try:
        read()
    except UsageError as error:
        return str(error)
    return ""


@given(known=ANY, more=ANY)
@settings(max_examples=MANY, deadline=None)
def test_knowing_more_takes_back_nothing_that_was_told(
    known: dict[str, Any], more: dict[str, Any]
) -> None:
    less = compat.check(compat.facts(known), rules=RULES)
    # What follows from a fact (an architecture from a GPU) is not a new knowledge.
    whole = compat.check({**compat.facts(more), **less.facts}, rules=RULES)
    for before, after in zip(less.results, whole.results, strict=True):
        if before.holds is not None:
            assert after.holds is before.holds, before.rule.id
        else:
            assert before.missing, before.rule.id


@given(known=ANY, digits=st.lists(st.integers(0, 300), min_size=1, max_size=3))
@settings(max_examples=MANY, deadline=None)
def test_the_rest_of_a_version_takes_back_nothing_that_was_told(
    known: dict[str, Any], digits: list[int]
) -> None:
    known["driver"] = "580"
    exact = {**known, "driver": ".".join(map(str, [580, *digits]))}
    before = compat.check(compat.facts(known), rules=RULES)
    after = compat.check(compat.facts(exact), rules=RULES)
    for part, whole in zip(before.results, after.results, strict=True):
        if part.holds is not None:
            assert whole.holds is part.holds, part.rule.id


@given(name=st.text(max_size=30), written=st.text(max_size=40))
@settings(max_examples=MANY, deadline=None)
def test_whatever_is_written_is_a_fact_or_one_line(name: str, written: str) -> None:
    said = complaint(lambda: compat.facts({name: written}))
    assert "\n" not in said


@given(name=st.sampled_from(sorted(FACTS)), written=st.text(max_size=40))
@settings(max_examples=MANY, deadline=None)
def test_whatever_is_written_for_a_fact_is_a_value_or_one_line(name: str, written: str) -> None:
    said = complaint(lambda: value(find(name), written))
    assert not said or said.startswith(f"{name} is ")


@given(
    left=st.lists(st.integers(0, 999), min_size=1, max_size=4),
    right=st.lists(st.integers(0, 999), min_size=1, max_size=4),
)
def test_comparing_is_the_other_way_round_from_the_other_side(
    left: list[int], right: list[int]
) -> None:
    a, b = (parse(".".join(map(str, one)), 1) for one in (left, right))
    assert {-sign for sign in a.signs(b)} == b.signs(a)
    assert (a.signs(b) == {0}) is a.same(b)
