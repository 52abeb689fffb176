"""A rule, and all rules that are in use."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from gpustate.compat.conditions import Condition
from gpustate.compat.facts import Value
from gpustate.errors import UsageError
from gpustate.formats.words import shown


class Verdict(Enum):
    """What a rule that holds means for a node."""

    BLOCK = "block"  # it cannot work: the node is left alone
    WARN = "warn"  # it may fail or is not supported
    INFORM = "inform"  # worth knowing


@dataclass(frozen=True, slots=True)
class Source:
    """Who says so.

    Args:
        address: of the page, file or thread.
        retrieved: the day it was read, ISO.
        live: it changes from day to day, as a package index does; nobody can read it again as it was.
    """

    address: str
    retrieved: str
    live: bool = False


class ReviewVerdict(Enum):
    """What the second reading of a rule against its source found."""

    CONFIRMED = "confirmed"  # the source says so
    CORRECTED = "corrected"  # the rule differed from its source and was changed
    UNREACHABLE = "unreachable"  # the source could not be read; the note says what agrees
    PENDING = "pending"  # nobody but the rule's author has read it yet


@dataclass(frozen=True, slots=True)
class Review:
    """The second reading: the rule held against its source by somebody who did not write it.

    Args:
        reader: who read it, by role.
        date: when, ISO.
        verdict: what was found.
        note: what was changed, or what else agrees.
    """

    reader: str
    date: str
    verdict: ReviewVerdict
    note: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One fact about what goes together.

    Args:
        id: short name, never used for another rule again.
        theme: the file it is in.
        when: holds where the rule applies.
        written: the condition as data, as it stands in the file.
        verdict: what that means.
        because: one sentence.
        fix: the next move.
        source: where it is told.
        first_bad, first_good: versions between which it is so, where that has a meaning.
        positive, negative: facts for which the condition holds, and for which it does not.
        place: file and line.
        review: the second reading; the built-in rules all have one.
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
    first_bad: str = ""
    first_good: str = ""
    place: str = ""
    review: Review | None = None
    tests: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, eq=False)
class RuleSet:
    """All rules in use.

    Args:
        rules: by id, in the order of the files.
        digest: SHA-256 of the list of the files' sums: which data this is.
        origin: ``built in``, or the folder.
    """

    rules: Mapping[str, Rule]
    digest: str
    origin: str

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules.values())

    def __len__(self) -> int:
        return len(self.rules)

    def rule(self, name: str) -> Rule:
        """The rule of an id.

        Raises:
            UsageError: naming the nearest.
        """
        found = self.rules.get(name)
        if found is None:
            near = difflib.get_close_matches(name, self.rules, 2, 0.5)
            hint = f"did you mean {' or '.join(near)}" if near else "see: gpustate matrix list"
            raise UsageError(f"no rule is called {shown(name)}", fix=hint)
        return found
