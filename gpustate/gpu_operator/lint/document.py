"""Reports as text and as a JSON document, ``gpustate.lint/1``; ``schema/lint.json`` describes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from gpustate.formats.words import printable
from gpustate.gpu_operator.keys import Support
from gpustate.gpu_operator.lint.finding import Finding, Level, Report

FORMAT = "gpustate.lint/1"
#: Kinds of support in text.
_SUPPORT = {
    Support.HONOURED: "honoured",
    Support.KUBERNETES: "about Kubernetes objects",
    Support.NO_MEANING: "not applicable on a host",
    Support.LATER: "not carried out",
    Support.DEPRECATED: "deprecated",
    Support.DEAD: "ignored by the Operator",
}


def as_data(reports: Sequence[Report], *, strict: bool, failed: bool) -> dict[str, Any]:
    """All reports as a JSON document."""
    return {
        "format": FORMAT,
        "release": reports[0].release if reports else "",
        "strict": strict,
        "failed": failed,
        "summary": {
            **{f"{level.value}s": sum(one.count(level) for one in reports) for level in Level},
            "leaves": sum(len(one.uses) for one in reports),
        },
        "files": [_file(one) for one in reports],
    }


def _file(report: Report) -> dict[str, Any]:
    return {
        "file": report.file,
        "findings": [_finding(one) for one in report.findings],
        "leaves": [
            {
                "path": use.path,
                "line": use.line,
                "class": use.support.value,
                "detail": use.detail,
                "since": use.since,
                "document": use.document,
                **({"file": use.file} if use.file else {}),
            }
            for use in report.uses
        ],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    data: dict[str, Any] = {
        "rule": finding.rule,
        "level": finding.level.value,
        "file": finding.file,
        "line": finding.line,
        "path": finding.path,
        "message": finding.message,
    }
    if finding.fix:
        data["fix"] = finding.fix
    if finding.document:
        data["document"] = finding.document
    return data


def as_text(reports: Sequence[Report], *, leaves: bool, notes: bool) -> str:
    """Text with a line per finding, then the number of fields by support."""
    return "".join(f"{printable(line)}\n" for line in _lines(reports, leaves=leaves, notes=notes))


def _lines(reports: Sequence[Report], *, leaves: bool, notes: bool) -> Iterator[str]:
    for report in reports:
        for one in report.findings:
            if notes or one.level is not Level.NOTE:
                fix = f"; {one.fix}" if one.fix else ""
                yield f"{one.file}:{one.line}: {one.level.value}: {one.message}{fix} [{one.rule}]"
        if leaves:
            for use in report.uses:
                since = f" (since {use.since})" if use.since else ""
                what = f"{_SUPPORT[use.support]}: {use.detail}"
                yield f"{use.file or report.file}:{use.line}: {use.path}: {what}{since}"
        counts = Counter(use.support for use in report.uses)
        summary = ", ".join(f"{counts[one]} {_SUPPORT[one]}" for one in Support if counts[one])
        number = len(report.uses)
        yield (
            f"{report.file}: {number} field{'s' if number > 1 else ''}: {summary}"
            if summary
            else f"{report.file}: sets nothing"
        )
    counted = (f"{level.value}s={sum(one.count(level) for one in reports)}" for level in Level)
    yield f"files={len(reports)} {' '.join(counted)} release={reports[0].release}"
