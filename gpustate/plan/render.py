"""Documents as text a person enjoys reading. Pure: from plain data to lines of styled pieces.

Nodes that share a plan are shown once. Only the documents of :mod:`gpustate.plan.document` are
read, so whatever the terminal shows is in the JSON too.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpustate.text.words import printable

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
}
_COSTS = {
    "none": "dim",
    "reload": "",
    "restart": "yellow",
    "drain": "yellow",
    "reset": "red",
    "reboot": "red",
}
_WIDE = 72
#: More on one line than this, nobody reads; the documents have it all.
_LONGEST = 4000


@dataclass(slots=True)
class Page:
    """Lines being put together."""

    lines: list[list[Piece]] = field(default_factory=list[list[Piece]])

    def add(self, *pieces: Piece | str) -> None:
        """One line; what nodes and files say cannot make it more, or act on a terminal."""
        both = (piece if isinstance(piece, tuple) else (piece, "") for piece in pieces)
        self.lines.append([(_on_one_line(text), style) for text, style in both])

    def plain(self) -> str:
        """Without any style."""
        return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in self.lines)


def _on_one_line(text: str) -> str:
    text = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
    return printable(text.replace("\n", " "))


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    if "\n" in text:
        return f"{len(text.splitlines())} lines"
    return text if len(text) <= _WIDE else text[: _WIDE - 3] + "..."


def _change_line(change: Mapping[str, Any]) -> str:
    before, after = change["before"], change["after"]
    name = change["field"]
    if "path" in change:
        name = str(change["path"])
        if before is None:
            return f"{name}: new file, {_short(after)}"
        if after is None:
            return f"{name}: removed"
        return f"{name}: content"
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [k for k in sorted({*before, *after}) if before.get(k) != after.get(k)]
        parts = [f"{k}: {_short(before.get(k))} -> {_short(after.get(k))}" for k in keys[:4]]
        more = f" and {len(keys) - 4} more" if len(keys) > 4 else ""
        return f"{name}: {'; '.join(parts)}{more}"
    if isinstance(before, list) and isinstance(after, list):
        gone = [_short(item) for item in before if item not in after]
        new = [_short(item) for item in after if item not in before]
        parts = [f"+ {', '.join(new[:6])}"] * bool(new) + [f"- {', '.join(gone[:6])}"] * bool(gone)
        return f"{name}: {' '.join(parts) or 'order'}"
    return f"{name}: {_short(before)} -> {_short(after)}"


def _diff(page: Page, change: Mapping[str, Any]) -> None:
    path = str(change.get("path", change["field"]))
    before, after = change["before"], change["after"]
    if not isinstance(before, str | None) or not isinstance(after, str | None):
        return
    if "\n" not in (before or "") + (after or ""):
        return
    lines = difflib.unified_diff(
        (before or "").splitlines(),
        (after or "").splitlines(),
        path if before is not None else "/dev/null",
        path if after is not None else "/dev/null",
        lineterm="",
    )
    for line in lines:
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        page.add("         ", (line, style))


def _states(page: Page, states: Sequence[Mapping[str, Any]], *, diff: bool, whole: bool) -> None:
    width = max((len(str(state["state"])) for state in states), default=0)
    for state in states:
        outcome = str(state["outcome"])
        sign, style = _SIGNS.get(outcome, ("?", ""))
        cost = str(state.get("worst") or state.get("disruption") or "")
        quiet = outcome in ("unchanged", "not applicable")
        if quiet and not whole:
            continue
        told = ""
        if outcome == "known after":
            told = f"known after {', '.join(state['known_after'])}"
            cost = f"<={cost}" if cost not in ("", "none") else ""
        elif state.get("reason"):
            told = f"{outcome}: {state['reason']}"
        elif outcome != "would change":
            told = outcome
        if cost == "none":
            cost = ""
        name = f"{state['state']!s:<{width}}"
        page.add(
            "  ",
            (sign, style),
            " ",
            (name, "bold" if not quiet else "dim"),
            "  ",
            (f"{cost:<8}", _COSTS.get(cost.removeprefix("<="), "")),
            " ",
            (told, "red" if style == "red" else "dim"),
        )
        for change in state.get("changes", []):
            page.add(
                "         ",
                _change_line(change),
                *([(f"  ({change['why']})", "dim")] if change.get("why") else []),
            )
            if diff:
                _diff(page, change)
        for note in state.get("notes", []):
            page.add("         ", (f"note: {note}", "dim"))
        for line in str(state.get("evidence", "")).splitlines():
            page.add("         ", (f"| {line}", "dim"))


def _group(nodes: Sequence[Mapping[str, Any]]) -> list[tuple[list[str], Mapping[str, Any]]]:
    """Nodes that share everything a page shows, in order of first appearance."""
    groups: dict[str, tuple[list[str], Mapping[str, Any]]] = {}
    for node in nodes:
        shown = {key: node.get(key) for key in ("status", "reason", "states", "notes")}
        key = json.dumps(shown, sort_keys=True)
        groups.setdefault(key, ([], node))[0].append(str(node["name"]))
    return list(groups.values())


def names_line(names: Sequence[str], limit: int = 6) -> str:
    """Some names, the rest counted."""
    shown = ", ".join(names[:limit])
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{shown}{more}" + (f" ({len(names)} nodes)" if len(names) > 1 else "")


def nodes_page(document: Mapping[str, Any], *, diff: bool = False, whole: bool = False) -> Page:
    """The nodes of a plan or result.

    Args:
        document: ``gpustate.plan/1`` or ``gpustate.result/1``.
        diff: show the content of files that change as unified diffs.
        whole: list unchanged and not applicable states too.
    """
    page = Page()
    for names, node in _group(document["nodes"]):
        status = str(node["status"])
        touched = [s for s in node["states"] if s["outcome"] not in ("unchanged", "not applicable")]
        head: list[Piece | str] = [(names_line(names), "bold")]
        if status != "ok":
            head += ["  ", (status, "red")]
        elif not touched:
            head += ["  ", ("nothing to do", "green")]
        elif node.get("disruption", "none") != "none":
            head += [
                "  ",
                (f"at worst: {node['disruption']}", _COSTS.get(str(node["disruption"]), "")),
            ]
        page.add(*head)
        if node.get("reason") and not any(
            s.get("reason") and s["reason"] in node["reason"] for s in touched
        ):
            page.add("  ", (str(node["reason"]), "red"))
        if touched or whole:
            _states(page, node["states"], diff=diff, whole=whole)
        for note in node.get("notes", []):
            page.add("  ", (f"note: {note}", "dim"))
    return page


def notes_page(notes: Sequence[str]) -> Page:
    """What the policy says and nobody here does."""
    page = Page()
    if notes:
        page.add(("Notes on the policy:", "bold"))
        for note in notes:
            page.add("  - ", note)
    return page


def plan_sentence(document: Mapping[str, Any]) -> str:
    """One sentence: how many nodes change and what it costs at worst."""
    costs: dict[str, int] = {}
    change = unchanged = other = 0
    for node in document["nodes"]:
        if node["status"] != "ok":
            other += 1
        elif any(s["outcome"] in ("would change", "known after") for s in node["states"]):
            change += 1
            costs[str(node["disruption"])] = costs.get(str(node["disruption"]), 0) + 1
        else:
            unchanged += 1
    order = ("reboot", "reset", "drain", "restart", "reload", "none")
    told = ", ".join(
        f"{costs[c]} {c}" if c != "none" else f"{costs[c]} without disruption"
        for c in order
        if c in costs
    )
    sentence = f"Plan: {change} node{'s' * (change != 1)} would change"
    sentence += f" (at worst: {told})" if told else ""
    sentence += f", {unchanged} unchanged"
    return sentence + (f", {other} not planned" if other else "") + "."
