"""Parse data files into rules: strict, with file and line of each error. Pure.

A file is a theme: ``format``, ``theme``, ``sources`` by short name, and ``rules``. ``schema/rules.json`` describes
it too. Checks beyond a schema are here: facts exist, values are valid, both tests have the expected result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn, TypeVar

from gpustate.compat import conditions
from gpustate.compat.conditions import Condition, Group, Not
from gpustate.compat.facts import FACTS, Fact, Value, value, with_derived
from gpustate.compat.rules import Review, ReviewVerdict, Rule, Source, Verdict
from gpustate.documents import Json
from gpustate.errors import UsageError
from gpustate.formats import yaml_events
from gpustate.formats.words import at, kind_of, quote, suggest

FORMAT = "gpustate.compat/1"
_TOP = ("format", "theme", "sources", "rules")
_NEEDED = ("id", "when", "verdict", "because", "fix", "source", "tests")
_RULE = (*_NEEDED, "review")
#: Patterns, with the words for them.
_ID = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*"), "small letters, digits, dashes and dots"
_DAY = re.compile(r"20[0-9]{2}-[01][0-9]-[0-3][0-9]"), "a day such as 2026-08-21"
_ADDRESS = re.compile(r"https://[^\s]+")
_DEPTH = 8
E = TypeVar("E", bound=Enum)
_YAML = yaml_events.Rules(
    UsageError,
    depth=16,
    values=200_000,
    tags={yaml_events.FLOAT: yaml_events.Written},
    text_keys=True,
)


def read(text: str, path: str) -> list[Rule]:
    """Read the text of one data file.

    Raises:
        UsageError: with file and line.
    """
    documents = yaml_events.documents(text, path, _YAML)
    if len(documents) != 1 or documents[0].data is None:
        raise UsageError("is not one document with format, theme, sources and rules", place=path)
    return _Reader(path, documents[0].lines).file(documents[0].data, documents[0].line)


@dataclass(slots=True)
class _Reader:
    path: str
    lines: yaml_events.Lines

    def fail(self, why: str, line: int, fix: str | None = None) -> NoReturn:
        raise UsageError(why, place=at(self.path, line), fix=fix)

    def line_of(self, owner: Any, key: object, otherwise: int) -> int:
        return self.lines.of_keys.get(id(owner), {}).get(key, otherwise)

    def closed(
        self, owner: Any, keys: tuple[str, ...], line: int, title: str, needed: tuple[str, ...] = ()
    ) -> Json:
        """A mapping with only known keys and all required ones."""
        if not isinstance(owner, dict):
            self.fail(f"{title} is {kind_of(owner)}, wanted a mapping", line)
        for key in owner:
            if key not in keys:
                hint = suggest(key, keys, f"supported keys: {', '.join(keys)}")
                self.fail(
                    f"{title}: unknown key {quote(key)}", self.line_of(owner, key, line), hint
                )
        for key in needed:
            if key not in owner:
                self.fail(f"{title} lacks {key}", line)
        return owner

    def text(self, owner: Json, key: str, line: int) -> str:
        raw, where = owner[key], self.line_of(owner, key, line)
        if not isinstance(raw, str) or not raw.strip():
            self.fail(f"{key} is {kind_of(raw)}, wanted text", where, "put it in quotes")
        return raw

    def matching(
        self, owner: Json, key: str, line: int, pattern: re.Pattern[str], example: str
    ) -> str:
        """A text of a form."""
        text = self.text(owner, key, line)
        if not pattern.fullmatch(text):
            where = self.line_of(owner, key, line)
            self.fail(f"{key} is {quote(text)}, wanted {example}", where)
        return text

    def member(self, owner: Json, kind: type[E], line: int) -> E:
        """The verdict, one of a kind."""
        verdicts = {member.value: member for member in kind}
        if owner["verdict"] not in verdicts:
            where = self.line_of(owner, "verdict", line)
            self.fail(f"verdict is {quote(owner['verdict'])}, wanted {', '.join(verdicts)}", where)
        return verdicts[owner["verdict"]]

    # --- the file ----------------------------------------------------------------------------

    def file(self, data: Any, line: int) -> list[Rule]:
        top = self.closed(data, _TOP, line, "the file", _TOP)
        if top["format"] != FORMAT:
            where = self.line_of(top, "format", line)
            self.fail(f"format is {quote(top['format'])}, wanted {FORMAT}", where)
        sources = self.sources(top, line)
        records = top["rules"]
        if not isinstance(records, list) or not records:
            self.fail("rules must be a list of at least one rule", self.line_of(top, "rules", line))
        lines = self.lines.of_items.get(id(records), [line] * len(records))
        theme = self.text(top, "theme", line)
        return [
            self.rule(record, where, theme, sources)
            for record, where in zip(records, lines, strict=True)
        ]

    def sources(self, top: Json, line: int) -> dict[str, Source]:
        where = self.line_of(top, "sources", line)
        table = top["sources"]
        if not isinstance(table, dict):
            self.fail(f"sources is {kind_of(table)}, wanted a mapping", where)
        return {
            name: self.source(row, self.line_of(table, name, where)) for name, row in table.items()
        }

    def source(self, data: Any, line: int) -> Source:
        keys = ("address", "retrieved")
        record = self.closed(data, (*keys, "live"), line, "a source", keys)
        address = self.matching(record, "address", line, _ADDRESS, "https://...")
        day = self.matching(record, "retrieved", line, *_DAY)
        live = record.get("live", False)
        if not isinstance(live, bool):
            where = self.line_of(record, "live", line)
            self.fail(f"live is {quote(live)}, wanted true or false", where)
        return Source(address, day, live)

    # --- one rule ----------------------------------------------------------------------------

    def rule(self, data: Any, line: int, theme: str, sources: Mapping[str, Source]) -> Rule:
        record = self.closed(data, _RULE, line, "a rule", _NEEDED)
        name = self.matching(record, "id", line, *_ID)
        when = self.condition(record["when"], self.line_of(record, "when", line))
        tests = self.tests(record, line, when, name)
        return Rule(
            id=name,
            theme=theme,
            when=when,
            written=record["when"],
            verdict=self.member(record, Verdict, line),
            because=self.text(record, "because", line),
            fix=self.text(record, "fix", line),
            source=self.source_of(record, line, sources),
            positive=tests["positive"],
            negative=tests["negative"],
            place=at(self.path, line),
            review=self.review(record, line),
            tests=record["tests"],
        )

    def source_of(self, record: Json, line: int, sources: Mapping[str, Source]) -> Source:
        raw, where = record["source"], self.line_of(record, "source", line)
        if not isinstance(raw, str):
            return self.source(raw, where)
        if raw not in sources:
            hint = suggest(raw, sources, f"the file has {', '.join(sources)}")
            self.fail(f"source {quote(raw)} is not among the file's sources", where, hint)
        return sources[raw]

    def review(self, record: Json, line: int) -> Review | None:
        if "review" not in record:
            return None
        where, needed = self.line_of(record, "review", line), ("reader", "date", "verdict")
        fields = self.closed(record["review"], (*needed, "note"), where, "review", needed)
        date = self.matching(fields, "date", where, *_DAY)
        verdict = self.member(fields, ReviewVerdict, where)
        note = self.text(fields, "note", where) if "note" in fields else ""
        if not note and verdict in (ReviewVerdict.CORRECTED, ReviewVerdict.UNREACHABLE):
            self.fail(f"a review with verdict {verdict.value} needs a note", where)
        return Review(self.text(fields, "reader", where), date, verdict, note)

    def tests(
        self, record: Json, line: int, when: Condition, name: str
    ) -> dict[str, dict[str, Value]]:
        keys, where = ("positive", "negative"), self.line_of(record, "tests", line)
        tests = self.closed(record["tests"], keys, where, "tests", keys)
        parsed: dict[str, dict[str, Value]] = {}
        for key in keys:
            place = self.line_of(tests, key, where)
            parsed[key] = self.facts(tests[key], place)
            holds = when.holds(parsed[key])
            if holds is not (key == "positive"):
                outcome = {True: "holds", False: "does not hold", None: "cannot tell"}[holds]
                self.fail(f"{name}: its {key} test results in: {outcome}", place)
        return parsed

    def facts(self, data: Any, line: int) -> dict[str, Value]:
        if not isinstance(data, dict):
            self.fail(f"a test is {kind_of(data)}, wanted a mapping of facts", line)
        parsed: dict[str, Value] = {}
        for name, raw in data.items():
            where = self.line_of(data, name, line)
            parsed[name] = self.value(self.fact(name, where), raw, where)
        return with_derived(parsed)

    # --- conditions --------------------------------------------------------------------------

    def fact(self, name: object, line: int) -> Fact:
        fact = conditions.find_fact(name)
        if fact is None:
            hint = suggest(name, FACTS, "see docs/matrix.md for all facts")
            self.fail(f"unknown fact {quote(name)}", line, hint)
        return fact

    def value(self, fact: Fact, raw: object, line: int) -> Value:
        # YAML reads 1.10 as 1.1: only a quoted version is exact.
        if fact.kind == "version" and isinstance(raw, (int, float)):
            self.fail(f"{fact.name}: {raw} is a number", line, f"write it in quotes: '{raw}'")
        try:
            return value(fact, raw)
        except UsageError as error:
            self.fail(error.message, line, error.fix)

    def condition(self, data: Any, line: int, depth: int = 0) -> Condition:
        if not isinstance(data, dict) or not data:
            self.fail(f"a condition is {kind_of(data)}, wanted a mapping of facts", line)
        if depth > _DEPTH:
            self.fail(f"conditions are nested deeper than {_DEPTH}", line)
        parts: list[Condition] = []
        for key, raw in data.items():
            where = self.line_of(data, key, line)
            if key == "not":
                parts.append(Not(self.condition(raw, where, depth + 1)))
            elif key in ("all", "any"):
                inner = self.several(raw, key, where, depth)
                parts.append(Group(inner, any=key == "any"))
            else:
                parts.append(self.test(self.fact(key, where), raw, where))
        return parts[0] if len(parts) == 1 else Group(tuple(parts))

    def several(self, raw: Any, key: str, line: int, depth: int) -> tuple[Condition, ...]:
        if not isinstance(raw, list) or not raw:
            self.fail(f"{key} is {kind_of(raw)}, wanted a list of conditions", line)
        lines = self.lines.of_items.get(id(raw), [line] * len(raw))
        return tuple(
            self.condition(part, where, depth + 1) for part, where in zip(raw, lines, strict=True)
        )

    def test(self, fact: Fact, raw: Any, line: int) -> Condition:
        if not isinstance(raw, dict):
            return self.values(fact, raw, line)
        if len(raw) != 1:
            self.fail(f"{fact.name}: wanted one operator, has {len(raw)}", line)
        operator, argument = next(iter(raw.items()))
        make = self.operators().get(operator)
        if make is None:
            operators = conditions.OPERATORS
            hint = suggest(operator, operators, f"supported operators: {', '.join(operators)}")
            self.fail(f"{fact.name}: unknown operator {quote(operator)}", line, hint)
        return make(fact, argument, self.line_of(raw, operator, line))

    def operators(self) -> Mapping[str, Callable[[Fact, Any, int], Condition]]:
        return {
            "range": self.range,
            "present": lambda fact, raw, line: self.presence(fact, raw, line, True),
            "absent": lambda fact, raw, line: self.presence(fact, raw, line, False),
            "same_as": self.same_as,
            "same_series_as": self.same_series_as,
        }

    def values(self, fact: Fact, raw: Any, line: int) -> Condition:
        items = raw if isinstance(raw, list) else [raw]
        values = tuple(self.value(fact, item, line) for item in items)
        if not values or None in values:
            self.fail(f"{fact.name}: values are missing", line, "write {absent: true} for absence")
        return conditions.equals(fact, values)

    def range(self, fact: Fact, raw: Any, line: int) -> Condition:
        if fact.kind not in ("version", "number") or not isinstance(raw, str):
            self.fail(
                f"{fact.name}: range needs a version or number and text such as '>=1.2'", line
            )
        try:
            return conditions.within(fact, raw)
        except ValueError as error:
            self.fail(f"{fact.name}: {quote(raw)} {error}", line)

    def presence(self, fact: Fact, raw: Any, line: int, present: bool) -> Condition:
        if not isinstance(raw, bool):
            self.fail(f"{fact.name}: {kind_of(raw)}, wanted true or false", line)
        return conditions.presence(fact, present is raw)

    def same_as(self, fact: Fact, raw: Any, line: int) -> Condition:
        peer = self.fact(raw, line)
        if peer.kind != fact.kind:
            self.fail(f"{fact.name} is a {fact.kind}, and {peer.name} a {peer.kind}", line)
        return conditions.same_as(fact, peer)

    def same_series_as(self, fact: Fact, raw: Any, line: int) -> Condition:
        peer = self.fact(raw, line)
        if fact.kind != "version" or peer.kind != "version":
            self.fail(f"{fact.name}: same_series_as needs two versions", line)
        return conditions.same_series_as(fact, peer)
