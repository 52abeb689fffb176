"""A graph as text, JSON data, DOT and Mermaid. Pure.

Names of states may come from plugins, so each format escapes its special characters.

Sources:
    Graphviz, "The DOT Language": quoted strings know only the escape of the quote;
    Mermaid, "Flowcharts": text in quotes, with entities as ``#quot;``.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpustate.formats.words import printable
from gpustate.graph.about import WHYS, About, describe_origin, describe_reasons, reasons
from gpustate.graph.build import Edge, Graph
from gpustate.graph.order import order

_NONE: Mapping[str, About] = {}
#: By the reasons of one pair, the strongest first.
_DOT = {
    ("needs",): "",
    ("needs", "known after"): ' [label="known after"]',
    ("known after",): ' [style=dashed, label="known after"]',
}
_MERMAID = {
    ("needs",): "-->",
    ("needs", "known after"): "-- known after -->",
    ("known after",): "-. known after .->",
}


def as_text(graph: Graph, about: Mapping[str, About] = _NONE) -> str:
    """One line per state in order, with its predecessors and reasons; then its description and origin."""
    lines: list[str] = []
    width = max((len(printable(name)) for name in graph.nodes), default=0)
    for number, name in enumerate(order(graph), 1):
        lines.append(
            f"{number:>2}. {printable(name):<{width}}  {printable(describe_reasons(graph, name))}".rstrip()
        )
        if name in about:
            lines += [
                f"    {printable(line)}"
                for line in (about[name].condition, describe_origin(about[name]))
                if line
            ]
    return "\n".join(lines) + "\n"


def as_data(graph: Graph, about: Mapping[str, About] = _NONE) -> dict[str, object]:
    """Plain data, format ``gpustate.graph/1``."""
    states = [_state(graph, about[name]) for name in order(graph) if name in about]
    return {
        "format": "gpustate.graph/1",
        "order": order(graph),
        "edges": [{"first": e.first, "then": e.successor, "why": e.why} for e in _edges(graph)],
        **({"states": states} if states else {}),
    }


def _state(graph: Graph, about: About) -> dict[str, object]:
    data: dict[str, object] = {
        "state": about.name,
        "about": about.condition,
        "why": reasons(graph, about.name),
    }
    for key in ("place", "only", "left_out"):
        if getattr(about, key):
            data[key] = getattr(about, key)
    return {**data, "absent": about.absent, "proof": about.validating, "worst": about.worst.word}


def _edges(graph: Graph) -> list[Edge]:
    return sorted(graph.edges, key=lambda e: (e.first, e.successor, e.why))


def _pairs(graph: Graph) -> dict[tuple[str, str], tuple[str, ...]]:
    """Pairs of states with an edge, and its reasons."""
    reasons_by_pair: dict[tuple[str, str], list[str]] = {}
    for edge in _edges(graph):
        reasons_by_pair.setdefault((edge.first, edge.successor), []).append(edge.why)
    return {pair: tuple(sorted(whys, key=WHYS.index)) for pair, whys in reasons_by_pair.items()}


def as_dot(graph: Graph, about: Mapping[str, About] = _NONE) -> str:
    """Graphviz: ``needs`` is a solid line, "known after" a dashed one, order a dotted one."""
    lines = [
        "digraph gpustate {",
        "  rankdir=LR;",
        '  node [shape=box, style=rounded, fontname="sans-serif"];',
        '  edge [fontname="sans-serif", fontsize=10];',
    ]
    for name in order(graph):
        tip = _dot(
            " ".join(p for p in (_condition(about, name), describe_reasons(graph, name)) if p)
        )
        lines.append(f"  {_dot(name)} [label={_dot(name)}, tooltip={tip}];")
    for (first, successor), whys in _pairs(graph).items():
        lines.append(f"  {_dot(first)} -> {_dot(successor)}{_DOT.get(whys, ' [style=dotted]')};")
    return "\n".join([*lines, "}"]) + "\n"


def _condition(about: Mapping[str, About], name: str) -> str:
    return about[name].condition if name in about else ""


def _dot(text: str) -> str:
    # A backslash would begin an escape of labels, such as \n or \N.
    line = printable(text.replace("\n", " ").replace("\t", " ")).replace("\\", "\\\\")
    return '"' + line.replace('"', '\\"') + '"'


def as_mermaid(graph: Graph, about: Mapping[str, About] = _NONE) -> str:
    """Mermaid flow chart, as rendered by GitHub; validating states have round ends."""
    lines = ["flowchart LR"]
    ids = {name: f"s{number}" for number, name in enumerate(order(graph), 1)}
    for name, mark in ids.items():
        proof = name in about and about[name].validating
        lines.append(f"  {mark}{'([' if proof else '['}{_mermaid(name)}{'])' if proof else ']'}")
    for (first, successor), whys in _pairs(graph).items():
        lines.append(f"  {ids[first]} {_MERMAID.get(whys, '-.->')} {ids[successor]}")
    return "\n".join(lines) + "\n"


def _mermaid(text: str) -> str:
    # Mermaid writes entities with #, so everything but plain letters is escaped.
    line = printable(text.replace("\n", " ").replace("\t", " "))
    escaped = "".join(c if c.isalnum() or c in " -_./" else f"#{ord(c)};" for c in line)
    return f'"{escaped}"'
