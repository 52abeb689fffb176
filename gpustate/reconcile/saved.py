"""Compare what a saved plan says about a cluster's objects with what would be planned now. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpustate.formats.words import listed
from gpustate.plan.objects import QUIET

Json = Mapping[str, Any]

_NODES = "node/"


def stale(saved: Json, now: Json, *, lenient: bool = False, nodes: bool = True) -> dict[str, str]:
    """Objects of which another change would be made than the plan has, each with how they differ.

    Args:
        saved: the cluster in the plan.
        now: the cluster as it would be planned.
        lenient: what is as the plan wants it already is no difference.
        nodes: compare labels of Nodes, too. Those of a Node whose run has failed are not applied.
    """
    before, after = _rows(saved, nodes=nodes), _rows(now, nodes=nodes)
    found: dict[str, str] = {}
    for title in dict.fromkeys((*before, *after)):
        then, here = before.get(title), after.get(title)
        done = here is None or here["action"] in QUIET
        if _same(then, here) or (done and (lenient or title.startswith(_NODES))):
            continue
        found[title] = f"{_words(then)} in the plan, {_words(here)} now"
    return found


def _rows(data: Json, *, nodes: bool) -> dict[str, Json]:
    rows: Iterable[Json] = data["objects"]
    return {one["object"]: one for one in rows if nodes or not one["object"].startswith(_NODES)}


def _same(then: Json | None, here: Json | None) -> bool:
    if then is None or here is None:
        return then is here
    return then["action"] == here["action"] and then.get("changes") == here.get("changes")


def _words(row: Json | None) -> str:
    """The change of one object, in short."""
    if row is None:
        return "missing"
    fields = [one["field"] for one in row.get("changes", ())]
    return f"{row['action']}{' of ' if fields else ''}{listed(fields, 2)}"
