"""The condition language of rules: a closed, three-valued language without eval.

A condition is a mapping of facts to tests, all of which must hold, and ``all``, ``any`` and ``not``
around conditions. A test is a value (or a list of them: any of these), or a mapping of one operator to its
argument::

    when:
      gpu: [B200, GB200]
      driver: {range: "<570.133.20"}
      any:
        - kernel: {range: ">=6.15 <6.17"}
        - not: {module_type: open}

A test of an unknown fact is neither true nor false, and combinations follow Kleene's logic. A fact known to be
absent fails every test except ``absent``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpustate.compat.facts import FACTS, Fact, Facts, Value
from gpustate.compat.versions import Version, parse

OPERATORS = ("equals", "in", "range", "branch", "present", "absent", "same_as", "same_series_as")
_SIGNS: dict[str, frozenset[int]] = {
    "<": frozenset((-1,)),
    "<=": frozenset((-1, 0)),
    "==": frozenset((0,)),
    ">=": frozenset((0, 1)),
    ">": frozenset((1,)),
}
_BOUND = re.compile(r"(<=|>=|==|<|>)\s*(\S+)")


class Condition:
    """A condition that holds, does not hold, or is unknown."""

    def holds(self, facts: Facts) -> bool | None:
        """Whether it holds; ``None`` if unknown."""
        raise NotImplementedError

    def unknown(self, facts: Facts) -> Iterator[str]:
        """Facts that are missing or incomplete."""
        raise NotImplementedError

    def names(self) -> Iterator[str]:
        """All facts it uses."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class All(Condition):
    """Every one of them holds."""

    parts: tuple[Condition, ...]

    def holds(self, facts: Facts) -> bool | None:
        decided = True
        for part in self.parts:
            found = part.holds(facts)
            if found is False:
                return False
            decided = decided and found is True
        return True if decided else None

    def unknown(self, facts: Facts) -> Iterator[str]:
        for part in self.parts:
            if part.holds(facts) is None:
                yield from part.unknown(facts)

    def names(self) -> Iterator[str]:
        for part in self.parts:
            yield from part.names()


@dataclass(frozen=True, slots=True)
class Some(Condition):
    """At least one of them holds."""

    parts: tuple[Condition, ...]

    def holds(self, facts: Facts) -> bool | None:
        decided = True
        for part in self.parts:
            found = part.holds(facts)
            if found is True:
                return True
            decided = decided and found is False
        return False if decided else None

    unknown = All.unknown
    names = All.names


@dataclass(frozen=True, slots=True)
class Not(Condition):
    """It does not hold."""

    part: Condition

    def holds(self, facts: Facts) -> bool | None:
        found = self.part.holds(facts)
        return None if found is None else not found

    def unknown(self, facts: Facts) -> Iterator[str]:
        return self.part.unknown(facts)

    def names(self) -> Iterator[str]:
        return self.part.names()


@dataclass(frozen=True, slots=True)
class Test(Condition):
    """A test of one fact.

    Args:
        fact: its name.
        predicate: the result for a value; ``None`` if the value is incomplete.
        absent: the result if the fact is known to be absent.
        other: another fact that must be known too.
    """

    fact: str
    predicate: Callable[[Value, Value], bool | None]
    absent: bool = False
    other: str = ""

    def holds(self, facts: Facts) -> bool | None:
        if self.fact not in facts:
            return None
        value = facts[self.fact]
        if value is None:
            return self.absent
        if not self.other:
            return self.predicate(value, None)
        if self.other not in facts:
            return None
        second = facts[self.other]
        return False if second is None else self.predicate(value, second)

    def unknown(self, facts: Facts) -> Iterator[str]:
        if not self.other:
            yield self.fact
            return
        for name in (self.fact, self.other):
            if name not in facts or not _whole(facts[name]):
                yield name

    def names(self) -> Iterator[str]:
        yield self.fact
        if self.other:
            yield self.other


def _whole(value: Value) -> bool:
    return not isinstance(value, Version) or value.whole


# --- tests by operator ---------------------------------------------------------------------


def equals(fact: Fact, values: tuple[Value, ...]) -> Test:
    """The fact has one of these values, or any of its words is one of them."""
    if fact.kind == "words":
        wanted = frozenset(word for one in values if isinstance(one, frozenset) for word in one)
        return Test(
            fact.name, lambda value, _: isinstance(value, frozenset) and bool(value & wanted)
        )
    if fact.kind == "version":
        versions = tuple(one for one in values if isinstance(one, Version))
        return Test(fact.name, lambda value, _: _any_same(value, versions))
    return Test(fact.name, lambda value, _: value in values)


def _any_same(value: Value, versions: tuple[Version, ...]) -> bool | None:
    """Whether a version is one of these; an incomplete one matches all with the same beginning."""
    if not isinstance(value, Version):
        return False
    decided = True
    for one in versions:
        found = _begins(value, one) if not one.whole else value.same(one)
        if found is True:
            return True
        decided = decided and found is False
    return False if decided else None


def _begins(value: Version, beginning: Version) -> bool | None:
    size = len(beginning.parts)
    if len(value.parts) >= size or value.whole:
        return (value.parts + (0,) * size)[:size] == beginning.parts
    return None if value.parts == beginning.parts[: len(value.parts)] else False


def within(fact: Fact, text: str) -> Test:
    """The version or number is within all bounds: ``>=6.15 <6.17``.

    Raises:
        ValueError: the text is not a range.
    """
    bounds = [(_SIGNS[sign], _bound(written)) for sign, written in _BOUND.findall(text)]
    if not bounds or _BOUND.sub("", text).strip(" ,"):
        raise ValueError("is not a range; write bounds such as '>=6.15 <6.17'")

    def predicate(value: Value, _: Value) -> bool | None:
        if isinstance(value, int):
            value = Version(str(value), (value,))
        if not isinstance(value, Version):
            return False
        decided = True
        for wanted, bound in bounds:
            signs = value.signs(bound)
            if not signs & wanted:
                return False
            decided = decided and signs <= wanted
        return True if decided else None

    return Test(fact.name, predicate)


def _bound(text: str) -> Version:
    return parse(text, 1)


def in_branch(fact: Fact, branches: tuple[int, ...]) -> Test:
    """The first number of the version is one of these."""
    return Test(fact.name, lambda value, _: isinstance(value, Version) and value.branch in branches)


def presence(fact: Fact, wanted: bool) -> Test:
    """The fact is known to be present, or known to be absent."""
    return Test(fact.name, lambda value, _: wanted, absent=not wanted)


def same_as(fact: Fact, other: Fact) -> Test:
    """Two facts have the same value."""

    def predicate(value: Value, second: Value) -> bool | None:
        if isinstance(value, Version) and isinstance(second, Version):
            return value.same(second)
        return value == second

    return Test(fact.name, predicate, other=other.name)


def same_series_as(fact: Fact, other: Fact) -> Test:
    """The first two numbers of two versions are the same: 1.34.9 and 1.34.2."""

    def predicate(value: Value, second: Value) -> bool | None:
        if not isinstance(value, Version) or not isinstance(second, Version):
            return False
        size = min(len(value.parts), len(second.parts), 2)
        if value.parts[:size] != second.parts[:size]:
            return False
        return True if size == 2 else None

    return Test(fact.name, predicate, other=other.name)


def known(name: object) -> Fact | None:
    """The fact of exactly this name: rules use no aliases."""
    return FACTS.get(name) if isinstance(name, str) else None
