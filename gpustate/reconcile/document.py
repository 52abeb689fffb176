"""A cluster's part of a plan or a result as plain data, and as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpustate.errors import EXIT_ERROR, EXIT_REFUSED, EXIT_VALIDATION
from gpustate.formats.masking import mask_data
from gpustate.formats.words import quote
from gpustate.manifests.kinds import title
from gpustate.reconcile.applying import Applied
from gpustate.reconcile.planning import PENDING, Action, Change

Json = dict[str, Any]

_SIGNS = {
    Action.CREATE: ("+", "yellow"),
    Action.UPDATE: ("~", "yellow"),
    Action.DELETE: ("-", "yellow"),
    Action.RELEASE: ("-", "yellow"),
    Action.UNCHANGED: ("=", "green"),
    Action.FOREIGN: ("=", "dim"),
    Action.SKIPPED: ("!", "yellow"),
    Action.REFUSED: ("x", "red"),
}
_LONGEST = 200


def cluster_data(
    server: str, namespace: str, changes: Sequence[Change], applied: Applied | None = None
) -> Json:
    """One cluster.

    Args:
        server: its URL.
        namespace: of the objects.
        changes: planned, or done.
        applied: the rest of the result of an apply.
    """
    data: Json = {
        "server": server,
        "namespace": namespace,
        "objects": [_object_data(change) for change in changes],
    }
    if applied is not None:
        for name in ("failures", "unready", "notes"):
            if getattr(applied, name):
                data[name] = list(getattr(applied, name))
    result: Json = mask_data(data)
    return result


def _object_data(change: Change) -> Json:
    data: Json = {"object": title(change.item), "action": change.action.value}
    if change.differences:
        data["changes"] = [
            {"field": one.field, "before": one.before, "after": one.after}
            for one in change.differences
        ]
    if change.reason:
        data["reason"] = change.reason
    return data


def pending(data: Mapping[str, Any]) -> int:
    """How many objects of a cluster an apply would write."""
    actions = {action.value for action in PENDING}
    return sum(one["action"] in actions for one in data["objects"])


def refused(data: Mapping[str, Any]) -> int:
    """How many objects of a cluster are refused."""
    return sum(one["action"] == Action.REFUSED.value for one in data["objects"])


def exit_codes(data: Mapping[str, Any]) -> Iterator[int]:
    """Codes for what is wrong with a cluster."""
    if data.get("failures"):
        yield EXIT_ERROR
    if data.get("unready"):
        yield EXIT_VALIDATION
    if refused(data):
        yield EXIT_REFUSED


def lines(data: Mapping[str, Any], *, whole: bool = False) -> Iterator[list[tuple[str, str]]]:
    """The lines of a cluster, each as pieces of text with their style.

    Args:
        data: of :func:`cluster_data`.
        whole: include unchanged objects.
    """
    objects = data["objects"]
    quiet = (Action.UNCHANGED.value, Action.FOREIGN.value)
    same = sum(one["action"] in quiet for one in objects)
    yield [("cluster: ", "bold"), (f"{data['server']}, namespace {data['namespace']}", "")]
    skipped: dict[str, list[str]] = {}
    for one in objects:
        if one["action"] in quiet and not whole:
            continue
        if one["action"] == Action.SKIPPED.value:
            skipped.setdefault(one["reason"], []).append(one["object"])
            continue
        sign, style = _SIGNS[Action(one["action"])]
        yield [(f"  {sign} {one['object']}", style), (f"  {one['action']}", "dim")]
        for change in one.get("changes", ()):
            before, after = _text(change["before"]), _text(change["after"])
            yield [(f"      {change['field']}: {before} -> {after}", "")]
        if one.get("reason"):
            yield [(f"      {one['reason']}", "")]
    sign, style = _SIGNS[Action.SKIPPED]
    for reason, names in skipped.items():
        yield [(f"  {sign} {', '.join(names)}", style), (f"  skipped: {reason}", "")]
    if same and not whole:
        yield [(f"  {same} unchanged", "dim")]
    for name, style in (("failures", "red"), ("unready", "red"), ("notes", "")):
        for text in data.get(name, ()):
            yield [(f"  {text}", style)]


def _text(value: Any) -> str:
    text = "none" if value is None else quote(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
