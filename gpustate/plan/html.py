"""A plan, or the result of a run, as one self-contained HTML page, for a change request. Pure.

The page is the template ``page.html`` with ``page.css`` and ``page.js``, which adds the filter. Nothing is loaded from
anywhere, and the page forbids itself to: its content security policy allows its own style and script by their hashes,
and nothing else. Everything that nodes and policies say is escaped.

Sources:
    HTML Living Standard, section 13.3 (what is escaped in text and attributes);
    Content Security Policy Level 3, section 6.7.3 (hashes of inline style and script).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from gpustate.formats.words import cut, printable
from gpustate.plan import context, objects, overview, run_words
from gpustate.plan.groups import TOUCHED, Group
from gpustate.plan.results import sorted_groups

#: Longer values are cut; the documents have the whole text.
_LONGEST = 4000
#: Buttons of the filter that are not levels of disruption: words and colour.
_KINDS = {"unchanged": ("nothing to do", "good"), "not-planned": ("not planned", "bad")}
_DIFF = {"+": "a", "-": "d", "@": "h"}


def _text(value: object) -> object:
    """Text on one line, without control characters; jinja2 escapes it."""
    if isinstance(value, Markup):
        return value
    return printable(cut(str(value), _LONGEST).replace("\n", " "))


def _hash_of(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _diff_mark(line: str) -> str:
    return _DIFF.get((line.lstrip() if line.startswith("    ") else line)[:1], "")


def _kind(group: Group) -> str:
    """A group for the filter."""
    if group.quiet:
        return "unchanged"
    return str(group.node["disruption"]) if group.pending else "not-planned"


def _kinds(view: overview.Overview) -> Iterator[tuple[str, str, str, int]]:
    """Name, words, colour and number of nodes of each kind of group."""
    for kind in (*overview.LEVELS, *_KINDS):
        number = sum(len(group.names) for group in view.groups if _kind(group) == kind)
        if number:
            yield (kind, *_KINDS.get(kind, (kind, kind)), number)


def _own_part(name: str) -> Markup:
    return Markup((_FOLDER / name).read_text("utf-8").strip())


_FOLDER = Path(__file__).parent
_OF_OVERVIEW = (
    *("at_worst", "change_line", "closing", "detail_lines", "in_use", "remainder", "state_words"),
    "summary",
)
_PAGE = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_FOLDER),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_text,
    keep_trailing_newline=True,
)
_PAGE.globals |= {
    **{name: getattr(overview, name) for name in _OF_OVERVIEW},
    **{name: getattr(run_words, name) for name in ("facts", "heading", "headline")},
    "script": _own_part("page.js"),
    "style": _own_part("page.css"),
    "TOUCHED": TOUCHED,
    "diff_mark": _diff_mark,
    "failures": ("failed", "refused", "not run", "blocked: needs a console"),
    "hash_of": _hash_of,
    "kind": _kind,
    "most_lines": 2000,
    "most_ranges": 12,
    "newline": Markup("\n"),
    "objects": objects,
    "quiet": ("unchanged", "not applicable"),
    "retry": context.retry,
    "troubled": context.troubled,
}


def report(document: Mapping[str, Any], run: Mapping[str, Any] | None = None) -> str:
    """The whole page.

    Args:
        document: ``gpustate.plan/1``, or with a run ``gpustate.result/1``.
        run: ``about`` the run and its ``outcome``.
    """
    values: dict[str, Any] = {"document": document, "run": run, "notes": document["notes"]}
    if run is not None:
        values["results"] = sorted_groups(document)
        values["held"] = [(row["node"], row["why"]) for row in run["outcome"]["held"]]
        values["notes"] = run_words.policy_notes(document, run["outcome"])
    else:
        view = overview.overview(document)
        values |= {"view": view, "kinds": list(_kinds(view))}
        values["origin"] = [
            (name.capitalize(), value) for name, value in context.context_rows(document)
        ]
    return _PAGE.get_template("page.html").render(values)
