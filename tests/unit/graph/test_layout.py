"""Drawings: nothing over anything else, what comes first on the left, no line too many."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpustate import registry
from gpustate.core.policy import build as build_state
from gpustate.graph.about import About, of_states
from gpustate.graph.build import Edge, Graph, build
from gpustate.graph.layout import layout, reduced
from gpustate.graph.svg import as_svg

NAMES = [f"s{number}" for number in range(9)]
WHYS = st.sampled_from(("needs", "after", "before", "known after"))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    ranks = draw(st.permutations(NAMES))
    pairs = [(a, b) for n, a in enumerate(ranks) for b in ranks[n + 1 :]]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=24))
    return Graph(list(NAMES), [Edge(a, b, draw(WHYS)) for a, b in chosen])


def reach(edges: list[Edge]) -> set[tuple[str, str]]:
    found = {(e.first, e.then) for e in edges}
    while True:
        more = {(a, d) for a, b in found for c, d in found if b == c} - found
        if not more:
            return found
        found |= more


@given(graphs())
@settings(max_examples=60)
def test_lines_that_others_imply_are_left_out_and_no_others(graph: Graph) -> None:
    kept = reduced(graph)
    assert reach(kept) == reach(graph.edges)
    for edge in kept:
        assert (edge.first, edge.then) not in reach([e for e in kept if e != edge])


@given(graphs())
@settings(max_examples=60)
def test_no_box_is_over_another_and_what_comes_first_is_on_the_left(graph: Graph) -> None:
    sizes = {name: (60.0 + 20 * n, 34.0) for n, name in enumerate(NAMES)}
    made = layout(graph, sizes)
    assert set(made.boxes) == set(NAMES)
    for a, b in combinations(NAMES, 2):
        (ax, ay), (bx, by) = made.boxes[a], made.boxes[b]
        apart_x = ax + sizes[a][0] <= bx or bx + sizes[b][0] <= ax
        apart_y = ay + 34 <= by + 1e-6 or by + 34 <= ay + 1e-6
        assert apart_x or apart_y
    for edge in graph.edges:
        assert made.boxes[edge.first][0] + sizes[edge.first][0] < made.boxes[edge.then][0]
    for name in NAMES:
        assert made.boxes[name][0] + sizes[name][0] <= made.width + 1e-6
        assert -1e-6 <= made.boxes[name][1] <= made.height - 34 + 1e-6


def test_the_order_of_writing_changes_no_drawing() -> None:
    edges = [
        Edge("a", "b", "needs"),
        Edge("a", "c", "after"),
        Edge("b", "d", "needs"),
        Edge("c", "d", "after"),
    ]
    assert as_svg(Graph(list("abcd"), edges)) == as_svg(Graph(list("dcba"), edges[::-1]))


def test_nothing_is_drawn_of_nothing() -> None:
    assert layout(Graph(), {}).boxes == {}
    assert "Order of 0 states" in as_svg(Graph())


def test_a_drawing_of_all_states_tells_of_each_why_it_is_there() -> None:
    states = [build_state(cls, {}) for cls in registry.states().values()]
    graph = build(states, registry.names())
    root = ElementTree.fromstring(as_svg(graph, of_states(states)))
    tips = [e.text or "" for e in root.iter() if e.tag.endswith("title")][1:]
    assert len(tips) == len(states)
    assert any(tip.startswith("driver.") and "needs driver-repository" in tip for tip in tips)


def test_a_drawing_inside_a_page_has_no_style_of_its_own() -> None:
    graph = Graph(["a"])
    assert "<style>" in as_svg(graph, {"a": About("a")})
    assert "<style>" not in as_svg(graph, {"a": About("a")}, alone=False)
