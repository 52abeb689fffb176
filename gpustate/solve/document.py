"""Output of ``gpustate driver solve`` and ``gpustate driver outdated``, as JSON documents and as text. Pure.

Formats: ``gpustate.solve/2`` and ``gpustate.outdated/2``; ``schema/`` describes them. For the lock file see
:mod:`gpustate.solve.lock`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpustate.formats.words import listed
from gpustate.solve.keeping import Outdated, Resolution
from gpustate.solve.lock import LockedSet, request_data, set_data
from gpustate.solve.request import OfferedDriver

SOLVE_FORMAT = "gpustate.solve/2"
OUTDATED_FORMAT = "gpustate.outdated/2"
#: Values of ``how``, in the order of the summary line.
HOWS = ("solved", "joined", "kept", "moved")
_WIDTH = 100


def solve_data(
    resolutions: Mapping[str, Resolution],
    troubles: Mapping[str, Mapping[str, str]],
    *,
    path: str,
    changed: bool,
    absent_nodes: Sequence[str] = (),
    pruned: bool = False,
) -> dict[str, object]:
    """The result for all nodes, ``gpustate.solve/2``.

    Args:
        resolutions: by node.
        troubles: by kind (``refused``, ``unreachable``, ``skipped``) and node, why.
        path: of the lock file.
        changed: the lock file changed.
        absent_nodes: locked nodes that are no longer in the inventory.
        pruned: they were removed from the lock file.
    """
    rows: list[dict[str, object]] = []
    for locked, resolution, nodes in _groups(resolutions):
        data = set_data(locked)
        del data["nodes"]
        row: dict[str, object] = {"how": resolution.how, "nodes": nodes, "set": data}
        if resolution.why:
            row["why"] = resolution.why
        if resolution.notes:
            row["notes"] = list(resolution.notes)
        rows.append(row)
    return {
        "format": SOLVE_FORMAT,
        "lock": path,
        "changed": changed,
        "sets": rows,
        **{kind: dict(sorted(rows.items())) for kind, rows in troubles.items()},
        "gone": list(absent_nodes),
        "pruned": pruned,
        "summary": counts(resolutions, troubles),
    }


def _groups(
    resolutions: Mapping[str, Resolution],
) -> Iterator[tuple[LockedSet, Resolution, list[str]]]:
    groups: dict[tuple[Any, ...], list[str]] = {}
    for node, resolution in resolutions.items():
        if resolution.set is not None:
            key = (resolution.set.without_nodes(), resolution.how, resolution.why, resolution.notes)
            groups.setdefault(key, []).append(node)
    for key, nodes in groups.items():
        yield key[0], resolutions[nodes[0]], sorted(nodes)


def counts(
    resolutions: Mapping[str, Resolution], troubles: Mapping[str, Mapping[str, str]]
) -> dict[str, int]:
    """Number of nodes by result."""
    results = {how: sum(r.how == how for r in resolutions.values()) for how in HOWS}
    trouble_counts = {kind: len(rows) for kind, rows in troubles.items()}
    alone = {n for rows in troubles.values() for n in rows}
    return {"nodes": len({*resolutions, *alone}), **results, **trouble_counts}


def solve_text(
    resolutions: Mapping[str, Resolution],
    troubles: Mapping[str, Mapping[str, str]],
    *,
    path: str,
    changed: bool,
    absent_nodes: Sequence[str] = (),
    pruned: bool = False,
) -> str:
    """The same as text; the last line is a summary for grep."""
    lines: list[str] = []
    for locked, resolution, nodes in _groups(resolutions):
        lines.append(f"{locked.driver} {locked.module_type}  {resolution.how}: {listed(nodes, 8)}")
        lines += _wrapped(f"for {_platform(locked)}; requested: {locked.request.text}")
        lines += _wrapped(f"packages: {', '.join(name for name, _ in locked.packages)}")
        lines += _wrapped(f"why: {resolution.why}") if resolution.why else []
        lines += [row for note in resolution.notes for row in _wrapped(f"note: {note}")]
    for kind, rows in troubles.items():
        for node in sorted(rows):
            lines += _wrapped(f"{node}: {kind}: {rows[node]}", "")
    if absent_nodes:
        advice = "removed from the lock" if pruned else "still locked; remove them with --prune"
        lines += _wrapped(f"not in the inventory, {advice}: {listed(absent_nodes, 8)}", "")
    lines.append(f"{path} {'changed' if changed else 'is unchanged'}")
    words = counts(resolutions, troubles).items()
    return "\n".join([*lines, " ".join(f"{name}={number}" for name, number in words)]) + "\n"


def _platform(locked: LockedSet) -> str:
    platform = locked.platform
    gpus = ", ".join(f"10de:{device}" for device in platform.gpus)
    return f"{platform.distribution} {platform.machine}{' with ' if gpus else ''}{gpus}"


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


def outdated_data(sets: Sequence[Outdated], troubles: Mapping[str, str]) -> dict[str, object]:
    """Newer drivers by locked set, ``gpustate.outdated/2``."""
    return {
        "format": OUTDATED_FORMAT,
        "sets": [_outdated(outdated) for outdated in sets],
        "troubles": dict(sorted(troubles.items())),
    }


def _outdated(outdated: Outdated) -> dict[str, object]:
    return {
        "driver": outdated.set.driver,
        "module_type": outdated.set.module_type,
        "wanted": request_data(outdated.set.request),
        "nodes": list(outdated.set.nodes),
        "update": outdated.allowed.version if outdated.allowed else None,
        "newer": [
            {
                "version": newer.version,
                "module_type": newer.module_type,
                "allowed": not newer.obstacles,
                "because": list(newer.obstacles),
            }
            for newer in outdated.newer
        ],
        "notes": list(outdated.notes),
    }


def outdated_text(sets: Sequence[Outdated], troubles: Mapping[str, str]) -> str:
    """The same as text; the last line is a summary for grep."""
    lines: list[str] = []
    for entry in sets:
        lines.append(f"{entry.set.driver} {entry.set.module_type}: {listed(entry.set.nodes, 8)}")
        lines += _wrapped(f"locked for {entry.set.request.text}, {_platform(entry.set)}")
        for newer in entry.newer:
            lines += _newer(newer)
        if not entry.newer:
            lines.append("  no newer driver is offered")
        lines += [row for note in entry.notes for row in _wrapped(f"note: {note}")]
    for node in sorted(troubles):
        lines += _wrapped(f"{node}: {troubles[node]}", "")
    can = sum(outdated.allowed is not None for outdated in sets)
    return "\n".join([*lines, f"sets={len(sets)} updates={can} troubles={len(troubles)}"]) + "\n"


def _newer(newer: OfferedDriver) -> Iterator[str]:
    name = f"{newer.version} {newer.module_type}"
    if not newer.obstacles:
        yield f"  {name}  allowed: gpustate driver solve --update"
        return
    yield f"  {name}  not allowed:"
    for obstacle in newer.obstacles:
        yield from _wrapped(f"- {obstacle}", "    ")
