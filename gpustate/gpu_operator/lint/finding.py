"""The linter's findings, its rules, and the fields that a file sets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gpustate.gpu_operator.keys import Support


class Level(StrEnum):
    """How severe a finding is."""

    ERROR = "error"  # the API server, the chart or the Operator refuses or drops it
    WARNING = "warning"  # it is accepted, and has no effect or another one than expected
    NOTE = "note"  # for information; nothing is wrong


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of finding."""

    id: str
    level: Level
    about: str


_ERROR, _WARNING, _NOTE = Level.ERROR, Level.WARNING, Level.NOTE
RULES = {
    rule.id: rule
    for rule in (
        Rule("unknown-key", _ERROR, "A key that the schema or the chart does not have."),
        Rule("newer-key", _ERROR, "A key that only a later release of the Operator has."),
        Rule("misnamed-key", _ERROR, "A key under its name in another kind of file."),
        Rule("wrong-type", _ERROR, "A value whose type the schema does not allow."),
        Rule("wrong-value", _ERROR, "A value that the schema does not allow."),
        Rule("kind", _ERROR, "An object that only resembles one of the Operator's."),
        Rule("contradiction", _ERROR, "Settings that the chart or the Operator refuses together."),
        Rule("image", _ERROR, "An image with only some of repository, image and version."),
        Rule("companion", _ERROR, "A ConfigMap or Secret with invalid or ignored content."),
        Rule("refused", _ERROR, "A setting that gpustate refuses to carry out."),
        Rule("ignored-key", _WARNING, "A key that the Operator or its chart ignores."),
        Rule("deprecated-key", _WARNING, "A key that has a successor."),
        Rule("without-effect", _WARNING, "A setting that another one disables."),
        Rule(
            "variable",
            _WARNING,
            "An environment variable that is not read, or not with this value.",
        ),
        Rule("rendered", _WARNING, "A string that the chart renders as a value of another type."),
        Rule("overlap", _WARNING, "NVIDIADrivers that can select the same node."),
        Rule("tag", _WARNING, "A version for which no image tag is published."),
        Rule("wrapper", _WARNING, "A part of the file around Helm values that has no effect here."),
        Rule("wrapped", _NOTE, "Helm values inside another file."),
        Rule(
            "idle",
            _NOTE,
            "A component that is enabled, but disabled by another setting of the file.",
        ),
        Rule("incomplete", _NOTE, "A section that the API server requires and the file omits."),
        Rule("not-carried-out", _NOTE, "A node setting for which gpustate has no state."),
        Rule("not-found", _NOTE, "A ConfigMap or Secret that was not found next to the file."),
    )
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of the linter.

    Args:
        rule: its id.
        path: of the key, from ``spec`` (of values: from the top); empty: the document.
        message: observed and expected value.
        file, line: where.
        fix: the next step.
        document: ``ClusterPolicy cluster-policy``, or ``Helm values``.
    """

    rule: str
    path: str
    message: str
    file: str
    line: int
    fix: str | None = None
    document: str = ""

    @property
    def level(self) -> Level:
        """The level of its rule."""
        return RULES[self.rule].level


@dataclass(frozen=True, slots=True)
class Use:
    """One field that a file sets, and how gpustate supports it; ``file``: another that it comes from."""

    path: str
    line: int
    support: Support
    detail: str
    since: str
    document: str
    file: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """The linter's report on one file.

    Args:
        file: its path.
        release: of the Operator that it was checked against.
        findings: by line.
        uses: every field it sets, in its order.
    """

    file: str
    release: str
    findings: tuple[Finding, ...]
    uses: tuple[Use, ...]

    def count(self, level: Level) -> int:
        """Count the findings of a level."""
        return sum(finding.level is level for finding in self.findings)


def fails(reports: Iterable[Report], *, strict: bool) -> bool:
    """Whether a run fails: there is an error, or in a strict run a warning."""
    levels = {finding.level for report in reports for finding in report.findings}
    return Level.ERROR in levels or (strict and Level.WARNING in levels)
