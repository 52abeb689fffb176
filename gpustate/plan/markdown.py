"""A plan as Markdown, for a pull request, a ticket or a wiki. Pure.

CommonMark with the tables of GitHub and GitLab. Everything that nodes and policies say is escaped: it
can start no list, link, heading, mention or HTML, and end no table or code block. Values stand in code
spans, which show them as they are.

Sources:
    CommonMark 0.31.2, sections 2.4 (backslash escapes) and 6.1 (code spans);
    GitHub Flavored Markdown 0.29, sections 4.10 (tables) and 6.9 (autolinks).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpustate.formats.words import printable, printable_lines
from gpustate.plan import objects
from gpustate.plan.context import context_rows, retry, troubled
from gpustate.plan.groups import Group
from gpustate.plan.overview import (
    QUIET,
    WAITING,
    at_worst,
    change_line,
    closing,
    detail_lines,
    in_use,
    overview,
    remainder,
    state_words,
    summary,
    waiting,
)

#: Characters with a meaning anywhere, at the start of a line, or before a word (``:name:``, ``http://``).
_SPECIAL = re.compile(
    r"[\\`*\[\]<#|~&@$]|(?<![^\W_])_|_(?![^\W_])|^[-+=>]|:(?=[\w/+-])|(?<=www)\.|^[0-9]+(?=[.)])",
    re.IGNORECASE,
)
_TICKS = re.compile(r"`+")
_FENCES = re.compile(r"`{3,}")


def text(value: object) -> str:
    """Text of nodes and policies, escaped."""
    plain = " ".join(printable(str(value).replace("\n", " ").replace("\t", " ")).split(" "))
    return _SPECIAL.sub(_escaped, plain.strip())


def _escaped(match: re.Match[str]) -> str:
    part = match[0]
    # A number can begin a list only with the point or bracket behind it.
    return f"{part}\\" if part.isdigit() else f"\\{part}"


def code(value: object, *, cell: bool = False) -> str:
    """A value as it is, in a code span; ``cell``: of a table, where a pipe ends a cell even in code."""
    plain = printable(str(value).replace("\n", " "))
    if cell:
        plain = plain.replace("|", "\\|")
    if not plain.strip():
        return text(plain) or "(blank)"
    longest = max((len(run) for run in _TICKS.findall(plain)), default=0)
    ticks = "`" * (longest + 1)
    # One blank at each end is removed again when both are there.
    edge = " " if plain[0] in "` " or plain[-1] in "` " else ""
    return f"{ticks}{edge}{plain}{edge}{ticks}"


def block(lines: Iterable[str], language: str = "") -> list[str]:
    """Lines as they are, in a fenced block."""
    plain_lines = [printable_lines(line.replace("\n", " ")) for line in lines]
    longest = max((len(run) for line in plain_lines for run in _FENCES.findall(line)), default=2)
    fence = "`" * (longest + 1)
    return [fence + language, *plain_lines, fence]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table."""
    return ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]


def report(document: Mapping[str, Any], *, diff: bool = False) -> str:
    """The plan as a report.

    Args:
        document: ``gpustate.plan/1``.
        diff: show the content of files that change.
    """
    view = overview(document)
    policy = document["policy"]
    lines = [
        f"# Plan: {text(policy['name'])}",
        "",
        f"{text(view.sentence.removeprefix('Plan: '))}",
        "",
        f"Made {code(document['created'])} from {code(policy['source'])}, plan {code(document['id'])}, "
        f"by gpustate; nothing was changed.",
    ]
    origin = [f"- {name.capitalize()}: {code(value)}" for name, value in context_rows(document)]
    lines += ["", *origin] if origin else []
    for group in view.groups:
        if group.pending:
            lines += ["", *_summary(group)]
    lines += ["", *(f"- {name}: {text(value)}" for name, value in closing(view))]
    lines += ["", "## Nodes"]
    for group in view.groups:
        if not troubled(group):
            lines += ["", *group_lines(group, diff=diff)]
    if view.troubled:
        command = retry(document, view.troubled)
        lines += ["", f"## {view.trouble}"]
        lines += ["", "Retry:", "", *block([command], "sh")] if command else []
        for group in view.groups:
            if troubled(group):
                lines += ["", *group_lines(group, diff=diff)]
    lines += objects_lines(document)
    if document["notes"]:
        lines += ["", "## Notes on the policy", "", *(f"- {text(n)}" for n in document["notes"])]
    return "\n".join(lines) + "\n"


