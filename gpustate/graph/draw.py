"""A graph as text, JSON data, DOT and Mermaid. Pure."""

from __future__ import annotations

from typing import Any

from gpustate.graph.build import Graph
from gpustate.graph.order import order


def as_text(graph: Graph, about: dict[str, str] | None = None) -> str:
    """One line a state, in order, with what it waits for and why."""
    lines: list[str] = []
    width = max((len(name) for name in graph.nodes), default=0)
    for number, name in enumerate(order(graph), 1):
        reasons: dict[str, list[str]] = {}
        for edge in graph.edges:
            if edge.then == name:
                reasons.setdefault("after" if edge.why == "before" else edge.why, []).append(
                    edge.first
                )
        told = "; ".join(
            f"{why} {', '.join(sorted(firsts))}" for why, firsts in sorted(reasons.items())
        )
        lines.append(f"{number:>2}. {name:<{width}}  {told}".rstrip())
        if about and name in about:
            lines.append(f"    {about[name]}")
    return "\n".join(lines) + "\n"


def as_data(graph: Graph) -> dict[str, Any]:
    """Plain data, format ``gpustate.graph/1``."""
    return {
        "format": "gpustate.graph/1",
        "order": order(graph),
        "edges": [
            {"first": e.first, "then": e.then, "why": e.why}
            for e in sorted(graph.edges, key=lambda e: (e.first, e.then))
        ],
    }


def as_dot(graph: Graph) -> str:
    """Graphviz; ``needs`` is a solid line, mere order a dashed one."""
    lines = ["digraph gpustate {", "  rankdir=LR;", "  node [shape=box];"]
    lines += [f'  "{name}";' for name in order(graph)]
    for e in sorted(graph.edges, key=lambda e: (e.first, e.then)):
        style = "" if e.why == "needs" else " [style=dashed]"
        lines.append(f'  "{e.first}" -> "{e.then}"{style};')
    return "\n".join([*lines, "}"]) + "\n"


def as_mermaid(graph: Graph) -> str:
    """Mermaid flow chart, as GitHub shows it."""
    lines = ["flowchart LR"]
    lines += [f"  {_id(name)}[{name}]" for name in order(graph)]
    for e in sorted(graph.edges, key=lambda e: (e.first, e.then)):
        arrow = "-->" if e.why == "needs" else "-.->"
        lines.append(f"  {_id(e.first)} {arrow} {_id(e.then)}")
    return "\n".join(lines) + "\n"


def _id(name: str) -> str:
    return name.replace("-", "_").replace("/", "_")
