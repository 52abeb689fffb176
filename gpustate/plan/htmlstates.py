"""States of a group of nodes in the HTML page: changes, reasons and disruption. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpustate.plan.htmltext import tag, text
from gpustate.plan.overview import change_line, detail_lines, state_words

_QUIET = ("unchanged", "not applicable")
_BAD = ("failed", "refused", "not run", "blocked: needs a console")
_DIFF = {"+": "a", "-": "d", "@": "h"}
#: Most lines of a diff that are shown; the plan has all.
_LINES = 2000


def state_html(state: Mapping[str, Any]) -> str:
    """One state with changes or a failure; empty for others."""
    if state["outcome"] in _QUIET:
        return ""
    cost, told = state_words(state)
    level = cost.removeprefix("<=")
    bad = state["outcome"] in _BAD
    head = f"<b>{text(state['state'])}</b>"
    if level:
        head += tag(f"at most {level}" if cost != level else level, level)
    if told != "would change":
        head += tag(told, "bad") if bad else f'<span class="soft">{text(told)}</span>'
    body = "".join(f"<li>{_change(change)}</li>" for change in state.get("changes", ()))
    body = f'<ul class="changes">{body}</ul>' if body else ""
    notes = "".join(f'<p class="soft">Note: {text(note)}</p>' for note in state.get("notes", ()))
    evidence = str(state.get("evidence", "")).splitlines()
    shown = f"<pre>{lines_html(evidence)}</pre>" if evidence else ""
    for title in ("command", "inspect"):
        if state.get(title):
            shown += f'<p class="soft">{title.capitalize()}: <code>{text(state[title])}</code></p>'
    return f'<div class="state"><div class="head">{head}</div>{body}{notes}{shown}</div>'


def states_rest(states: Sequence[Mapping[str, Any]]) -> str:
    """Unchanged and not applicable states, by name."""
    told = ""
    for outcome in _QUIET:
        names = [
            text(s["state"]) + (f" ({text(s['reason'])})" if s.get("reason") else "")
            for s in states
            if s["outcome"] == outcome
        ]
        if names:
            title = outcome[0].upper() + outcome[1:]
            told += f'<p class="soft">{title}: {", ".join(names)}.</p>'
    return told


def _change(change: Mapping[str, Any]) -> str:
    """A change as in the text, and folded what that leaves out."""
    why = f' <span class="soft">({text(change["why"])})</span>' if change.get("why") else ""
    line = f'<span class="mono">{text(change_line(change))}</span>{why}'
    if "lines" in change:
        return f"{line}<pre>{lines_html(change['lines'])}</pre>"
    details = detail_lines(change)
    if not details:
        return line
    more = f"<p class=soft>and {len(details) - _LINES} more lines</p>" * (len(details) > _LINES)
    body = f"<pre>{lines_html(details[:_LINES])}</pre>{more}"
    return f'{line}<details class="fold"><summary>Details</summary>{body}</details>'


def lines_html(lines: Sequence[str]) -> str:
    """Lines for a ``pre``, coloured as a diff."""
    shown = (
        f'<span class="{_DIFF[sign]}">{text(line)}</span>'
        if (sign := line.lstrip()[:1] if line.startswith("    ") else line[:1]) in _DIFF
        else text(line)
        for line in lines
    )
    return "\n".join(shown)
