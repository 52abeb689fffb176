"""A plan as one self-contained HTML page, for a change request. Pure.

Nothing is loaded from anywhere, and the page forbids itself to: its content security policy allows its own
style and script by their hashes, and nothing else. Everything that nodes and policies say is escaped.

Sources:
    HTML Living Standard, section 13.3 (what is escaped in text and attributes);
    Content Security Policy Level 3, section 6.7.3 (hashes of inline style and script).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpustate.plan import objects
from gpustate.plan.context import retry, shown, troubled
from gpustate.plan.groups import TOUCHED, Group
from gpustate.plan.htmlparts import SCRIPT, STYLE
from gpustate.plan.htmlstates import lines_html, state_html, states_rest
from gpustate.plan.htmltext import code, tag, text
from gpustate.plan.overview import (
    LEVELS,
    PROCEEDS,
    Overview,
    at_worst,
    closing,
    in_use,
    overview,
    summary,
)

#: Most ranges of names in a heading; the section lists all names.
_RANGES = 12
_STATES = 8


def report(document: Mapping[str, Any]) -> str:
    """The whole page of a ``gpustate.plan/1``."""
    view = overview(document)
    title = f"Plan: {text(document['policy']['name'])}, {_nodes(view.size)}"
    main = [
        _first_page(view),
        section("Nodes", _groups(view), "nodes"),
        objects_html(document),
        notes_html(document["notes"]),
    ]
    return page(title, _top(view), main, _footer(document))


def page(title: str, top: str, main: Sequence[str], footer: str) -> str:
    """A whole page.

    Args:
        title: escaped text.
        top: its header.
        main: its parts; empty ones are left out.
        footer: its last line.
    """
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_content_policy()}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="generator" content="gpustate">',
        f"<title>{title}</title><style>{STYLE}</style></head>",
        '<body><a class="skip" href="#nodes">Skip to the nodes</a><div class="page">',
        top,
        "<main>" + "\n".join(filter(None, main)),
        "</main>",
        footer,
        f"</div><script>{SCRIPT}</script></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _content_policy() -> str:
    def allowed(content: str) -> str:
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        return f"'sha256-{digest}'"

    return (
        f"default-src 'none'; style-src {allowed(STYLE)}; script-src {allowed(SCRIPT)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _nodes(number: int) -> str:
    return f"{number:,} node{'s' * (number != 1)}"


def section(title: str, body: str, name: str = "") -> str:
    """A section with its heading."""
    made = name or title.lower().replace(" ", "-")
    return (
        f'<section class="block" id="{made}" aria-labelledby="h-{made}">'
        f'<h2 id="h-{made}">{title}</h2>{body}</section>'
    )


def _top(view: Overview) -> str:
    document = view.document
    policy = document["policy"]
    return (
        '<header class="top"><p class="kicker">gpustate plan</p>'
        f"<h1>{text(policy['name'])}</h1>"
        f'<p class="lead">{text(view.sentence.removeprefix("Plan: "))}</p>'
        f'<p class="soft">Made {text(document["created"])} from {code(policy["source"])}. '
        f"Nothing was changed.</p>{_origin(document)}</header>"
    )


def _origin(document: Mapping[str, Any]) -> str:
    """Inventory, limit, commit and person, if the plan has them."""
    rows = "".join(
        f"<dt>{name.capitalize()}</dt><dd>{code(value)}</dd>" for name, value in shown(document)
    )
    return f'<dl class="origin">{rows}</dl>' if rows else ""


def _first_page(view: Overview) -> str:
    """What changes, group by group, and how the nodes go back."""
    parts = [
        f'<h3 class="names"><span class="mono">{text(", ".join(one.ranges[:_RANGES]))}</span> '
        f"{_nodes(len(one.names))} {tag(at_worst(one), one.worst[0])}</h3>{_list(summary(one), in_use(one))}"
        for one in view.groups
        if one.pending
    ]
    parts += [_list(closing(view))] if closing(view) else []
    return section("Changes", "".join(parts), "changes") if view.counts["change"] else ""


def _list(rows: Sequence[tuple[str, str]], nodes: Sequence[tuple[str, str]] = ()) -> str:
    rows = [*((name.capitalize(), value) for name, value in rows), *nodes]
    body = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in rows)
    return f'<dl class="facts">{body}</dl>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    names = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for cells in rows)
    return f'<div class="wide"><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'


def _kind(one: Group) -> str:
    """Text of a group for the filter."""
    if one.quiet:
        return "unchanged"
    return str(one.node["disruption"]) if one.pending else "not-planned"


def _groups(view: Overview) -> str:
    kinds: dict[str, int] = {}
    for one in view.groups:
        kinds[_kind(one)] = kinds.get(_kind(one), 0) + len(one.names)
    words = {"unchanged": "nothing to do", "not-planned": "not planned"}
    marks = {"unchanged": "good", "not-planned": "bad"}
    buttons = "".join(
        f'<button type="button" data-kind="{kind}" aria-pressed="true">'
        f'<span class="tag {marks.get(kind, kind)}">{words.get(kind, kind)} {kinds[kind]:,}</span></button>'
        for kind in (*LEVELS, "unchanged", "not-planned")
        if kind in kinds
    )
    tools = (
        '<div class="tools" role="search" data-script hidden>'
        '<input id="filter" type="search" aria-label="Filter by node, state or text" '
        'placeholder="Filter by node, state or text">'
        f"{buttons}"
        '<button id="open" type="button">Unfold all</button>'
        '<button id="close" type="button">Fold all</button>'
        '<span id="shown" class="soft" role="status"></span></div>'
    )
    body = "".join(group_html(one) for one in view.groups if not troubled(one))
    bad = "".join(group_html(one) for one in view.groups if troubled(one))
    if bad:
        command = retry(view.document, view.troubled)
        body += f"<h3>{view.trouble}: {_nodes(len(view.troubled))}</h3>"
        body += f"<p>Retry: {code(command)}</p>" if command else ""
    return tools + body + bad


def group_html(one: Group) -> str:
    """A group of nodes, folded."""
    node = one.node
    ranges = one.ranges
    names = ", ".join(ranges[:_RANGES]) + (" ..." if len(ranges) > _RANGES else "")
    head = f'<span class="names mono">{text(names)}</span>'
    if len(one.names) > 1:
        head += f'<span class="soft">{_nodes(len(one.names))}</span>'
    if one.quiet:
        head += tag("nothing to do", "good")
    elif one.pending:
        head += tag(at_worst(one), one.worst[0])
        if node.get("proceeds"):
            head += tag(f"{node['status']} in part", "bad")
    else:
        head += tag(str(node["status"]), "good" if node["status"] == "ok" else "bad")
    about = text(node.get("reason", ""))
    if one.pending:
        touched = [text(s["state"]) for s in node["states"] if s["outcome"] in TOUCHED]
        more = f" and {len(touched) - _STATES} more" if len(touched) > _STATES else ""
        about = ", ".join(touched[:_STATES]) + more
    if about:
        head += f'<span class="soft what">{about}</span>'
    inside = f"<p>{text(node['reason'])}</p>" if node.get("reason") else ""
    if node.get("proceeds"):
        inside += f'<p class="soft">{text(PROCEEDS[0].upper() + PROCEEDS[1:])}.</p>'
    inside += "".join(state_html(state) for state in node["states"])
    inside += states_rest(node["states"])
    if one.disturbed:
        rows = ([code(node), code(name), text(how)] for node, name, how in one.disturbed)
        inside += f"<h3>In use by</h3>{table(['Node', 'Pod, job or program', 'What becomes of it'], rows)}"
    if node.get("notes") and not one.pending:
        items = "".join(f"<li>{text(note)}</li>" for note in node["notes"])
        inside += f'<h3>Notes</h3><ul class="text">{items}</ul>'
    if len(one.names) > 1:
        chips = "".join(f"<li>{text(name)}</li>" for name in one.names)
        inside += f'<h3>Nodes</h3><ul class="chips mono">{chips}</ul>'
    return (
        f'<details class="group" data-kind="{_kind(one)}" data-nodes="{len(one.names)}">'
        f'<summary>{head}</summary><div class="inside">{inside}</div></details>'
    )


def objects_html(document: Mapping[str, Any]) -> str:
    """The objects of the clusters; empty without any."""
    body = "".join(
        f"<h3>{text(objects.title_of(data))}</h3><pre>{lines_html(objects.plain(data))}</pre>"
        for data in document.get("clusters", ())
    )
    return section("Objects of the clusters", body, "objects") if body else ""


def notes_html(notes: Sequence[str]) -> str:
    """Notes on the policy; empty without any."""
    if not notes:
        return ""
    items = "".join(f"<li>{text(note)}</li>" for note in notes)
    return section("Notes on the policy", f'<ul class="text">{items}</ul>', "notes")


def _footer(document: Mapping[str, Any]) -> str:
    return (
        f"<footer>Plan {code(document['id'])} of run {code(document['run'])}. Apply the saved file "
        f"with <code>gpustate apply FILE</code>; a node that has changed since is refused."
        "</footer>"
    )
