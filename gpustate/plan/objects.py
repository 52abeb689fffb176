"""The objects of clusters in a plan or a result, as lines of text and as HTML. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpustate.formats.words import value_text
from gpustate.plan import htmltext
from gpustate.plan.ranges import fold

Json = Mapping[str, Any]

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


def pending(data: Json) -> int:
    """How many objects of a cluster an apply would write."""
    return sum(one["action"] in PENDING for one in data["objects"])


def takes_gpus(clusters: Sequence[Json]) -> bool:
    """What offers the GPUs of Nodes to pods is deleted."""
    return any(NO_GPUS in note for data in clusters for note in data.get("notes", ()))


def refused(data: Json) -> int:
    """How many objects of a cluster are refused."""
    return sum(one["action"] == REFUSED for one in data["objects"])


def lines(data: Json, *, whole: bool = False) -> Iterator[list[tuple[str, str]]]:
    """The lines of a cluster, each as pieces of text with their style.

    Args:
        data: of the key ``clusters`` of a document.
        whole: include unchanged objects.
    """
    yield [("cluster: ", "bold"), (title_of(data), "")]
    for names, one in alike(data):
        if one["action"] == SKIPPED or (one["action"] in QUIET and not whole):
            continue
        sign, style = _SIGNS[one["action"]]
        yield [(f"  {sign} {names}", style), (f"  {one['action']}", "dim")]
        for change in one.get("changes", ()):
            yield [(f"      {change_text(change)}", "")]
        if one.get("reason"):
            yield [(f"      {one['reason']}", "")]
    sign, style = _SIGNS[SKIPPED]
    for reason, skipped in _skipped(data).items():
        yield [(f"  {sign} {', '.join(skipped)}", style), (f"  skipped: {reason}", "")]
    same = _same(data)
    if same and not whole:
        yield [(f"  {same} unchanged", "dim")]
    for name, style in REMARKS:
        for text in data.get(name, ()):
            yield [(f"  {text}", style)]


def html(clusters: Sequence[Json]) -> str:
    """The body of a section of an HTML page."""
    return "".join(_html(data) for data in clusters)


def _html(data: Json) -> str:
    body = ""
    for names, one in changed(data):
        bad = one["action"] == REFUSED
        mark = htmltext.tag(one["action"], "bad" if bad else "reload")
        head = f"<b>{htmltext.text(names)}</b>{mark}"
        if one.get("reason"):
            head += f'<span class="soft">{htmltext.text(one["reason"])}</span>'
        rows = "".join(
            f"<li>{htmltext.code(change_text(change))}</li>" for change in one.get("changes", ())
        )
        rows = f'<ul class="changes">{rows}</ul>' if rows else ""
        body += f'<div class="state"><div class="head">{head}</div>{rows}</div>'
    body += "".join(f'<p class="soft">{htmltext.text(line)}</p>' for line in rest(data))
    for name, _ in REMARKS:
        rows = "".join(f"<li>{htmltext.text(line)}</li>" for line in data.get(name, ()))
        body += f'<h4>{name.capitalize()}</h4><ul class="text">{rows}</ul>' if rows else ""
    return f"<h3>{htmltext.text(title_of(data))}</h3>{body}"


def title_of(data: Json) -> str:
    """A cluster in a heading."""
    return f"{data['server']}, namespace {data['namespace']}"


def alike(data: Json) -> Iterator[tuple[str, Json]]:
    """Objects of a kind that change alike, once: their names in ranges, and one of them."""
    groups: dict[str, list[Json]] = {}
    for one in data["objects"]:
        change = json.dumps({**one, "object": one["object"].partition("/")[0]})
        groups.setdefault(change, []).append(one)
    for same in groups.values():
        number = f" ({len(same)} objects)" if len(same) > 1 else ""
        yield ", ".join(fold(one["object"] for one in same)) + number, same[0]


def changed(data: Json) -> list[tuple[str, Json]]:
    """Objects that change, or would if they were not refused, as of :func:`alike`."""
    return [row for row in alike(data) if row[1]["action"] in (*PENDING, REFUSED)]


def _skipped(data: Json) -> dict[str, list[str]]:
    """Objects that are not for this cluster, by reason."""
    found: dict[str, list[str]] = {}
    for one in data["objects"]:
        if one["action"] == SKIPPED:
            found.setdefault(one["reason"], []).append(one["object"])
    return found


def _same(data: Json) -> int:
    return sum(one["action"] in QUIET for one in data["objects"])


def rest(data: Json) -> Iterator[str]:
    """What is said of objects that do not change."""
    for reason, names in _skipped(data).items():
        yield f"Skipped: {', '.join(names)}: {reason}"
    if same := _same(data):
        yield f"{same} unchanged"


def change_text(change: Json) -> str:
    """One field of an object that changes."""
    return f"{change['field']}: {value_text(change['before'], _LONGEST)} -> {value_text(change['after'], _LONGEST)}"
