"""States of a group of nodes in the HTML page: changes, reasons and disruption. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpustate.plan.htmltext import tag, text
from gpustate.plan.overview import diff_lines, short, state_words

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
    shown = f"<pre>{_lines(evidence)}</pre>" if evidence else ""
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
    before, after = change["before"], change["after"]
    why = f' <span class="soft">({text(change["why"])})</span>' if change.get("why") else ""
    name = f'<span class="field mono">{text(change.get("path") or change.get("label", change["field"]))}</span>'
    if "lines" in change:
        return f"{name}:{why}<pre>{_lines(change['lines'])}</pre>"
    lines = diff_lines(change)
    if lines:
        what = "new file" if before is None else "removed" if after is None else "content"
        more = f"<p class=soft>and {len(lines) - _LINES} more lines</p>" * (len(lines) > _LINES)
        return (
            f'{name}: {what}{why}<details class="fold"><summary>{_count(lines)}</summary>'
            f"<pre>{_lines(lines[:_LINES])}</pre>{more}</details>"
        )
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [k for k in sorted({*before, *after}) if before.get(k) != after.get(k)]
        rows = (f"<li>{text(k)}: {_pair(before.get(k), after.get(k))}</li>" for k in keys)
        return f'{name}{why}<ul class="text">{"".join(rows)}</ul>'
    if isinstance(before, list) and isinstance(after, list):
        gone = [item for item in before if item not in after]
        new = [item for item in after if item not in before]
        items = [f"<del>- {_value(i)}</del>" for i in gone] + [
            f"<ins>+ {_value(i)}</ins>" for i in new
        ]
        return f"{name}: {' '.join(items) or 'another order'}{why}"
    return f"{name}: {_pair(before, after)}{why}"


def _count(lines: Sequence[str]) -> str:
    plus = sum(line.startswith("+") for line in lines[2:])
    minus = sum(line.startswith("-") for line in lines[2:])
    return f"{plus} line{'s' * (plus != 1)} more, {minus} less"


def _pair(before: Any, after: Any) -> str:
    return f"<del>{_value(before)}</del> \u2192 <ins>{_value(after)}</ins>"


def _value(value: Any) -> str:
    if value in ("", None) or isinstance(value, bool):
        return short(value)
    return text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _lines(lines: Sequence[str]) -> str:
    shown = (
        f'<span class="{_DIFF[sign]}">{text(line)}</span>'
        if (sign := line.lstrip()[:1] if line.startswith("    ") else line[:1]) in _DIFF
        else text(line)
        for line in lines
    )
    return "\n".join(shown)
