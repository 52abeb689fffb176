"""Order a graph deterministically, independent of the order in the policy."""

from __future__ import annotations

import heapq
from itertools import pairwise

from gpustate.errors import GraphError
from gpustate.graph.build import Graph


def order(graph: Graph) -> list[str]:
    """Names, predecessors first, otherwise alphabetically.

    Raises:
        GraphError: a dependency cycle, with only the states in it.
    """
    waiting = dict.fromkeys(graph.nodes, 0)
    for edge in graph.edges:
        waiting[edge.successor] += 1
    free = [name for name, count in waiting.items() if count == 0]
    heapq.heapify(free)
    ordered: list[str] = []
    while free:
        name = heapq.heappop(free)
        ordered.append(name)
        for edge in graph.edges:
            if edge.first == name:
                waiting[edge.successor] -= 1
                if waiting[edge.successor] == 0:
                    heapq.heappush(free, edge.successor)
    if len(ordered) < len(graph.nodes):
        raise GraphError(
            f"dependency cycle: {_cycle(graph, set(ordered))}",
            fix="remove one of these dependencies",
        )
    return ordered


def _cycle(graph: Graph, ordered: set[str]) -> str:
    """Follow predecessors among the unordered states until one repeats."""
    name = next(n for n in sorted(graph.nodes) if n not in ordered)
    path: list[str] = []
    while name not in path:
        path.append(name)
        name = min(e.first for e in graph.edges if e.successor == name and e.first not in ordered)
    loop = [*path[path.index(name) :], name]
    loop.reverse()
    words = [loop[0]]
    for first, second in pairwise(loop):
        why = next(e.why for e in graph.edges if e.first == first and e.successor == second)
        reason = f"({second} {why} {first})" if why != "before" else f"({first} before {second})"
        words.append(f"-> {second} {reason}")
    return " ".join(words)
