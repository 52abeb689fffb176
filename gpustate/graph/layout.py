"""Where the boxes and lines of a drawing go: states in columns, what comes first on the left. Pure.

A layered drawing in four passes, each a function: a column for every state, by the longest way to it;
stand-ins where a line crosses a column; an order within each column that crosses few lines; heights that
pull joined boxes level. Lines that others imply are left out: :func:`reduced`.

Sources:
    Sugiyama, Tagawa, Toda: Methods for Visual Understanding of Hierarchical System Structures (1981).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gpustate.graph.build import Edge, Graph
from gpustate.graph.order import order

GAP_X, GAP_Y = 56.0, 18.0
_SWEEPS = 12

Point = tuple[float, float]


@dataclass(slots=True)
class Layout:
    """A drawing's measures.

    Args:
        boxes: upper left corner of each state's box.
        lines: the points that each line goes through, from box to box.
        width, height: of the whole.
    """

    boxes: dict[str, Point] = field(default_factory=dict[str, Point])
    lines: list[tuple[Edge, list[Point]]] = field(default_factory=list[tuple[Edge, list[Point]]])
    width: float = 0.0
    height: float = 0.0


def reduced(graph: Graph) -> list[Edge]:
    """Edges without those that follow from others; of two between the same states the stronger."""
    after: dict[str, set[str]] = {name: set() for name in graph.nodes}
    for edge in graph.edges:
        after[edge.first].add(edge.then)
    reached: dict[str, set[str]] = {}
    for name in reversed(order(graph)):
        reached[name] = set(after[name]).union(*(reached[then] for then in after[name]))
    kept: dict[tuple[str, str], Edge] = {}
    for edge in graph.edges:
        others = after[edge.first] - {edge.then}
        if not any(edge.then in reached[other] for other in others):
            kept.setdefault((edge.first, edge.then), edge)
    return sorted(kept.values(), key=lambda edge: (edge.first, edge.then))


def layout(graph: Graph, sizes: Mapping[str, Point]) -> Layout:
    """Lay a graph out; ``sizes`` are those of the boxes."""
    made = Layout()
    if not graph.nodes:
        return made
    edges = reduced(graph)
    column = _columns(graph, edges)
    chains = [_chain(edge, column) for edge in edges]
    columns = _ordered(graph, column, chains)
    x, widths, right = _across(columns, sizes)
    y = _down(columns, chains, sizes)
    made.boxes = {name: (x[column[name]], y[name]) for name in graph.nodes}
    made.width, made.height = right, max(y[n] + _size(n, sizes)[1] for n in y)
    for edge, chain in zip(edges, chains, strict=True):
        points: list[Point] = []
        for place, name in enumerate(chain):
            left = x[column[edge.first] + place]
            middle = y[name] + _size(name, sizes)[1] / 2
            first, last = place == 0, place == len(chain) - 1
            wide = sizes[name][0] if first or last else widths[column[edge.first] + place]
            points += [] if first else [(left, middle)]
            points += [] if last else [(left + wide, middle)]
        made.lines.append((edge, points))
    return made


def _columns(graph: Graph, edges: Sequence[Edge]) -> dict[str, int]:
    column = dict.fromkeys(graph.nodes, 0)
    before: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for edge in edges:
        before[edge.then].append(edge.first)
    for name in order(graph):
        column[name] = max((column[first] + 1 for first in before[name]), default=0)
    # What nothing holds at the left moves as near to what follows as it can.
    after: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for edge in edges:
        after[edge.first].append(edge.then)
    for name in reversed(order(graph)):
        if after[name] and not before[name]:
            column[name] = min(column[then] for then in after[name]) - 1
    return column


def _chain(edge: Edge, column: Mapping[str, int]) -> list[str]:
    """The boxes at the ends of a line, and a stand-in in every column between."""
    between = range(column[edge.first] + 1, column[edge.then])
    return [edge.first, *(f"\0{edge.first}\0{edge.then}\0{c}" for c in between), edge.then]


def _ordered(
    graph: Graph, column: Mapping[str, int], chains: Sequence[Sequence[str]]
) -> list[list[str]]:
    columns: list[list[str]] = [[] for _ in range(max(column.values()) + 1)]
    for name in order(graph):
        columns[column[name]].append(name)
    for chain in chains:
        for place, name in enumerate(chain[1:-1], column[chain[0]] + 1):
            columns[place].append(name)
    joined = _joined(chains)
    for sweep in range(_SWEEPS):
        forth = sweep % 2 == 0
        for place in range(len(columns)) if forth else reversed(range(len(columns))):
            other = place - 1 if forth else place + 1
            if not 0 <= other < len(columns):
                continue
            at = {name: n for n, name in enumerate(columns[other])}
            mine = {name: n for n, name in enumerate(columns[place])}

            def weight(name: str, at: dict[str, int] = at, mine: dict[str, int] = mine) -> float:
                near = [at[n] for n in joined.get(name, ()) if n in at]
                return sum(near) / len(near) if near else mine[name]

            columns[place].sort(key=lambda name: (weight(name), mine[name]))
    return columns


def _joined(chains: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    joined: dict[str, list[str]] = {}
    for chain in chains:
        for first, then in pairwise(chain):
            joined.setdefault(first, []).append(then)
            joined.setdefault(then, []).append(first)
    return joined


def _size(name: str, sizes: Mapping[str, Point]) -> Point:
    return sizes.get(name, (0.0, 6.0))


def _across(
    columns: Sequence[Sequence[str]], sizes: Mapping[str, Point]
) -> tuple[list[float], list[float], float]:
    x: list[float] = []
    widths: list[float] = []
    right = 0.0
    for column in columns:
        x.append(right)
        widths.append(max(_size(name, sizes)[0] for name in column))
        right += widths[-1] + GAP_X
    return x, widths, right - GAP_X


def _down(
    columns: Sequence[Sequence[str]], chains: Sequence[Sequence[str]], sizes: Mapping[str, Point]
) -> dict[str, float]:
    """Heights of upper edges: joined boxes level where there is room, none over another."""
    joined = _joined(chains)
    y: dict[str, float] = {}
    for column in columns:
        top = 0.0
        for name in column:
            y[name] = top
            top += _size(name, sizes)[1] + GAP_Y
    for sweep in range(_SWEEPS):
        for column in columns if sweep % 2 == 0 else reversed(columns):
            wanted = {name: _wanted(name, y, joined, sizes) for name in column}
            _place(column, wanted, y, sizes)
    top = min(y.values())
    return {name: value - top for name, value in y.items()}


def _wanted(
    name: str, y: Mapping[str, float], joined: Mapping[str, list[str]], sizes: Mapping[str, Point]
) -> float:
    near = [y[n] + _size(n, sizes)[1] / 2 for n in joined.get(name, ())]
    return sum(near) / len(near) - _size(name, sizes)[1] / 2 if near else y[name]


def _place(
    column: Sequence[str],
    wanted: Mapping[str, float],
    y: dict[str, float],
    sizes: Mapping[str, Point],
) -> None:
    """As wanted, in their order, none over another; a block that had to move is centred on its wishes."""
    blocks: list[tuple[list[str], float]] = []  # names, and the top of the first
    for name in column:
        names, top = [name], wanted[name]
        while blocks and blocks[-1][1] + _height(blocks[-1][0], sizes) > top:
            before = blocks.pop()[0]
            names = before + names
            offsets, at = [], 0.0
            for one in names:
                offsets.append(wanted[one] - at)
                at += _size(one, sizes)[1] + GAP_Y
            top = sum(offsets) / len(offsets)
        blocks.append((names, top))
    for names, top in blocks:
        for one in names:
            y[one] = top
            top += _size(one, sizes)[1] + GAP_Y


def _height(names: Sequence[str], sizes: Mapping[str, Point]) -> float:
    return sum(_size(name, sizes)[1] + GAP_Y for name in names)