def objects_lines(document: Mapping[str, Any]) -> list[str]:
    """The sections of the clusters of a document; empty without any."""
    lines = ["", "## Objects of the clusters"] if document.get("clusters") else []
    for data in document.get("clusters", ()):
        lines += ["", f"### {text(objects.title_of(data))}", ""]
        lines += block(objects.plain(data))
    return lines


def _summary(group: Group) -> list[str]:
    """The rows of the first page of a group."""
    lines = [
        f"**{code(', '.join(group.ranges))}** ({len(group.names)} node{'s' * (len(group.names) != 1)}), at worst {at_worst(group)}:",
        "",
    ]
    return lines + [
        f"- {text(name)}: {text(value)}" for name, value in summary(group) + in_use(group)
    ]


def group_lines(group: Group, *, diff: bool) -> list[str]:
    """The section of a group of nodes."""
    node = group.node
    ranges = ", ".join(group.ranges[:8]) + (" ..." if len(group.ranges) > 8 else "")
    number = f" ({len(group.names)} nodes)" if len(group.names) > 1 else ""
    headline = str(node["status"])
    if group.quiet:
        headline = "nothing to do"
    elif group.pending:
        headline = f"at worst {at_worst(group)}"
        if node.get("proceeds"):
            headline += f", {node['status']} in part"
    lines = [f"### {code(ranges)}{number}: {text(headline)}"]
    if len(group.ranges) > 8:
        lines += ["", f"{code(', '.join(group.ranges))}"]
    if node.get("reason"):
        lines += ["", text(node["reason"])]
    if words := remainder(node):
        lines += ["", f"{text(words[0].upper() + words[1:])}."]
    body: list[str] = []
    undecided = waiting(node["states"])
    for state in node["states"]:
        if state["outcome"] not in QUIET and state["state"] not in undecided:
            body += _state(state, diff=diff)
    if undecided:
        body.append(f"- {', '.join(f'**{text(name)}**' for name in undecided)} {text(WAITING)}")
    body += [] if group.pending else [f"- {text(note)}" for note in node.get("notes", [])]
    if group.disturbed:
        rows = [
            [code(part, cell=True) for part in row[:2]] + [text(row[2])] for row in group.disturbed
        ]
        body += ["", *table(["node", "in use by", "what becomes of it"], rows)]
    return [*lines, *([""] if body else []), *body]


def _state(state: Mapping[str, Any], *, diff: bool) -> list[str]:
    cost, outcome = state_words(state)
    cost = f"at most {cost[2:]}" if cost.startswith("<=") else cost
    words = [f"**{text(state['state'])}**", text(outcome)]
    lines = ["- " + " ".join(words) + (f", **{cost}**" if cost else "")]
    for change in state.get("changes", []):
        why = f" ({text(change['why'])})" if change.get("why") else ""
        lines.append(f"  - {code(change_line(change))}{why}")
        inside = list(change.get("lines", ()))
        if inside:
            lines += ["", *("    " + line for line in block(inside)), ""]
        differing = detail_lines(change) if diff else []
        if differing:
            lines += ["", *("    " + line for line in block(differing, "diff")), ""]
    lines += [f"  - note: {text(note)}" for note in state.get("notes", [])]
    evidence = str(state.get("evidence", "")).splitlines()
    if evidence:
        lines += ["", *("    " + line for line in block(evidence)), ""]
    lines += [
        f"  - {title}: {code(str(state[title]))}"
        for title in ("command", "inspect")
        if state.get(title)
    ]
    return lines
