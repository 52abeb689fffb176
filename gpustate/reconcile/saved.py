"""Compare what a saved plan says about a cluster's objects with what would be planned now. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from gpustate.documents import JsonView
from gpustate.formats.words import listed
from gpustate.plan.objects import QUIET

_NODES = "node/"


def stale(
    saved: JsonView, live: JsonView, *, lenient: bool = False, nodes: bool = True
) -> dict[str, str]:
    """Objects of which another change would be made than the plan has, each with how they differ.

    Args:
        saved: the cluster in the plan.
        live: the cluster as it would be planned.
        lenient: what is as the plan wants it already is no difference.
        nodes: compare labels of Nodes, too. Those of a Node whose run has failed are not applied.
    """
    before, after = _rows(saved, nodes=nodes), _rows(live, nodes=nodes)
    differing: dict[str, str] = {}
    for title in dict.fromkeys((*before, *after)):
        old, new = before.get(title), after.get(title)
        settled_row = new is None or new["action"] in QUIET
        if _same(old, new) or (settled_row and (lenient or title.startswith(_NODES))):
            continue
        differing[title] = f"{_words(old)} in the plan, {_words(new)} now"
    return differing


def _rows(data: JsonView, *, nodes: bool) -> dict[str, JsonView]:
    rows: Iterable[JsonView] = data["objects"]
    return {row["object"]: row for row in rows if nodes or not row["object"].startswith(_NODES)}


def _same(old: JsonView | None, new: JsonView | None) -> bool:
    if old is None or new is None:
        return old is new
    return old["action"] == new["action"] and old.get("changes") == new.get("changes")


def _words(row: JsonView | None) -> str:
    """The change of one object, in short."""
    if row is None:
        return "missing"
    fields = [change["field"] for change in row.get("changes", ())]
    return f"{row['action']}{' of ' if fields else ''}{listed(fields, 2)}"
