"""Rules and rule sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from gpustate.compat.conditions import Condition
from gpustate.compat.facts import Value
from gpustate.errors import PolicyError, UsageError
from gpustate.formats.words import quote, suggest


class Verdict(Enum):
    """The consequence of a rule that holds."""

    BLOCK = "block"  # it cannot work: the node is not changed
    WARN = "warn"  # it may fail or is unsupported
    INFORM = "inform"  # for information


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a rule.

    Args:
        address: of the page, file or thread.
        retrieved: the day it was read, ISO.
        live: whether it changes from day to day, like a package index, and cannot be read again as it was.
    """

    address: str
    retrieved: str
    live: bool = False


class ReviewVerdict(Enum):
    """Result of reviewing a rule against its source."""

    CONFIRMED = "confirmed"  # the source agrees
    CORRECTED = "corrected"  # the rule differed from its source and was changed
    UNREACHABLE = "unreachable"  # the source could not be read; the note has other evidence
    PENDING = "pending"  # not reviewed yet


@dataclass(frozen=True, slots=True)
class Review:
    """The review of a rule against its source by another person than its author.

    Args:
        reader: the reviewer's role.
        date: ISO date.
        verdict: the result.
        note: the changes, or other evidence.
    """

    reader: str
    date: str
    verdict: ReviewVerdict
    note: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One compatibility rule.

    Args:
        id: short name, never reused for another rule.
        theme: its file.
        when: the condition.
        written: the condition as data, as in the file.
        verdict: the consequence.
        because: the reason, one sentence.
        fix: the remedy.
        source: its evidence.
        positive, negative: facts for which the condition holds, and for which it does not.
        place: file and line.
        review: the review against the source; all built-in rules have one.
    """

    id: str
    theme: str
    when: Condition
    written: object
    verdict: Verdict
    because: str
    fix: str
    source: Source
    positive: Mapping[str, Value]
    negative: Mapping[str, Value]
    place: str = ""
    review: Review | None = None
    tests: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, eq=False)
class RuleSet:
    """All rules in use.

    Args:
        rules: by id, in the order of the files.
        digest: SHA-256 of the list of the files' sums, which identifies the data.
        origin: ``built in``, or the folder.
    """

    rules: Mapping[str, Rule]
    digest: str
    origin: str

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules.values())

    def __len__(self) -> int:
        return len(self.rules)

    def allow(self, name: str, place: str | None = None) -> None:
        """Refuse an exception from a rule that does not exist.

        Raises:
            PolicyError: with the place, and the nearest rule.
        """
        try:
            self.rule(name)
        except UsageError as error:
            raise PolicyError(f"allow: {error.message}", place=place, fix=error.fix) from None

    def rule(self, name: str) -> Rule:
        """The rule of an id.

        Raises:
            UsageError: with the nearest id.
        """
        rule = self.rules.get(name)
        if rule is None:
            hint = suggest(name, self.rules, "run gpustate policy matrix list", 2, 0.5)
            raise UsageError(f"unknown rule {quote(name)}", fix=hint)
        return rule
