"""The result of a run as Markdown, for a change request. Pure; escaping as in :mod:`gpustate.plan.markdown`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpustate.plan.context import retry
from gpustate.plan.markdown import block, code, group_lines, objects_lines, table, text
from gpustate.plan.results import sorted_groups
from gpustate.plan.run_words import facts, heading, headline, policy_notes


def report(document: Mapping[str, Any], run: Mapping[str, Any], *, diff: bool = False) -> str:
    """The result as a report.

    Args:
        document: ``gpustate.result/1``.
        run: ``about`` the run and its ``outcome``.
        diff: show the content of files that changed.
    """
    about, outcome = run["about"], run["outcome"]
    results = sorted_groups(document)
    lines = [f"# Result of {text(heading(about))}", ""]
    lines += [text(headline(outcome, results, document)), ""]
    lines += table(["", ""], ([name, code(value, cell=True)] for name, value in facts(about)))
    if results.failed:
        names = results.names(results.failed)
        lines += ["", f"## Not finished: {len(names)}"]
        command = retry(document, names)
        lines += ["", "Retry:", "", *block([command], "sh")] if command else []
        for group in results.failed:
            lines += ["", *group_lines(group, diff=diff)]
    if outcome["held"]:
        lines += ["", "## Out of service", ""]
        lines += [f"- {code(row['node'])}: {text(row['why'])}" for row in outcome["held"]]
    if outcome["skipped"]:
        lines += ["", "## Not started", "", code(", ".join(outcome["skipped"]))]
    if results.changed:
        lines += ["", f"## Changed: {len(results.names(results.changed))}"]
        for group in results.changed:
            lines += ["", *group_lines(group, diff=diff)]
    if results.unchanged:
        lines += ["", f"## Unchanged: {len(results.names(results.unchanged))}", ""]
        lines += [code(", ".join(name for group in results.unchanged for name in group.ranges))]
    lines += objects_lines(document)
    if notes := policy_notes(document, outcome):
        lines += ["", "## Notes on the policy", "", *(f"- {text(note)}" for note in notes)]
    lines += ["", code(document["summary"])]
    return "\n".join(lines) + "\n"
