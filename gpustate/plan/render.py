"""Documents as text for the terminal. Pure: plain data to lines of styled pieces.

Nodes that share a plan are shown once. The input is a document of :mod:`gpustate.plan.document`, so everything
that the terminal shows is in the JSON too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpustate.formats.words import cut, listed, printable
from gpustate.plan import objects
from gpustate.plan.context import retry, troubled
from gpustate.plan.groups import Group
from gpustate.plan.overview import (
    QUIET,
    WAITING,
    at_worst,
    change_line,
    closing,
    detail_lines,
    in_use,
    is_shortened,
    overview,
    remainder,
    state_words,
    summary,
    undone,
    waiting,
)
from gpustate.plan.ranges import fold

Piece = tuple[str, str]  # text, style: "", "bold", "dim", "green", "yellow", "red", "cyan"

_SIGNS = {
    "would change": ("~", "yellow"),
    "changed": ("~", "yellow"),
    "known after": ("?", "cyan"),
    "at first boot": ("=", "cyan"),
    "reboot pending": ("~", "yellow"),
    "unchanged": ("=", "green"),
    "not applicable": ("-", "dim"),
    "not run": ("-", "dim"),
    "failed": ("x", "red"),
    "rolled back": ("x", "red"),
    "refused": ("x", "red"),
    "interrupted": ("x", "red"),
    "blocked: needs a console": ("!", "yellow"),
}
_COSTS = {
    "none": "dim",
    "reload": "",
    "restart": "yellow",
    "drain": "yellow",
    "reset": "red",
    "reboot": "red",
}
_DIFF = {"+": "green", "-": "red", "@": "cyan", "~": "yellow"}
#: Longer lines are cut; the documents have the whole text.
_LONGEST = 4000
#: Ranges of names that a line shows.
_RANGES = 6


@dataclass(slots=True)
class Page:
    """A page as a list of lines."""

    lines: list[list[Piece]] = field(default_factory=list[list[Piece]])

    def add(self, *pieces: Piece | str) -> None:
        """Add one line; line breaks and control characters in it are escaped."""
        both = (piece if isinstance(piece, tuple) else (piece, "") for piece in pieces)
        self.lines.append([(_on_one_line(text), style) for text, style in both])

    def plain(self) -> str:
        """The page without styles."""
        return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in self.lines)


def _on_one_line(text: str) -> str:
    return printable(cut(text, _LONGEST).replace("\n", " "))


def _states(page: Page, states: Sequence[Mapping[str, Any]], *, diff: bool, full: bool) -> None:
    width = max((len(str(state["state"])) for state in states), default=0)
    not_run: dict[str, list[str]] = {}
    undecided = [] if full else waiting(states)
    for state in states:
        if state["state"] in undecided:
            continue
        outcome = str(state["outcome"])
        sign, style = _SIGNS.get(outcome, ("?", ""))
        quiet = outcome in QUIET
        if quiet and not full:
            continue
        cost, text = state_words(state)
        if text == "would change":
            text = ""
        if outcome == "not run" and not state.get("changes"):
            not_run.setdefault(text, []).append(str(state["state"]))
            continue
        name = f"{state['state']!s:<{width}}"
        page.add(
            "  ",
            (sign, style),
            " ",
            (name, "bold" if not quiet else "dim"),
            "  ",
            (f"{cost:<8}", _COSTS.get(cost.removeprefix("<="), "")),
            " ",
            (text, "red" if style == "red" else "dim"),
        )
        for change in state.get("changes", []):
            page.add(
                "         ",
                change_line(change),
                *([(f"  ({change['why']})", "dim")] if change.get("why") else []),
            )
            for line in change.get("lines", ()):
                page.add("           ", (line, _DIFF.get(line.strip()[:1], "")))
            for line in detail_lines(change) if diff else ():
                page.add("         ", (line, _DIFF.get(line[:1], "")))
        for note in state.get("notes", []):
            page.add("         ", (f"note: {note}", "dim"))
        for line in str(state.get("evidence", "")).splitlines():
            page.add("         ", (f"| {line}", "dim"))
        for title in ("command", "inspect"):
            if state.get(title):
                page.add("         ", (f"{title + ':':<9}{state[title]}", ""))
    if undecided:
        page.add("  ", _SIGNS["known after"], " ", (", ".join(undecided), "bold"))
        page.add("         ", (WAITING, "dim"))
    for text, names in not_run.items():
        name = ", ".join(names)
        pad = " " * (width - len(name) + 9 if len(names) == 1 else 0)
        page.add("  ", _SIGNS["not run"], " ", (name, "bold"), "  ", (pad + text, "dim"))


def names_line(names: Sequence[str]) -> str:
    """The first names, folded into ranges, and the number of the others."""
    return listed(fold(names), _RANGES) + (f" ({len(names)} nodes)" if len(names) > 1 else "")


def nodes_page(document: Mapping[str, Any], *, diff: bool = False, full: bool = False) -> Page:
    """The nodes of a plan or result.

    Args:
        document: ``gpustate.plan/1`` or ``gpustate.result/1``.
        diff: show the content of files that change as unified diffs.
        full: list unchanged and not applicable states too.
    """
    page = Page()
    view = overview(document)
    groups = [group for group in view.groups if not troubled(group)]
    several = sum(group.pending for group in groups) > 1
    if several:
        for group in groups:
            if group.pending:
                _head(page, group)
                _summary(page, group)
        _rows(page, closing(view))
        page.add("")
        page.add(("Changes:", "bold"))
    for group in groups:
        _group(page, group, diff=diff, full=full, summed_up=several)
    if not diff:
        _lists(page, groups)
    if view.counts["change"] and not several:
        _rows(page, closing(view))
    return page


def _rows(page: Page, rows: Sequence[tuple[str, str]], indent: str = "") -> None:
    """Names and texts."""
    for name, text in rows:
        page.add(indent, (f"{name:<10}", "dim"), text)


def _lists(page: Page, groups: Sequence[Group]) -> None:
    """How to see what lists of these nodes leave out."""
    states = (state for group in groups for state in group.node["states"])
    if any(is_shortened(change) for state in states for change in state.get("changes", ())):
        _rows(page, (("lists", "those with 'and N more' are whole with --diff"),))


def _summary(page: Page, group: Group) -> None:
    """What the change of a group is, and who is disturbed by it."""
    _rows(page, summary(group), "  ")
    _rows(page, in_use(group), "    ")


def objects_page(document: Mapping[str, Any], *, full: bool = False) -> Page:
    """The objects of the clusters; ``full``: unchanged ones, too."""
    page = Page()
    for data in document.get("clusters", ()):
        for pieces in objects.lines(data, full=full):
            page.add(*pieces)
    return page


def troubles_page(document: Mapping[str, Any], *, diff: bool = False, full: bool = False) -> Page:
    """The nodes that could not be planned or failed, and the command to retry them; arguments as above."""
    page = Page()
    view = overview(document)
    names = view.troubled
    if not names:
        return page
    page.add((f"{view.trouble}: {len(names)} node{'s' * (len(names) != 1)}", "bold"))
    groups = [group for group in view.groups if troubled(group)]
    for group in groups:
        _group(page, group, diff=diff, full=full)
    if not diff:
        _lists(page, groups)
    command = retry(document, names)
    if command:
        page.add("Retry: ", command)
    return page


def _own_reason(node: Mapping[str, Any], states: Sequence[Mapping[str, Any]]) -> str:
    """The reason of a node beside that of its states, such as what became of its rollback."""
    reason = str(node.get("reason") or "")
    for state in states:
        prefix = f"{state['state']}: {state.get('reason')}"
        if state.get("reason") and reason.startswith(prefix):
            return reason.removeprefix(prefix).removeprefix("; ")
    repeated = any(state.get("reason") and state["reason"] in reason for state in states)
    return "" if repeated else reason


def _head(page: Page, group: Group) -> None:
    """The names of the nodes of a group, and what becomes of them."""
    node = group.node
    status = str(node["status"])
    touched = [s for s in node["states"] if s["outcome"] not in QUIET]
    head: list[Piece | str] = [(names_line(group.names), "bold")]
    if status != "ok":
        head += ["  ", (f"{status} in part" if node.get("proceeds") else status, "red")]
    elif not touched:
        head += ["  ", ("nothing to do", "green")]
    if group.refused:
        head += ["  ", ("apply would refuse it", "red")]
    planned = status == "ok" or node.get("proceeds")
    if planned and node.get("disruption", "none") != "none":
        worst = at_worst(group) if group.pending else str(node["disruption"])
        head += ["  ", (f"at worst: {worst}", _COSTS.get(str(node["disruption"]), ""))]
    page.add(*head)


def _group(page: Page, group: Group, *, diff: bool, full: bool, summed_up: bool = False) -> None:
    """Nodes that share a plan; ``summed_up``: their summary is on the page already."""
    node = group.node
    touched = [s for s in node["states"] if s["outcome"] not in QUIET]
    _head(page, group)
    if group.pending and not summed_up:
        _summary(page, group)
    if reason := _own_reason(node, touched):
        page.add("  ", (reason, "red"))
    if touched or full:
        _states(page, node["states"], diff=diff, full=full)
    if words := remainder(node):
        page.add("  ", (words, "dim"))
    for note in () if group.pending else node.get("notes", []):
        page.add("  ", (f"note: {note}", "dim"))


def notes_page(notes: Sequence[str]) -> Page:
    """Notes on settings of the policy that have no effect."""
    page = Page()
    if notes:
        page.add(("Notes on the policy:", "bold"))
        for note in notes:
            page.add("  - ", note)
    return page


def plan_sentence(document: Mapping[str, Any]) -> str:
    """One sentence: the number of nodes that change and their worst disruption."""
    return overview(document).sentence


def question(document: Mapping[str, Any], verb: str, *, forks: int) -> str:
    """The confirmation prompt: nodes, their worst disruption, and how many at a time.

    Args:
        document: the plan.
        verb: ``apply``, ``upgrade``, ``remove`` or ``rollback``.
        forks: nodes processed in parallel.
    """
    view = overview(document)
    names = [name for group in view.groups if group.pending for name in group.names]
    worst = next((row for row in view.totals if row["nodes"] or row["possible"]), None)
    lost = f"; {objects.NO_GPUS}" if objects.takes_gpus(document.get("clusters", ())) else ""
    cost = "without disruption of what runs" if lost else "without disruption"
    if worst is not None and worst["disruption"] != "none":
        number = worst["nodes"] + worst["possible"]
        cost = f"at worst {worst['disruption']}" + (f" on {number}" if view.size > 1 else "")
    waves = (document.get("rollout") or {}).get("waves")
    if waves:
        cost += f", in waves of {', '.join(map(str, waves))}"
    elif view.size > 1:
        cost += f", {min(forks, len(names))} at a time"
    rolling_back = verb == "rollback" or "rollback" in document
    begin = "Roll back" if rolling_back else "Remove from" if verb == "remove" else "Apply to"
    if (runs := len(undone(document))) > 1:
        cost = f"before {runs} different runs, {cost}"
    return f"{begin} {names_line(names)}, {cost}{lost}?"
