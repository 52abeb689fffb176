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
        waiting[edge.then] += 1
    free = [name for name, count in waiting.items() if count == 0]
    heapq.heapify(free)
    done: list[str] = []
    while free:
        name = heapq.heappop(free)
        done.append(name)
        for edge in graph.edges:
            if edge.first == name:
                waiting[edge.then] -= 1
                if waiting[edge.then] == 0:
                    heapq.heappush(free, edge.then)
    if len(done) < len(graph.nodes):
        raise GraphError(
            f"dependency cycle: {_cycle(graph, set(done))}", fix="remove one of these dependencies"
        )
    return done


def _cycle(graph: Graph, done: set[str]) -> str:
    """Follow predecessors among the unordered states until one repeats."""
    name = next(n for n in sorted(graph.nodes) if n not in done)
    path: list[str] = []
    while name not in path:
        path.append(name)
        name = min(e.first for e in graph.edges if e.then == name and e.first not in done)
    loop = [*path[path.index(name) :], name]
    loop.reverse()
    words = [loop[0]]
    for first, then in pairwise(loop):
        why = next(e.why for e in graph.edges if e.first == first and e.then == then)
        said = f"({then} {why} {first})" if why != "before" else f"({first} before {then})"
        words.append(f"-> {then} {said}")
    return " ".join(words)
