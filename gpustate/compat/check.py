"""Check facts against rules: blocks, warnings, and rules with unknown result. Pure.

A rule that is allowed with a reason stays in the report with that reason, but neither blocks nor warns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from gpustate.compat.facts import FACTS, Facts, Value, format_value, with_derived
from gpustate.compat.rules import Rule, RuleSet, Verdict
from gpustate.errors import PolicyError


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a rule for some facts.

    Args:
        rule: the rule.
        holds: whether it applies; ``None`` if unknown.
        missing: facts that are needed to decide.
        allowed: the reason of an exception; empty without one.
    """

    rule: Rule
    holds: bool | None
    missing: tuple[str, ...] = ()
    allowed: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """The results of all rules for some facts.

    Args:
        facts: the known facts.
        results: one per rule, in the order of the rules.
        digest: identifies the rules.
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
        """Rules that hold and block."""
        return self._held(Verdict.BLOCK)

    @property
    def warnings(self) -> tuple[Result, ...]:
        """Rules that hold and warn."""
        return self._held(Verdict.WARN)

    @property
    def informs(self) -> tuple[Result, ...]:
        """Rules that hold and inform."""
        return self._held(Verdict.INFORM)

    @property
    def overridden(self) -> tuple[Result, ...]:
        """Rules that hold but are allowed."""
        return tuple(r for r in self.results if r.holds and r.allowed)

    @property
    def untold(self) -> tuple[Result, ...]:
        """Rules whose result is unknown."""
        return tuple(r for r in self.results if r.holds is None)

    def nearly_blocks(self) -> list[tuple[Result, str, str]]:
        """Blocking rules about the given facts that depend on one more fact.

        Returns:
            The rule, that fact, and a value with which the rule would hold, empty if there is no example.
            Rules that hold if something is absent or not used come first, because these facts are easily
            forgotten.
        """
        candidates: list[tuple[int, tuple[Result, str, str]]] = []
        for result in self.untold:
            if result.rule.verdict is not Verdict.BLOCK or len(result.missing) != 1:
                continue
            if not any(name in self.facts for name in result.rule.when.names()):
                continue
            fact = result.missing[0]
            absence, value = _deciding(result.rule, self.facts, fact)
            candidates.append((0 if absence else 1, (result, fact, value)))
        return [candidate for _, candidate in sorted(candidates, key=lambda pair: pair[0])]

    def most_missing(self) -> list[tuple[str, int]]:
        """Missing facts with the number of rules that need each, the highest first."""
        counts = Counter(name for result in self.untold for name in result.missing)
        return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _deciding(rule: Rule, facts: Facts, fact: str) -> tuple[bool, str]:
    """A value of a fact with which a rule holds, and whether it is "no" or "none"."""
    if fact in facts:  # known in part: the rest of a version is missing
        return False, ""
    flag = FACTS[fact].kind == "flag"
    values = (False, True) if flag else (None, rule.positive.get(fact))
    for value in values:
        if rule.when.holds({**facts, **with_derived({fact: value}), fact: value}):
            return value in (False, None), format_value(value)
    return False, ""


def check(
    facts: Facts, *, rules: RuleSet | None = None, allow: Mapping[str, str] | None = None
) -> Report:
    """Check facts against rules.

    Args:
        facts: known facts; see :func:`gpustate.compat.facts.facts`.
        rules: by default the built-in ones.
        allow: reasons of exceptions by rule id.

    Raises:
        PolicyError: an exception for an unknown rule, or without a reason.
    """
    if rules is None:
        from gpustate.compat.store import load

        rules = load()
    reasons = _allowed(allow or {}, rules)
    results: list[Result] = []
    for rule in rules:
        holds = rule.when.holds(facts)
        missing = tuple(dict.fromkeys(rule.when.unknown(facts))) if holds is None else ()
        results.append(Result(rule, holds, missing, reasons.get(rule.id, "") if holds else ""))
    return Report(dict(facts), tuple(results), rules.digest)


def _allowed(allow: Mapping[str, str], rules: RuleSet) -> dict[str, str]:
    for name, reason in allow.items():
        rules.allow(name)
        if not isinstance(reason, str) or not reason.strip():
            raise PolicyError(
                f"allow: {name}: the reason is missing", fix=f"write {name}: 'REASON'"
            )
    return {name: " ".join(reason.split()) for name, reason in allow.items()}
