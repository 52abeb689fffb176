"""Drawings of one small graph, as they are printed."""

from __future__ import annotations

from textwrap import dedent

from gpustate.graph import draw
from gpustate.graph.about import About, of_states
from gpustate.graph.build import Edge, Graph
from gpustate.states.nouveau import NouveauBlacklisted

GRAPH = Graph(
    ["validator", "driver", "nouveau", "container-toolkit"],
    [
        Edge("nouveau", "driver", "before"),
        Edge("driver", "container-toolkit", "after"),
        Edge("driver", "validator", "known after"),
        Edge("container-toolkit", "validator", "needs"),
    ],
)


def golden(text: str) -> str:
    return dedent(text).lstrip("\n")


def test_as_text_it_says_what_each_state_waits_for() -> None:
    about = About("driver", "The driver is there.", "site.py:12", "group('gpu')", absent=True)
    assert draw.as_text(GRAPH, {"driver": about}).splitlines() == [
        " 1. nouveau",
        " 2. driver             after nouveau",
        "    The driver is there.",
        "    set at site.py:12; only where group('gpu'); to be removed",
        " 3. container-toolkit  after driver",
        " 4. validator          needs container-toolkit; known after driver",
    ]


def test_as_data_it_is_sorted_and_versioned() -> None:
    assert draw.as_data(GRAPH) == {
        "format": "gpustate.graph/1",
        "order": ["nouveau", "driver", "container-toolkit", "validator"],
        "edges": [
            {"first": "container-toolkit", "then": "validator", "why": "needs"},
            {"first": "driver", "then": "container-toolkit", "why": "after"},
            {"first": "driver", "then": "validator", "why": "known after"},
            {"first": "nouveau", "then": "driver", "why": "before"},
        ],
    }


def test_as_data_it_tells_of_each_state_what_it_is_and_why_it_is_there() -> None:
    about = About(
        "validator", "Proven.", "site.py:12", left_out="not in group gpu", validating=True
    )
    assert draw.as_data(GRAPH, {"validator": about})["states"] == [
        {
            "state": "validator",
            "about": "Proven.",
            "why": {"needs": ["container-toolkit"], "known after": ["driver"]},
            "place": "site.py:12",
            "left_out": "not in group gpu",
            "absent": False,
            "proof": True,
            "worst": "none",
        }
    ]


def test_in_dot_needs_are_solid_known_after_dashed_and_mere_order_dotted() -> None:
    lines = draw.as_dot(GRAPH).splitlines()
    assert lines[0] == "digraph gpustate {"
    assert lines[-5:] == [
        '  "container-toolkit" -> "validator";',
        '  "driver" -> "container-toolkit" [style=dotted];',
        '  "driver" -> "validator" [style=dashed, label="known after"];',
        '  "nouveau" -> "driver" [style=dotted];',
        "}",
    ]


def test_in_mermaid_proofs_are_round_and_two_reasons_make_one_line() -> None:
    graph = Graph(GRAPH.nodes, [*GRAPH.edges, Edge("driver", "container-toolkit", "known after")])
    graph.edges.append(Edge("container-toolkit", "validator", "known after"))
    assert draw.as_mermaid(graph, {"validator": About("validator", validating=True)}) == golden("""
        flowchart LR
          s1["nouveau"]
          s2["driver"]
          s3["container-toolkit"]
          s4(["validator"])
          s3 -- known after --> s4
          s2 -.-> s3
          s2 -. known after .-> s4
          s1 -.-> s2
    """)


def test_nothing_is_drawn_of_nothing() -> None:
    assert draw.as_text(Graph()) == "\n"
    assert draw.as_mermaid(Graph()) == "flowchart LR\n"


def test_what_a_state_is_for_is_told_without_marks_of_its_documentation() -> None:
    told = of_states([NouveauBlacklisted()])["nouveau"].condition
    assert told.startswith("nouveau and nova_core are not loaded")
