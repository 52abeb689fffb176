"""Order: every edge kept, the same for any order of writing, cycles explained."""

from __future__ import annotations

import re
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from filestates import file_state
from hypothesis import given
from hypothesis import strategies as st

from gpustate.core.state import AnyState
from gpustate.errors import GraphError
from gpustate.graph.build import Edge, Graph, build, reverse
from gpustate.graph.order import order

NAMES = [f"s{number}" for number in range(8)]
WHYS = st.sampled_from(("needs", "after", "before", "known after"))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Graphs without cycles, their nodes in any order."""
    ranks = draw(st.permutations(NAMES))
    pairs = [(a, b) for n, a in enumerate(ranks) for b in ranks[n + 1 :]]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=20))
    return Graph(list(draw(st.permutations(NAMES))), [Edge(a, b, draw(WHYS)) for a, b in chosen])


@given(graphs())
def test_every_edge_is_kept_and_every_node_comes_once(graph: Graph) -> None:
    found = order(graph)
    assert sorted(found) == NAMES
    for edge in graph.edges:
        assert found.index(edge.first) < found.index(edge.successor)


@given(graphs(), st.randoms(use_true_random=False))
def test_the_order_of_writing_changes_nothing(graph: Graph, random: Random) -> None:
    nodes, edges = list(graph.nodes), list(graph.edges)
    random.shuffle(nodes)
    random.shuffle(edges)
    assert order(Graph(nodes, edges)) == order(graph)


@given(graphs())
def test_the_reverse_keeps_every_edge_backwards(graph: Graph) -> None:
    found = order(reverse(graph))
    for edge in graph.edges:
        assert found.index(edge.successor) < found.index(edge.first)


@given(graphs(), st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
def test_a_cycle_is_explained_with_only_the_states_that_take_part_in_it(
    graph: Graph, ring: list[str]
) -> None:
    edges = [Edge(a, b, "needs") for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)]
    broken = Graph(graph.nodes, [*graph.edges, *edges])
    with pytest.raises(GraphError, match="dependency cycle") as caught:
        order(broken)
    told = re.findall(r"\bs\d\b", caught.value.message.split("cycle: ")[1])
    path = re.sub(r" \([^)]*\)", "", caught.value.message.split("cycle: ")[1]).split(" -> ")
    assert path[0] == path[-1]
    assert set(told) == set(path)
    assert len(path) - 1 == len(set(path)), "nobody is named twice"
    pairs = {(edge.first, edge.successor) for edge in broken.edges}
    assert all(pair in pairs for pair in pairwise(path))


def states(*rows: tuple[str, dict[str, Any]]) -> list[AnyState]:
    return [file_state(name, **edges)() for name, edges in rows]


def test_a_cycle_says_why_each_waits_for_the_other() -> None:
    graph = build(
        states(
            ("driver", {"needs": ("nouveau",)}),
            ("nouveau", {"after": ("cdi",)}),
            ("cdi", {"known_after": ("driver",)}),
            ("bystander", {"needs": ("cdi",)}),
        )
    )
    with pytest.raises(GraphError) as caught:
        order(graph)
    assert str(caught.value) == (
        "dependency cycle: cdi -> nouveau (nouveau after cdi) "
        "-> driver (driver needs nouveau) -> cdi (cdi known after driver); remove one of these dependencies"
    )


def test_a_cycle_through_before_says_before() -> None:
    graph = build(states(("a", {"before": ("b",)}), ("b", {"before": ("a",)})))
    with pytest.raises(GraphError, match=re.escape("a -> b (a before b) -> a (b before a)")):
        order(graph)


def test_a_name_that_no_state_has_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(GraphError) as caught:
        build(
            states(("cdi", {"needs": ("drivr",)})),
            state_names={"cdi", "driver", "nouveau"},
            places={"cdi": "policy.py:3"},
        )
    assert str(caught.value) == (
        "policy.py:3: state 'cdi': needs 'drivr': unknown state; did you mean 'driver'"
    )


def test_a_name_like_no_other_lists_those_there_are() -> None:
    with pytest.raises(GraphError, match=r"known states: cdi, driver$"):
        build(states(("cdi", {"before": ("zzzzzz",)})), state_names={"cdi", "driver"})


def test_registered_states_that_the_policy_lacks_are_no_error_and_no_edge() -> None:
    graph = build(states(("cdi", {"needs": ("driver",)})), state_names={"cdi", "driver"})
    assert (graph.nodes, graph.edges) == (["cdi"], [])


def test_two_states_have_one_edge_and_the_strongest_reason() -> None:
    graph = build(states(("a", {}), ("b", {"after": ("a",), "needs": ("a",)})))
    assert graph.edges == [Edge("a", "b", "needs")]


def test_proofs_come_after_everything_that_is_no_proof() -> None:
    proof = file_state("a-proof")
    proof.validating = True
    graph = build([proof(), *states(("z-last", {}))])
    assert order(graph) == ["z-last", "a-proof"]


def test_an_empty_policy_has_an_empty_order() -> None:
    assert order(build([])) == []
