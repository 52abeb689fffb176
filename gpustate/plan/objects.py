"""The objects of clusters in a plan or a result, as lines of text and as HTML. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from gpustate.documents import JsonView
from gpustate.formats.words import value_text
from gpustate.plan.ranges import fold

#: Actions that write, those that leave an object as it is, and what is not for a cluster.
PENDING = ("create", "update", "delete", "release")
QUIET = ("unchanged", "not managed")
SKIPPED, REFUSED = "skipped", "refused"
_SIGNS = {
    "create": ("+", "yellow"),
    "update": ("~", "yellow"),
    "delete": ("-", "yellow"),
    "release": ("-", "yellow"),
    "unchanged": ("=", "green"),
    "not managed": ("=", "dim"),
    SKIPPED: ("!", "yellow"),
    REFUSED: ("x", "red"),
}
REMARKS = (("failures", "red"), ("refusals", "red"), ("unready", "red"), ("notes", ""))
_LONGEST = 200


#: In notes of objects whose removal takes GPUs from pods that are not there yet.
NO_GPUS = "no new pod gets a GPU of these Nodes"


def pending(data: JsonView) -> int:
    """How many objects of a cluster an apply would write."""
    return sum(row["action"] in PENDING for row in data["objects"])


def pending_of(document: JsonView) -> int:
    """How many objects of all clusters of a document an apply would write."""
    return sum(map(pending, document.get("clusters", ())))


def takes_gpus(clusters: Sequence[JsonView]) -> bool:
    """What offers the GPUs of Nodes to pods is deleted."""
    return any(NO_GPUS in note for data in clusters for note in data.get("notes", ()))


def refused(data: JsonView) -> int:
    """How many objects of a cluster are refused."""
    return sum(row["action"] == REFUSED for row in data["objects"])


def lines(data: JsonView, *, full: bool = False) -> Iterator[list[tuple[str, str]]]:
    """The lines of a cluster, each as pieces of text with their style.

    Args:
        data: of the key ``clusters`` of a document.
        full: include unchanged objects.
    """
    yield [("cluster: ", "bold"), (title_of(data), "")]
    for names, row in alike(data):
        quiet = row["action"] in QUIET and not row.get("changes")
        if row["action"] == SKIPPED or (quiet and not full):
            continue
        sign, style = _SIGNS[row["action"]]
        yield [("  ", ""), (sign, style), (f" {names}", ""), (f"  {row['action']}", "dim")]
        for text in change_texts(row.get("changes", ())):
            yield [(f"      {text}", "")]
        if row.get("reason"):
            yield [(f"      {row['reason']}", "")]
    sign, style = _SIGNS[SKIPPED]
    for reason, skipped in _skipped(data).items():
        yield [(f"  {sign} {', '.join(skipped)}", style), (f"  skipped: {reason}", "")]
    same = _same(data)
    if same and not full:
        yield [(f"  {same} unchanged", "dim")]
    for name, style in REMARKS:
        for text in data.get(name, ()):
            yield [(f"  {text}", style)]


def plain(data: JsonView) -> list[str]:
    """The lines of a cluster below its title, for reports."""
    return ["".join(text for text, _ in pieces) for pieces in lines(data)][1:]


def title_of(data: JsonView) -> str:
    """A cluster in a heading."""
    return f"{data['server']}, namespace {data['namespace']}"


def alike(data: JsonView) -> Iterator[tuple[str, JsonView]]:
    """Objects of a kind that change alike, once: their names in ranges, and one of them."""
    groups: dict[str, list[JsonView]] = {}
    for row in data["objects"]:
        change = json.dumps({**row, "object": row["object"].partition("/")[0]})
        groups.setdefault(change, []).append(row)
    for same in groups.values():
        number = f" ({len(same)} objects)" if len(same) > 1 else ""
        yield ", ".join(fold(row["object"] for row in same)) + number, same[0]


def _skipped(data: JsonView) -> dict[str, list[str]]:
    """Objects that are not for this cluster, by reason."""
    objects_by_reason: dict[str, list[str]] = {}
    for row in data["objects"]:
        if row["action"] == SKIPPED:
            objects_by_reason.setdefault(row["reason"], []).append(row["object"])
    return objects_by_reason


def _same(data: JsonView) -> int:
    return sum(row["action"] in QUIET and not row.get("changes") for row in data["objects"])


def change_texts(changes: Sequence[JsonView]) -> list[str]:
    """Fields of an object that change; labels, and keys of other mappings, that change alike are listed together."""
    rows: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        before, after = (value_text(change[side], _LONGEST) for side in ("before", "after"))
        name = str(change["field"])
        mapping = name.partition("[")[0] if name.count("[") == 1 and name[-1] == "]" else ""
        key = name[len(mapping) + 1 : -1] if mapping else name
        rows.setdefault((mapping, f"{before} -> {after}"), []).append(key)
    return [
        f"{mapping}[{', '.join(keys)}]: {text}" if mapping else f"{', '.join(keys)}: {text}"
        for (mapping, text), keys in rows.items()
    ]


def differs(row: JsonView) -> bool:
    """Whether an object differs that an apply would not write: refused, or with fields that others added."""
    return row["action"] in (REFUSED, *QUIET) and bool(row.get("changes"))
