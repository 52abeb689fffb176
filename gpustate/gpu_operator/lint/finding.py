"""What the linter says: findings, the rules they are of, and the leaves of a file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gpustate.gpu_operator.blocks import Fate


class Level(StrEnum):
    """How bad it is."""

    ERROR = "error"  # the API server, the chart or the Operator refuses or drops it
    WARNING = "warning"  # it is taken, and does nothing or not what it says
    NOTE = "note"  # worth knowing; nothing is wrong


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
        Rule("removed-key", _ERROR, "A key that an earlier release of the Operator had."),
        Rule("newer-key", _ERROR, "A key that only a later release of the Operator has."),
        Rule("misnamed-key", _ERROR, "A key under the name that another kind of file has for it."),
        Rule("wrong-type", _ERROR, "A value of another type than the schema wants."),
        Rule("wrong-value", _ERROR, "A value that the schema does not allow."),
        Rule("kind", _ERROR, "An object that looks like one of the Operator's and is none."),
        Rule("contradiction", _ERROR, "Settings that the chart or the Operator refuses together."),
        Rule("image", _ERROR, "An image that cannot be: repository, image and version in part."),
        Rule("companion", _ERROR, "A ConfigMap or Secret whose content is not read as it stands."),
        Rule("refused", _ERROR, "Something that gpustate refuses to carry out."),
        Rule("ignored-key", _WARNING, "A key that the Operator or its chart does not look at."),
        Rule("deprecated-key", _WARNING, "A key that has a successor."),
        Rule("without-effect", _WARNING, "A setting that another one switches off."),
        Rule("variable", _WARNING, "An environment variable that nothing reads, or not like this."),
        Rule("tag", _WARNING, "A version that makes the tag of an image there is none of."),
        Rule("wrapped", _NOTE, "Helm values inside another file."),
        Rule("idle", _NOTE, "A component that is on, and off by the switch that the file has too."),
        Rule("incomplete", _NOTE, "A section that the API server wants and the file leaves out."),
        Rule("not-carried-out", _NOTE, "A setting about nodes that gpustate has no state for."),
        Rule("not-found", _NOTE, "A ConfigMap or Secret that is not beside the file."),
    )
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the linter found.

    Args:
        rule: its id.
        path: of the key, from ``spec`` (of values: from the top); empty: the document.
        message: what was seen and what was wanted.
        file, line: where.
        fix: the next move.
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
        """That of its rule."""
        return RULES[self.rule].level


@dataclass(frozen=True, slots=True)
class Use:
    """One leaf that a file sets, and what becomes of it."""

    path: str
    line: int
    fate: Fate
    detail: str
    since: str
    document: str


@dataclass(frozen=True, slots=True)
class Report:
    """What the linter says of one file.

    Args:
        file: its path.
        release: of the Operator, against which it was held.
        findings: by line.
        uses: every leaf it sets, in its order.
    """

    file: str
    release: str
    findings: tuple[Finding, ...]
    uses: tuple[Use, ...]

    def count(self, level: Level) -> int:
        """How many findings of a level there are."""
        return sum(one.level is level for one in self.findings)


def strict_failure(reports: Iterable[Report]) -> bool:
    """Whether a strict run ends badly: something is wrong, not only worth knowing."""
    return any(one.level is not Level.NOTE for report in reports for one in report.findings)
