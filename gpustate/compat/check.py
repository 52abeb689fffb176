"""Facts against rules: what is blocked, what to mind, and what cannot be told. Pure.

A rule that was allowed with a reason stays in the report with that reason; it blocks and warns no
longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from gpustate.compat.facts import FACTS, Facts, Value, derived, format_value
from gpustate.compat.rules import Rule, RuleSet, Verdict
from gpustate.errors import PolicyError, UsageError


@dataclass(frozen=True, slots=True)
class Result:
    """What a rule says of some facts.

    Args:
        rule: the rule.
        holds: it applies, it does not, or ``None``: cannot tell.
        missing: facts that would have to be known to tell.
        allowed: why somebody goes on in spite of it; empty when nobody said so.
    """

    rule: Rule
    holds: bool | None
    missing: tuple[str, ...] = ()
    allowed: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What all rules say of some facts.

    Args:
        facts: those that were known.
        results: one a rule, in the order of the rules.
        digest: which rules these were.
    """

    facts: Mapping[str, Value]
    results: tuple[Result, ...]
    digest: str

    def _held(self, verdict: Verdict) -> tuple[Result, ...]:
        return tuple(
            r for r in self.results if r.holds and not r.allowed and r.rule.verdict is verdict
        )

    @property
    def blocks(self) -> tuple[Result, ...]:
        """Rules that hold and say that it cannot work."""
        return self._held(Verdict.BLOCK)

    @property
    def warnings(self) -> tuple[Result, ...]:
        """Rules that hold and warn."""
        return self._held(Verdict.WARN)

    @property
    def informs(self) -> tuple[Result, ...]:
        """Rules that hold and tell what is worth knowing."""
        return self._held(Verdict.INFORM)

    @property
    def overridden(self) -> tuple[Result, ...]:
        """Rules that hold and were allowed."""
        return tuple(r for r in self.results if r.holds and r.allowed)

    @property
    def untold(self) -> tuple[Result, ...]:
        """Rules of which nobody can tell."""
        return tuple(r for r in self.results if r.holds is None)

    def nearly_blocks(self) -> list[tuple[Result, str, str]]:
        """Rules that say that it cannot work, about something given here, and wait for one more fact.

        Returns:
            The rule, that fact, and a value of it with which the rule would hold; empty where none can
            be named. Those that hold where the thing is not used, or not there, come first: nobody
            thinks of giving these.
        """
        found: list[tuple[int, tuple[Result, str, str]]] = []
        for one in self.untold:
            if one.rule.verdict is not Verdict.BLOCK or len(one.missing) != 1:
                continue
            if not any(name in self.facts for name in one.rule.when.names()):
                continue
            fact = one.missing[0]
            absence, value = _deciding(one.rule, self.facts, fact)
            found.append((0 if absence else 1, (one, fact, value)))
        return [one for _, one in sorted(found, key=lambda pair: pair[0])]

    def most_missing(self) -> list[tuple[str, int]]:
        """Facts that are missing, with how many rules wait for each, the most first."""
        counts = Counter(name for result in self.untold for name in result.missing)
        return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _deciding(rule: Rule, known: Facts, fact: str) -> tuple[bool, str]:
    """A value of a fact with which a rule holds, and whether that value is "no" or "none"."""
    if fact in known:  # in part: what is missing is the rest of a version
        return False, ""
    flag = FACTS[fact].kind == "flag"
    values = (False, True) if flag else (None, rule.positive.get(fact))
    for value in values:
        if rule.when.holds({**known, **derived({fact: value}), fact: value}):
            return value in (False, None), format_value(value)
    return False, ""


def check(
    facts: Facts, *, rules: RuleSet | None = None, allow: Mapping[str, str] | None = None
) -> Report:
    """Check facts against rules.

    Args:
        facts: what is known; see :func:`gpustate.compat.facts.facts`.
        rules: the built-in ones when not given.
        allow: by rule's id, why to go on in spite of it.

    Raises:
        PolicyError: an exception for a rule there is not, or without a reason.
    """
    if rules is None:
        from gpustate.compat.store import load

        rules = load()
    given = _allowed(allow or {}, rules)
    results: list[Result] = []
    for rule in rules:
        holds = rule.when.holds(facts)
        missing = tuple(dict.fromkeys(rule.when.unknown(facts))) if holds is None else ()
        results.append(Result(rule, holds, missing, given.get(rule.id, "") if holds else ""))
    return Report(dict(facts), tuple(results), rules.digest)


def _allowed(allow: Mapping[str, str], rules: RuleSet) -> dict[str, str]:
    for name, reason in allow.items():
        try:
            rules.rule(name)
        except UsageError as error:
            raise PolicyError(f"allow: {error.message}", fix=error.fix) from None
        if not isinstance(reason, str) or not reason.strip():
            raise PolicyError(f"allow: {name}: a reason is wanted", fix=f"{name}: 'why it is fine'")
    return {name: " ".join(reason.split()) for name, reason in allow.items()}
