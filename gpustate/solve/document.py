"""Output of ``gpustate solve`` and ``gpustate outdated``, as JSON documents and as text. Pure.

Formats: ``gpustate.solve/1`` and ``gpustate.outdated/1``; ``schema/`` describes them. For the lock file see
:mod:`gpustate.solve.lock`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpustate.solve.keeping import Newer, Outdated, Resolution
from gpustate.solve.lock import LockedSet, set_data, wanted_data
from gpustate.solve.solver import NoSolution, shorten

SOLVE_FORMAT = "gpustate.solve/1"
OUTDATED_FORMAT = "gpustate.outdated/1"
#: Values of ``how``, in the order of the summary line.
HOWS = ("solved", "joined", "kept", "moved")
_WIDTH = 100


def solve_data(
    resolutions: Mapping[str, Resolution],
    troubles: Mapping[str, Mapping[str, str]],
    *,
    path: str,
    changed: bool,
    gone: Sequence[str] = (),
    pruned: bool = False,
) -> dict[str, Any]:
    """The result for all nodes, ``gpustate.solve/1``.

    Args:
        resolutions: by node.
        troubles: by kind (``refused``, ``unreachable``, ``skipped``) and node, why.
        path: of the lock file.
        changed: the lock file changed.
        gone: locked nodes that are no longer in the inventory.
        pruned: they were removed from the lock file.
    """
    rows: list[dict[str, Any]] = []
    for one, how, nodes in _groups(resolutions):
        sample = resolutions[nodes[0]]
        data = set_data(one)
        del data["nodes"]
        row: dict[str, Any] = {"how": how, "nodes": nodes, "set": data}
        if sample.why:
            row["why"] = sample.why
        if sample.notes:
            row["notes"] = list(sample.notes)
        rows.append(row)
    conflicts = [
        {"nodes": nodes, **_conflict(unsolved)} for unsolved, nodes in _conflicts(resolutions)
    ]
    return {
        "format": SOLVE_FORMAT,
        "lock": path,
        "changed": changed,
        "sets": rows,
        "conflicts": conflicts,
        **{kind: dict(sorted(rows.items())) for kind, rows in troubles.items()},
        "gone": list(gone),
        "pruned": pruned,
        "summary": counts(resolutions, troubles),
    }


def _conflict(unsolved: NoSolution) -> dict[str, Any]:
    return {
        "wanted": unsolved.wanted,
        "offered": list(unsolved.offered),
        "facts": [{"key": r.key, "kind": r.kind, "text": r.text} for r in unsolved.reasons],
    }


def _groups(resolutions: Mapping[str, Resolution]) -> Iterator[tuple[LockedSet, str, list[str]]]:
    groups: dict[tuple[Any, ...], list[str]] = {}
    kept: dict[tuple[Any, ...], LockedSet] = {}
    for node, one in resolutions.items():
        if one.set is not None:
            bare = one.set.without_nodes()
            key = (bare, one.how, one.why, one.notes)
            groups.setdefault(key, []).append(node)
            kept[key] = bare
    for key, nodes in groups.items():
        yield kept[key], key[1], sorted(nodes)


def _conflicts(resolutions: Mapping[str, Resolution]) -> Iterator[tuple[NoSolution, list[str]]]:
    groups: dict[tuple[Any, ...], tuple[NoSolution, list[str]]] = {}
    for node, one in resolutions.items():
        if one.unsolved is not None:
            key = (one.unsolved.wanted, one.unsolved.reasons, one.unsolved.offered)
            groups.setdefault(key, (one.unsolved, []))[1].append(node)
    for unsolved, nodes in groups.values():
        yield unsolved, sorted(nodes)


def counts(
    resolutions: Mapping[str, Resolution], troubles: Mapping[str, Mapping[str, str]]
) -> dict[str, int]:
    """Number of nodes by result."""
    found = {how: sum(one.how == how for one in resolutions.values()) for how in HOWS}
    others = {kind: len(rows) for kind, rows in troubles.items()}
    alone = {node for rows in troubles.values() for node in rows}
    return {"nodes": len({*resolutions, *alone}), **found, **others}


def solve_text(
    resolutions: Mapping[str, Resolution],
    troubles: Mapping[str, Mapping[str, str]],
    *,
    path: str,
    changed: bool,
    gone: Sequence[str] = (),
    pruned: bool = False,
) -> str:
    """The same as text; the last line is a summary for grep."""
    lines: list[str] = []
    for one, how, nodes in _groups(resolutions):
        sample = resolutions[nodes[0]]
        lines.append(f"{one.driver} {one.module_type}  {how}: {shorten(nodes, 8)}")
        lines += _wrapped(f"for {_situation(one)}; requested: {one.wanted.text}")
        where = ", ".join(sorted({str(package.repository) for package in one.packages}))
        lines += _wrapped(f"{len(one.packages)} packages from {where} ({one.scheme})")
        lines += [row for text in filter(None, (sample.why,)) for row in _wrapped(f"why: {text}")]
        lines += [row for note in sample.notes for row in _wrapped(f"note: {note}")]
    for unsolved, nodes in _conflicts(resolutions):
        lines.append(f"no driver set for {unsolved.wanted}: {shorten(nodes, 8)}")
        lines += _conflict_lines(unsolved)
    conflicting = {node for _, nodes in _conflicts(resolutions) for node in nodes}
    for kind, rows in troubles.items():
        for node in sorted(rows):
            if node not in conflicting:
                lines += _wrapped(f"{node}: {kind}: {rows[node]}", "")
    if gone:
        what = "removed from the lock" if pruned else "still locked; remove them with --prune"
        lines += _wrapped(f"not in the inventory, {what}: {shorten(gone, 8)}", "")
    lines.append(f"{path} {'changed' if changed else 'is unchanged'}")
    words = counts(resolutions, troubles).items()
    return "\n".join([*lines, " ".join(f"{name}={number}" for name, number in words)]) + "\n"


def _conflict_lines(unsolved: NoSolution) -> Iterator[str]:
    if not unsolved.offered:
        yield "  no repository of the node offers a driver"
        return
    yield from _wrapped(f"offered: {shorten(unsolved.offered, 6)}")
    yield "  not possible:"
    for number, reason in enumerate(unsolved.reasons, 1):
        yield from _wrapped(f"{number}. {reason.text}", "    ")


def _situation(one: LockedSet) -> str:
    found = one.situation
    gpus = " with " + ", ".join(f"10de:{device}" for device in found.gpus) if found.gpus else ""
    return f"{found.distribution} {found.machine}{gpus}"


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


# --- outdated ------------------------------------------------------------------------------


def outdated_data(found: Sequence[Outdated], troubles: Mapping[str, str]) -> dict[str, Any]:
    """Newer drivers by locked set, ``gpustate.outdated/1``."""
    return {
        "format": OUTDATED_FORMAT,
        "sets": [_outdated(one) for one in found],
        "troubles": dict(sorted(troubles.items())),
    }


def _outdated(one: Outdated) -> dict[str, Any]:
    return {
        "driver": one.set.driver,
        "module_type": one.set.module_type,
        "wanted": wanted_data(one.set.wanted),
        "nodes": list(one.set.nodes),
        "update": one.allowed.version if one.allowed else None,
        "newer": [
            {
                "version": newer.version,
                "module_type": newer.module_type,
                "origin": newer.origin,
                "allowed": not newer.reasons,
                "because": [{"key": r.key, "kind": r.kind, "text": r.text} for r in newer.reasons],
            }
            for newer in one.newer
        ],
        "notes": list(one.notes),
    }


def outdated_text(found: Sequence[Outdated], troubles: Mapping[str, str]) -> str:
    """The same as text; the last line is a summary for grep."""
    lines: list[str] = []
    for one in found:
        lines.append(f"{one.set.driver} {one.set.module_type}: {shorten(one.set.nodes, 8)}")
        lines += _wrapped(f"locked for {one.set.wanted.text}, {_situation(one.set)}")
        for newer in one.newer:
            lines += _newer(newer)
        if not one.newer:
            lines.append("  no newer driver is offered")
        lines += [row for note in one.notes for row in _wrapped(f"note: {note}")]
    for node in sorted(troubles):
        lines += _wrapped(f"{node}: {troubles[node]}", "")
    can = sum(one.allowed is not None for one in found)
    return "\n".join([*lines, f"sets={len(found)} updates={can} troubles={len(troubles)}"]) + "\n"


def _newer(newer: Newer) -> Iterator[str]:
    name = f"{newer.version} {newer.module_type} ({newer.origin})"
    if not newer.reasons:
        yield f"  {name}  allowed: gpustate solve --update"
        return
    yield f"  {name}  not allowed:"
    for reason in newer.reasons:
        yield from _wrapped(f"- {reason.text}", "    ")
