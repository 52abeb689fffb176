"""Conditions: they hold or not, and survive as their text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustate.core import where
from gpustate.core.facts import NodeFacts, NodeView
from gpustate.core.where import Condition
from gpustate.errors import PolicyError
from gpustate.formats.pci_gpus import PciGpu

H100 = PciGpu("0000:1b:00.0", "2330", "030200", "nvidia")
SWITCH = PciGpu("0000:85:00.0", "22a3", "068000", None)
FACTS = NodeFacts(os_id="debian", os_version="12", runtimes=("containerd",), pci=(H100, SWITCH))
VIEW = NodeView("gpu-07", ("inference", "dc1"), {"rack": 7, "spare": True, "tier": "a"}, FACTS)

CASES = [
    ("group('inference')", True),
    ("group('inf*')", True),
    ("group('all')", True),
    ("group('dc2')", False),
    ("node('gpu-0?')", True),
    ("node('cpu-*')", False),
    ("var('rack', 7)", True),
    ("var('rack', 8)", False),
    ("var('spare')", True),
    ("var('spare', True)", True),
    ("var('tier', 'a')", True),
    ("var('none', False)", False),
    ("distribution('debian12')", True),
    ("distribution('ubuntu*')", False),
    ("runtime('containerd')", True),
    ("runtime('crio')", False),
    ("architecture('hopper')", True),
    ("architecture('ampere')", False),
    ("var('rack', -7)", False),
    ("var('unknown', None)", True),
    (r"group('it\'s') | group('\\')", False),
    ("gpu", True),
    ("mig_capable", True),
    ("nvswitch", True),
    ("~gpu", False),
    ("gpu & ~nvswitch", False),
    ("~gpu | nvswitch", True),
    ("~(gpu & nvswitch)", False),
    ("gpu & nvswitch | ~gpu", True),
    ("~gpu & nvswitch | gpu", True),
    (' ( "x" )'.replace('"x"', 'group("inference")'), True),
]


@pytest.mark.parametrize(("text", "holds"), CASES)
def test_a_condition_holds_or_not(text: str, holds: bool) -> None:
    condition = where.parse(text)
    assert condition.holds(VIEW) is holds
    again = where.parse(condition.text)
    assert again == condition
    assert again.holds(VIEW) is holds


def test_nothing_holds_on_a_node_of_which_nothing_is_known() -> None:
    empty = NodeView("", (), {}, NodeFacts())
    for name in ("gpu", "mig_capable", "nvswitch"):
        assert not where.parse(name).holds(empty)
        assert where.parse(f"~{name}").holds(empty)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "condition '' ends too early"),
        ("   ", "ends too early"),
        ("gpu &", "condition 'gpu &' ends too early"),
        ("~", "ends too early"),
        ("gpu gpu", "condition 'gpu gpu' goes on with 'gpu' after its end"),
        ("gpu)", "goes on with ')' after its end"),
        ("(gpu", "ends too early"),
        ("(gpu|gpu,", "lacks a closing parenthesis"),
        ("group", "ends too early"),
        ("group &", "group wants an argument in parentheses"),
        ("group()", "')' is not a value"),
        ("group('a'", "ends too early"),
        ("group('a' 'b')", "expected a comma or a closing parenthesis"),
        ("group('a', 'b')", "wrong number of values for group"),
        ("group(7)", "group wants its value in quotes"),
        ("var(7, 7)", "var wants a name in quotes"),
        ("group(a)", "'a' is not a value"),
        ("group('a)", 'is not understood at "\'a)"'),
        ("gpu & €", "is not understood at ' €'"),
        (
            "runtime('dockr')",
            "container runtime 'dockr', which there is not; did you mean 'docker'",
        ),
        (
            "architecture('7')",
            "GPU architecture '7', which there is not; there are kepler, maxwell",
        ),
        ("gpus", "has no meaning at 'gpus'; known: architecture(...), distribution(...), gpu"),
        ("'gpu'", "has no meaning at \"'gpu'\""),
    ],
)
def test_where_a_condition_stops_making_sense_is_shown(text: str, told: str) -> None:
    with pytest.raises(PolicyError) as caught:
        where.parse(text)
    assert told in str(caught.value)


@given(st.text(max_size=60) | st.text("gpu~&|()', \"01Tnode", max_size=40))
def test_any_text_is_a_condition_or_a_policy_error(text: str) -> None:
    try:
        condition = where.parse(text)
    except PolicyError:
        return
    assert isinstance(condition.holds(VIEW), bool)


def test_a_condition_nested_without_end_is_a_policy_error() -> None:
    for text in ("(" * 50_000, "~" * 50_000 + "gpu"):
        with pytest.raises(PolicyError):
            where.parse(text)


@pytest.mark.parametrize("value", [1.5, ["a"], {}])
def test_a_value_that_would_not_survive_as_text_is_an_error(value: object) -> None:
    with pytest.raises(PolicyError, match="a condition compares with text, whole numbers"):
        where.var("x", value)


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
simple: st.SearchStrategy[Condition] = st.one_of(
    st.sampled_from((where.gpu, where.mig_capable, where.nvswitch)),
    names.map(where.group),
    names.map(where.node),
    st.builds(where.var, names, st.none() | st.booleans() | st.integers(-99, 99) | names),
)


def joined(inner: st.SearchStrategy[Condition]) -> st.SearchStrategy[Any]:
    two = st.tuples(inner, inner)
    return st.one_of(
        two.map(lambda c: c[0] & c[1]), two.map(lambda c: c[0] | c[1]), inner.map(lambda c: ~c)
    )


@given(st.recursive(simple, joined, max_leaves=6))
def test_what_was_built_in_python_survives_as_its_text(condition: Condition) -> None:
    again = where.parse(condition.text)
    assert again == condition
    assert again.holds(VIEW) is condition.holds(VIEW)
