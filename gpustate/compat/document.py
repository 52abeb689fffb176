"""Reports and rules as documents and as text. Pure.

Formats: ``gpustate.matrix/1`` (results for some facts), ``gpustate.matrix-rules/1`` (the rules) and
``gpustate.matrix-rule/1`` (one rule); ``schema/`` describes them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

import yaml

from gpustate.compat.check import Report, Result
from gpustate.compat.facts import FACTS, Facts, format_value
from gpustate.compat.rules import Rule, RuleSet, Verdict
from gpustate.formats.words import listed

REPORT_FORMAT = "gpustate.matrix/1"
RULES_FORMAT = "gpustate.matrix-rules/1"
RULE_FORMAT = "gpustate.matrix-rule/1"
_STATES = {True: "holds", False: "does not hold", None: "cannot tell"}
#: The number of missing facts to list.
_MOST_LISTED = 6


def rule_data(rule: Rule) -> dict[str, object]:
    """One complete rule."""
    data: dict[str, object] = {
        "id": rule.id,
        "theme": rule.theme,
        "verdict": rule.verdict.value,
        "when": rule.written,
        "because": rule.because,
        "fix": rule.fix,
        "source": {"address": rule.source.address, "retrieved": rule.source.retrieved}
        | ({"live": True} if rule.source.live else {}),
    }
    if rule.review:
        review = rule.review
        data["review"] = {
            "reader": review.reader,
            "date": review.date,
            "verdict": review.verdict.value,
        } | ({"note": review.note} if review.note else {})
    data["tests"] = rule.tests
    return data


def rules_data(rules: RuleSet) -> dict[str, object]:
    """All rules."""
    return {
        "format": RULES_FORMAT,
        "origin": rules.origin,
        "digest": rules.digest,
        "rules": [rule_data(rule) for rule in rules],
    }


def result_data(result: Result) -> dict[str, object]:
    """The result of one rule."""
    data: dict[str, object] = {
        "rule": result.rule.id,
        "verdict": result.rule.verdict.value,
        "state": _STATES[result.holds],
    }
    if result.missing:
        data["missing"] = list(result.missing)
    if result.holds:
        data["because"] = result.rule.because
        data["fix"] = result.rule.fix
        data["source"] = result.rule.source.address
    if result.allowed:
        data["allowed"] = result.allowed
    return data


def report_data(report: Report, *, strict: bool = False, note: str = "") -> dict[str, object]:
    """A whole report, with a note about the given facts."""
    nearly = {
        id(result): {"fact": fact} | ({"value": value} if value else {})
        for result, fact, value in report.nearly_blocks()
    }
    return {
        "format": REPORT_FORMAT,
        "digest": report.digest,
        "facts": {name: format_value(value) for name, value in report.facts.items()},
        "blocked": is_refused(report, strict=strict),
        "summary": _counts(report),
        **({"note": note} if note else {}),
        "results": [
            result_data(result)
            | ({"would_block_if": nearly[id(result)]} if id(result) in nearly else {})
            for result in report.results
        ],
    }


def is_refused(report: Report, *, strict: bool) -> bool:
    """Whether a node with these facts is refused; with ``strict`` also because of warnings."""
    return bool(report.blocks or (strict and report.warnings))


def _counts(report: Report) -> dict[str, int]:
    fits = sum(result.holds is False for result in report.results)
    return {
        "rules": len(report.results),
        "blocks": len(report.blocks),
        "warnings": len(report.warnings),
        "informs": len(report.informs),
        "allowed": len(report.overridden),
        "fits": fits,
        "cannot_tell": len(report.untold),
    }


# --- text ----------------------------------------------------------------------------------


def report_text(report: Report, note: str = "") -> str:
    """A report as text, with a note about the given facts; the last line is for grep."""
    parts: list[str] = []
    for word, results in (
        ("block", report.blocks),
        ("warn", report.warnings),
        ("inform", report.informs),
        ("allowed", report.overridden),
    ):
        parts += ["\n".join(_held(word, result)) for result in results]
    if not report.blocks:
        parts.append("no rule blocks these facts")
    if note:
        parts.append(f"note: {note}")
    nearly = "\n".join(_nearly(report))
    if nearly:
        parts.append(nearly)
    missing = report.most_missing()
    if missing:
        names = listed([f"{name} ({count})" for name, count in missing], _MOST_LISTED, kind="facts")
        parts.append(f"cannot tell: {len(report.untold)} rules; they need {names}")
    parts.append(" ".join(f"{name}={count}" for name, count in _counts(report).items()))
    return "\n\n".join(parts) + "\n"


def _nearly(report: Report) -> Iterator[str]:
    """A line for each single fact that decides whether rules block."""
    lines: dict[str, list[str]] = {}
    for result, fact, value in report.nearly_blocks():
        if not value:
            on = f"depending on more of {fact}"
        elif FACTS[fact].kind in ("flag", "words") or value == "none":
            on = f"if {fact}={value}"
        else:
            on = f"with some {fact}, such as {value}"
        lines.setdefault(on, []).append(result.rule.id)
    for on, rules in lines.items():
        count = "1 rule" if len(rules) == 1 else f"{len(rules)} rules"
        yield f"{count} would block {on}: {', '.join(rules)}"


def _held(word: str, result: Result) -> Iterator[str]:
    rule = result.rule
    yield f"{word}: {rule.id}"
    yield from _wrapped(rule.because, "  ")
    if result.allowed:
        yield from _wrapped(f"allowed because: {result.allowed}", "  ")
    else:
        yield from _wrapped(f"fix: {rule.fix}", "  ")
    yield f"  source: {rule.source.address}"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        96,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def rules_text(rules: Sequence[Rule]) -> str:
    """One line per rule, by theme."""
    lines: list[str] = []
    theme = ""
    width = max((len(rule.id) for rule in rules), default=0)
    for rule in rules:
        if rule.theme != theme:
            theme = rule.theme
            lines += [*([""] if lines else []), theme]
        lines.append(f"  {rule.id:{width}}  {rule.verdict.value:6}  {rule.because}")
    counts = {kind.value: sum(rule.verdict is kind for rule in rules) for kind in Verdict}
    told_counts = " ".join(f"{name}={count}" for name, count in counts.items())
    lines += ["", f"rules={len(rules)} {told_counts}"]
    return "\n".join(lines) + "\n"


def why_text(rule: Rule, result: Result | None, facts: Facts) -> str:
    """One rule with its evidence; with facts, also its result and the facts it uses."""
    lines = [f"{rule.id} ({rule.theme}, {rule.verdict.value})", *_wrapped(rule.because, "  ")]
    lines += [*_wrapped(f"fix: {rule.fix}", "  "), "  when:"]
    lines += ["    " + line for line in _yaml(rule.written)]
    live = ", a live index" if rule.source.live else ""
    lines.append(f"  source: {rule.source.address} (read {rule.source.retrieved}{live})")
    if rule.review:
        review = rule.review
        note = f": {review.note}" if review.note else ""
        lines.append(
            f"  second reading: {review.verdict.value} ({review.reader}, {review.date}){note}"
        )
    for name, expected in (("positive", "holds"), ("negative", "does not hold")):
        lines.append(f"  {name} test ({expected}): {_yaml(rule.tests[name], flow=True)[0]}")
    if result is not None:
        lines.append(f"  here: {_STATES[result.holds]}")
        for name in dict.fromkeys(rule.when.names()):
            text = format_value(facts[name]) if name in facts else f"unknown ({FACTS[name].where})"
            lines.append(f"    {name}: {text}")
        if result.allowed:
            lines.append(f"    allowed because: {result.allowed}")
    return "\n".join(lines) + "\n"


def why_data(rule: Rule, result: Result | None) -> dict[str, object]:
    """One rule and its result as data."""
    data: dict[str, object] = {"format": RULE_FORMAT, "rule": rule_data(rule)}
    if result is not None:
        data["here"] = result_data(result)
    return data


def _yaml(written: object, flow: bool | None = None) -> list[str]:
    """Data as YAML, in the style of the rules' files."""
    text = yaml.safe_dump(written, default_flow_style=flow, sort_keys=False, width=10_000)
    return text.splitlines()
