"""Reports as text and as a JSON document, ``gpustate.lint/1``; ``schema/lint.json`` describes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

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


def as_data(reports: Sequence[Report], *, strict: bool, failed: bool) -> dict[str, object]:
    """All reports as a JSON document."""
    return {
        "format": FORMAT,
        "release": reports[0].release if reports else "",
        "strict": strict,
        "failed": failed,
        "summary": {
            **{
                f"{level.value}s": sum(report.count(level) for report in reports) for level in Level
            },
            "leaves": sum(len(report.uses) for report in reports),
        },
        "files": [_file(report) for report in reports],
    }


def _file(report: Report) -> dict[str, object]:
    return {
        "file": report.file,
        "findings": [_finding(finding) for finding in report.findings],
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


def _finding(finding: Finding) -> dict[str, object]:
    data: dict[str, object] = {
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


def as_text(reports: Sequence[Report], *, leaves: bool) -> str:
    """Text with a line per finding, then the number of fields by support."""
    return "".join(f"{printable(line)}\n" for line in _lines(reports, leaves=leaves))


def _lines(reports: Sequence[Report], *, leaves: bool) -> Iterator[str]:
    for report in reports:
        for finding in report.findings:
            fix = f"; {finding.fix}" if finding.fix else ""
            yield f"{finding.file}:{finding.line}: {finding.level.value}: {finding.message}{fix} [{finding.rule}]"
        if leaves:
            for use in report.uses:
                since = f" (since {use.since})" if use.since else ""
                detail = f"{_SUPPORT[use.support]}: {use.detail}"
                yield f"{use.file or report.file}:{use.line}: {use.path}: {detail}{since}"
        counts = Counter(use.support for use in report.uses)
        summary = ", ".join(f"{counts[kind]} {_SUPPORT[kind]}" for kind in Support if counts[kind])
        number = len(report.uses)
        yield (
            f"{report.file}: {number} field{'s' if number > 1 else ''}: {summary}"
            if summary
            else f"{report.file}: sets nothing"
        )
    counted = (
        f"{level.value}s={sum(report.count(level) for report in reports)}" for level in Level
    )
    yield f"files={len(reports)} {' '.join(counted)} release={reports[0].release}"
