"""The result of a run as one self-contained HTML page, for a change request. Pure.

Page, style and escaping are those of :mod:`gpustate.plan.html`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpustate.plan.context import retry
from gpustate.plan.groups import Group
from gpustate.plan.html import group_html, notes_html, objects_html, page, section, table
from gpustate.plan.htmltext import code, text
from gpustate.plan.results import sorted_groups
from gpustate.plan.run_words import facts, heading, headline, policy_notes


def report(document: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """The whole page.

    Args:
        document: ``gpustate.result/1``.
        run: ``about`` the run and its ``outcome``.
    """
    about, outcome = run["about"], run["outcome"]
    found = sorted_groups(document)
    title = text(heading(about))
    words = headline(outcome, found, document)
    top = (
        f'<header class="top"><p class="kicker">gpustate result</p><h1>{title}</h1>'
        f'<p class="lead">{text(words)}</p>{_facts(about)}</header>'
    )
    main = [
        '<div id="nodes"></div>',
        _failed(document, found.failed),
        _held(outcome["held"]),
        _skipped(outcome["skipped"]),
        _part("Changed", found.changed, "changed"),
        _part("Unchanged", found.unchanged, "unchanged"),
        objects_html(document),
        notes_html(policy_notes(document, outcome)),
    ]
    footer = f"<footer>Run {code(document['run'])}: {text(document['summary'])}</footer>"
    return page(title, top, main, footer)


def _facts(about: Mapping[str, Any]) -> str:
    rows = "".join(f"<dt>{name}</dt><dd>{code(value)}</dd>" for name, value in facts(about))
    return f'<dl class="origin">{rows}</dl>'


def _part(title: str, groups: Sequence[Group], name: str) -> str:
    if not groups:
        return ""
    return section(title, "".join(group_html(one) for one in groups), name)


def _failed(document: Mapping[str, Any], groups: Sequence[Group]) -> str:
    if not groups:
        return ""
    command = retry(document, [name for one in groups for name in one.names])
    body = f"<p>Retry: {code(command)}</p>" if command else ""
    body += "".join(group_html(one) for one in groups)
    return section("Not finished", body, "not-finished")


def _held(rows: Sequence[Mapping[str, str]]) -> str:
    if not rows:
        return ""
    body = table(["Node", "Why"], ([code(row["node"]), text(row["why"])] for row in rows))
    return section("Out of service", body, "out-of-service")


def _skipped(names: Sequence[str]) -> str:
    return section("Not started", code(", ".join(names)), "not-started") if names else ""
