"""Texts that the reports of a result share. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpustate.plan.context import resumption
from gpustate.plan.results import Results

_NAMES = {
    "person": "Person",
    "reason": "Reason",
    "started": "Started",
    "ended": "Ended",
    "run": "Run",
    "source": "Policy or plan",
    "plan": "Plan",
    "digest": "SHA-256",
    "inventory": "Inventory",
    "limit": "Limit",
    "waves": "Waves",
}


def facts(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Who ran what, when and why: names and values."""
    rows: list[tuple[str, str]] = []
    for key, name in _NAMES.items():
        value = about.get(key)
        if key == "waves" and value:
            value = f"{len(value)} (nodes: {', '.join(map(str, value))})"
        if value:
            rows.append((name, str(value)))
    return rows


def heading(about: Mapping[str, Any]) -> str:
    """The verb and what it was given; a rollback of the last run was given nothing."""
    return ": ".join(str(about[key]) for key in ("verb", "source") if about.get(key))


def policy_notes(document: Mapping[str, Any], outcome: Mapping[str, Any]) -> list[str]:
    """The notes on the policy; why the run stopped is in the headline."""
    return [note for note in document["notes"] if note != f"stopped: {outcome.get('stopped')}"]


def headline(outcome: Mapping[str, Any], results: Results, document: Mapping[str, Any]) -> str:
    """The result in one sentence, and how an interrupted run goes on."""
    skipped, command = len(document["skipped"]), resumption(document)
    counts = results.counts
    total = sum(
        len(results.names(part)) for part in (results.changed, results.unchanged, results.failed)
    )
    total += skipped
    begun = f", {skipped} not started" if skipped else ""
    stopped = f" Stopped: {outcome['stopped']}." if outcome.get("stopped") else ""
    stopped += f" Resume it with: {command}" if command else ""
    how = "Interrupted" if outcome["interrupted"] else f"Exit code {outcome['exit_code']}"
    return (
        f"{how}: {total} node{'s' * (total != 1)}, {counts['Changed']} changed, "
        f"{counts['Unchanged']} unchanged, {counts['Not finished']} not finished{begun}.{stopped}"
    )
