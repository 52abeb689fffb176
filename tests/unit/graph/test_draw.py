"""Drawings of one small graph, as they are printed."""

from __future__ import annotations

from textwrap import dedent

from gpustate.graph import draw
from gpustate.graph.build import Edge, Graph

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
    assert draw.as_text(GRAPH, {"driver": "The driver is there."}).splitlines() == [
        " 1. nouveau",
        " 2. driver             after nouveau",
        "    The driver is there.",
        " 3. container-toolkit  after driver",
        " 4. validator          known after driver; needs container-toolkit",
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


def test_in_dot_needs_are_solid_and_mere_order_is_dashed() -> None:
    assert draw.as_dot(GRAPH) == golden("""
        digraph gpustate {
          rankdir=LR;
          node [shape=box];
          "nouveau";
          "driver";
          "container-toolkit";
          "validator";
          "container-toolkit" -> "validator";
          "driver" -> "container-toolkit" [style=dashed];
          "driver" -> "validator" [style=dashed];
          "nouveau" -> "driver" [style=dashed];
        }
    """)


def test_in_mermaid_names_have_no_dashes_where_it_takes_none() -> None:
    assert draw.as_mermaid(GRAPH) == golden("""
        flowchart LR
          nouveau[nouveau]
          driver[driver]
          container_toolkit[container-toolkit]
          validator[validator]
          container_toolkit --> validator
          driver -.-> container_toolkit
          driver -.-> validator
          nouveau -.-> driver
    """)


def test_nothing_is_drawn_of_nothing() -> None:
    assert draw.as_text(Graph()) == "\n"
    assert draw.as_mermaid(Graph()) == "flowchart LR\n"
