"""Rows as text: ratios to the floor of the same setting, and what one more node costs."""

from __future__ import annotations

from collections.abc import Sequence

from bench.contenders import ALL
from bench.measure import Row

_HEAD = (
    f"{'contender':<10} {'wall s':>8} {'x':>6} {'CPU s':>8} {'x':>6} {'ms/node':>8} "
    f"{'MiB':>6} {'conn':>5} {'chan':>6} {'node ms':>8}"
)


def floor_of(row: Row, rows: Sequence[Row]) -> Row | None:
    """The floor in the same setting."""
    return _same(row, rows, "floor", row.nodes)


def more_node_s(row: Row, rows: Sequence[Row]) -> float | None:
    """Controller CPU of one more node, against the smallest number of nodes in the same setting."""
    others = [_same(row, rows, row.contender, nodes) for nodes in {one.nodes for one in rows}]
    fewest = min((one for one in others if one), key=lambda one: one.nodes)
    if fewest.nodes >= row.nodes:
        return None
    return (row.cost.cpu_s - fewest.cost.cpu_s) / (row.nodes - fewest.nodes)


def _same(row: Row, rows: Sequence[Row], contender: str, nodes: int) -> Row | None:
    for one in rows:
        if (one.contender, one.nodes) == (contender, nodes) and (one.round_trip_s, one.drifted) == (
            row.round_trip_s,
            row.drifted,
        ):
            return one
    return None


def text(rows: Sequence[Row]) -> str:
    """All settings, one table each."""
    lines: list[str] = []
    settings = list(dict.fromkeys((r.nodes, r.round_trip_s, r.drifted) for r in rows))
    for nodes, trip, drifted in settings:
        state = "drifted" if drifted else "converged"
        lines += ["", f"{nodes} nodes {state}, {trip * 1000:g} ms of round trip added", _HEAD]
        lines += [
            _line(row, rows)
            for row in rows
            if (row.nodes, row.round_trip_s, row.drifted) == (nodes, trip, drifted)
        ]
    lines += ["", "x: ratio to the floor; ms/node: controller CPU of one more node; MiB: peak PSS;"]
    lines += ["conn, chan: connections and channels a node; node ms: CPU spent on a node."]
    names = dict.fromkeys(row.contender for row in rows)
    lines += [f"{name:<10} {ALL[name].about}" for name in names]
    return "\n".join(lines[1:])


def _line(row: Row, rows: Sequence[Row]) -> str:
    floor = floor_of(row, rows)
    cost = row.cost
    walls = f"{cost.wall_s / floor.cost.wall_s:6.2f}" if floor else f"{'':>6}"
    cpus = f"{cost.cpu_s / floor.cost.cpu_s:6.2f}" if floor else f"{'':>6}"
    more = more_node_s(row, rows)
    each = f"{more * 1000:8.1f}" if more is not None else f"{'':>8}"
    return (
        f"{row.contender:<10} {cost.wall_s:8.2f} {walls} {cost.cpu_s:8.2f} {cpus} {each} "
        f"{cost.memory_mib:6.0f} {cost.connections:5.1f} {cost.channels:6.1f} "
        f"{cost.node_cpu_s * 1000:8.1f}"
    )
