"""Minimal conflicts: the smallest set of facts that explains why nothing is possible. Pure.

:func:`minimal_conflict` takes facts and a test, and drops facts until each of the remaining ones is
needed. :func:`minimal_hitting_set` knows the facts that exclude each possibility, and finds the fewest
facts that exclude all of them.

Sources:
    R. Reiter, A theory of diagnosis from first principles (1987): conflicts and hitting sets;
    J. Marques-Silva, Minimal unsatisfiability (2010): deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TypeVar

F = TypeVar("F", bound=Hashable)


def minimal_conflict(facts: Sequence[F], possible: Callable[[frozenset[F]], bool]) -> tuple[F, ...]:
    """Reduce contradictory facts to a minimal conflict: without any one of them something is possible.

    Args:
        facts: a contradiction; earlier facts are dropped first.
        possible: whether anything is possible under some of the facts. Fewer facts never allow less.
    """
    kept = list(facts)
    for fact in facts:
        without = [one for one in kept if one != fact]
        if not possible(frozenset(without)):
            kept = without
    return tuple(kept)


def minimal_hitting_set(
    possibilities: Sequence[Collection[F]], order: Sequence[F]
) -> tuple[F, ...] | None:
    """The fewest facts that together exclude every possibility.

    Args:
        possibilities: for each, the facts that exclude it; any one of them does.
        order: all facts; of two answers of equal size the one with earlier facts wins.

    Returns:
        The facts in that order; ``None`` when no fact excludes some possibility.
    """
    rank = {fact: number for number, fact in enumerate(order)}
    rows = {frozenset(rank[fact] for fact in facts) for facts in possibilities}
    if frozenset() in rows:
        return None
    # A possibility that is excluded whenever another one is adds nothing.
    needed = sorted(
        (row for row in rows if not any(other < row for other in rows)),
        key=lambda row: (len(row), sorted(row)),
    )
    for size in range(len(needed) + 1):
        found = _hitting(needed, size)
        if found is not None:
            return tuple(order[number] for number in sorted(found))
    raise AssertionError("each possibility has its own fact")


def _hitting(rows: Sequence[frozenset[int]], size: int) -> tuple[int, ...] | None:
    """At most ``size`` numbers that hit every row, the lowest first; ``None`` when there are none."""
    if not rows:
        return ()
    if size == 0 or _disjoint(rows) > size:
        return None
    best: tuple[int, ...] | None = None
    for number in sorted(rows[0]):
        rest = _hitting([row for row in rows if number not in row], size - 1)
        if rest is not None:
            found = tuple(sorted((number, *rest)))
            best = found if best is None or found < best else best
    return best


def _disjoint(rows: Sequence[frozenset[int]]) -> int:
    """Number of disjoint rows: each of them needs its own number."""
    seen: set[int] = set()
    count = 0
    for row in rows:
        if not row & seen:
            seen |= row
            count += 1
    return count
