"""The condition language of rules: a closed, three-valued language without eval.

A condition is a mapping of facts to tests, all of which must hold, and ``all``, ``any`` and ``not``
around conditions. A test is a value (or a list of them: any of these; ``"580"`` is every 580.x), or a
mapping of one operator to its argument::

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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gpustate.compat.facts import FACTS, Fact, Facts, Value
from gpustate.compat.versions import Version, parse

OPERATORS = ("range", "present", "absent", "same_as", "same_series_as")
_SIGNS: dict[str, frozenset[int]] = {
    "<": frozenset((-1,)),
    "<=": frozenset((-1, 0)),
    "==": frozenset((0,)),
    ">=": frozenset((0, 1)),
    ">": frozenset((1,)),
}
_BOUND = re.compile(r"(<=|>=|==|<|>)\s*(\S+)")


def _every(results: Iterable[bool | None]) -> bool | None:
    """Kleene's "and"."""
    values = {*results}
    return False if False in values else None if None in values else True


def _any(results: Iterable[bool | None]) -> bool | None:
    """Kleene's "or"."""
    values = {*results}
    return True if True in values else None if None in values else False


@dataclass(frozen=True, slots=True)
class Group:
    """Conditions of which every one holds, or at least one.

    Args:
        parts: the conditions.
        any: at least one of them.
    """

    parts: tuple[Condition, ...]
    any: bool = False

    def holds(self, facts: Facts) -> bool | None:
        """Whether it holds; ``None`` if unknown."""
        return (_any if self.any else _every)(part.holds(facts) for part in self.parts)

    def unknown(self, facts: Facts) -> Iterator[str]:
        """Facts that are missing or incomplete."""
        for part in self.parts:
            if part.holds(facts) is None:
                yield from part.unknown(facts)

    def names(self) -> Iterator[str]:
        """All facts it uses."""
        for part in self.parts:
            yield from part.names()


@dataclass(frozen=True, slots=True)
class Not:
    """It does not hold."""

    part: Condition

    def holds(self, facts: Facts) -> bool | None:
        value = self.part.holds(facts)
        return None if value is None else not value

    def unknown(self, facts: Facts) -> Iterator[str]:
        return self.part.unknown(facts)

    def names(self) -> Iterator[str]:
        return self.part.names()


@dataclass(frozen=True, slots=True)
class Test:
    """A test of one fact.

    Args:
        fact: its name.
        predicate: the result for a value; ``None`` if the value is incomplete.
        absent: the result if the fact is known to be absent.
        peer: another fact that must be known too.
    """

    fact: str
    predicate: Callable[[Value, Value], bool | None]
    absent: bool = False
    peer: str = ""

    def holds(self, facts: Facts) -> bool | None:
        if self.fact not in facts:
            return None
        value = facts[self.fact]
        if value is None:
            return self.absent
        if not self.peer:
            return self.predicate(value, None)
        if self.peer not in facts:
            return None
        second = facts[self.peer]
        return False if second is None else self.predicate(value, second)

    def unknown(self, facts: Facts) -> Iterator[str]:
        for name in self.names():
            value = facts.get(name)
            if (
                not self.peer
                or name not in facts
                or (isinstance(value, Version) and not value.complete)
            ):
                yield name

    def names(self) -> Iterator[str]:
        yield from filter(None, (self.fact, self.peer))


Condition = Group | Not | Test

# --- tests by operator ---------------------------------------------------------------------


def equals(fact: Fact, values: tuple[Value, ...]) -> Test:
    """The fact has one of these values, or any of its words is one of them."""

    def predicate(value: Value, _: Value) -> bool | None:
        if isinstance(value, Version):
            return _any(_matches(value, choice) for choice in values if isinstance(choice, Version))
        if isinstance(value, frozenset):
            return any(value & choice for choice in values if isinstance(choice, frozenset))
        return value in values

    return Test(fact.name, predicate)


def _matches(value: Version, pattern: Version) -> bool | None:
    """Whether a version is one; an incomplete one matches all with the same beginning."""
    size = len(pattern.parts)
    if pattern.complete:
        return value.same(pattern)
    if len(value.parts) >= size or value.complete:
        return (value.parts + (0,) * size)[:size] == pattern.parts
    return None if value.parts == pattern.parts[: len(value.parts)] else False


def within(fact: Fact, text: str) -> Test:
    """The version or number is within all bounds: ``>=6.15 <6.17``.

    Raises:
        ValueError: the text is not a range.
    """
    bounds = [(_SIGNS[sign], parse(written, 1)) for sign, written in _BOUND.findall(text)]
    if not bounds or _BOUND.sub("", text).strip(" ,"):
        raise ValueError("is not a range; write bounds such as '>=6.15 <6.17'")

    def predicate(value: Value, _: Value) -> bool | None:
        if isinstance(value, int):
            value = Version(str(value), (value,))
        if not isinstance(value, Version):
            return False
        signs = ((value.signs(bound), allowed) for allowed, bound in bounds)
        return _every(
            False if not possible & allowed else True if possible <= allowed else None
            for possible, allowed in signs
        )

    return Test(fact.name, predicate)


def presence(fact: Fact, present: bool) -> Test:
    """The fact is known to be present, or known to be absent."""
    return Test(fact.name, lambda value, _: present, absent=not present)


def same_as(fact: Fact, peer: Fact) -> Test:
    """Two facts have the same value."""

    def predicate(value: Value, second: Value) -> bool | None:
        if isinstance(value, Version) and isinstance(second, Version):
            return value.same(second)
        return value == second

    return Test(fact.name, predicate, peer=peer.name)


def same_series_as(fact: Fact, peer: Fact) -> Test:
    """The first two numbers of two versions are the same: 1.34.9 and 1.34.2."""

    def predicate(value: Value, second: Value) -> bool | None:
        if not isinstance(value, Version) or not isinstance(second, Version):
            return False
        size = min(len(value.parts), len(second.parts), 2)
        if value.parts[:size] != second.parts[:size]:
            return False
        return True if size == 2 else None

    return Test(fact.name, predicate, peer=peer.name)


def find_fact(name: object) -> Fact | None:
    """The fact of exactly this name: rules use no aliases."""
    return FACTS.get(name) if isinstance(name, str) else None
