"""The syntax of Helm's ``--set``: ``a.b=1,c[0].d=x,e={x,y}``.

The type of a value follows from its text: ``true``, ``false`` and ``null`` in any case, whole numbers without a
leading zero; everything else is text, including ``1.5``, and what is in double quotes, which Helm would keep. A backslash escapes a dot, comma, equals sign, bracket
or brace. ``null`` removes a value. Where Helm is silent or crashes (an empty key, a path through a scalar) there
is an error here.

Sources:
    helm/helm, pkg/strvals/parser.go (grammar, types, limits); pkg/cli/values/options.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpustate.errors import PolicyError
from gpustate.formats.words import quote
from gpustate.policies.trees import Steps

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_INDEX = re.compile(r"[0-9]{1,9}", re.ASCII)
_MOST_LEVELS = 30
_LAST_INDEX = 65536


@dataclass(frozen=True, slots=True)
class Assignment:
    """One value for one path; ``place`` is the option as written."""

    steps: Steps
    value: Any
    place: str


def assignments(text: str) -> list[Assignment]:
    """Return the assignments of one option in order.

    Raises:
        PolicyError: with the option as written, and the problem.
    """
    return list(_Parser(text, "--set").all())


def keys(path: str) -> tuple[str, ...]:
    """A path without a value, as in ``--why driver.version``; dots in keys are escaped."""
    steps: list[str] = []
    parser = _Parser(path, "--why")
    while parser.more:
        key, _ = parser.until(".")
        steps.append(key)
    return tuple(steps)


class _Parser:
    """Reads one option from left to right."""

    def __init__(self, text: str, option: str) -> None:
        self.text = text
        self.option = option
        self.position = 0

    @property
    def more(self) -> bool:
        return self.position < len(self.text)

    def error(self, why: str, fix: str | None = None) -> PolicyError:
        return PolicyError(why, place=f"{self.option} {_brief(self.text)}", fix=fix)

    def all(self) -> Iterator[Assignment]:
        if not self.text.strip():
            raise self.error("assigns nothing", "write path=value")
        while self.more:
            start = self.position
            steps = self.path()
            value = self.value()
            written = self.text[start : self.position].rstrip(",").strip()
            yield Assignment(steps, value, f"{self.option} {_brief(written)}")

    def until(self, stop: str) -> tuple[str, str]:
        """Read up to one of some characters, which is consumed; empty at the end."""
        characters: list[str] = []
        while self.more:
            character = self.text[self.position]
            self.position += 1
            if character in stop:
                return "".join(characters), character
            if character == "\\":
                if not self.more:
                    raise self.error("ends with a backslash")
                character = self.text[self.position]
                self.position += 1
            characters.append(character)
        return "".join(characters), ""

    def path(self) -> Steps:
        steps: list[str | int] = []
        while True:
            key, stop = self.until("=[,.")
            if not key.strip():
                raise self.error("a key has no name", "write path=value")
            if stop in {"", ","}:
                raise self.error(f"the key {quote(key)} has no value", "write path=value")
            steps.append(key)
            while stop == "[":
                steps.append(self.index())
                extra, stop = self.until("[.=")
                if extra or not stop:
                    raise self.error(f"wanted '.', '[' or '=' after an index, not {quote(extra)}")
            if len(steps) > _MOST_LEVELS:
                raise self.error(f"a path has more than {_MOST_LEVELS} levels")
            if stop == "=":
                return tuple(steps)

    def index(self) -> int:
        text, stop = self.until("]")
        if not stop or not _INDEX.fullmatch(text) or int(text) > _LAST_INDEX:
            raise self.error(f"{quote(text)} is not an index, wanted 0 to {_LAST_INDEX}")
        return int(text)

    def value(self) -> Any:
        if self.text.startswith("{", self.position):
            self.position += 1
            return self.items()
        text, _ = self.until(",")
        return self.typed(text)

    def items(self) -> list[Any]:
        elements: list[Any] = []
        while True:
            text, stop = self.until(",}")
            if not stop:
                raise self.error("a list has no end", "close it with '}'")
            if text or stop == "," or elements:
                elements.append(self.typed(text))
            if stop == "}":
                if self.more:
                    if self.text[self.position] != ",":
                        raise self.error("text after the end of a list, wanted a comma")
                    self.position += 1
                return elements

    def typed(self, text: str) -> Any:
        if len(text) > 1 and text[0] == text[-1] == '"':
            return text[1:-1]
        words = {"true": True, "false": False, "null": None}
        if text.lower() in words:
            return words[text.lower()]
        if _INTEGER.fullmatch(text) and (text == "0" or not text.startswith("0")):
            number = int(text)
            if -(2**63) <= number < 2**63:
                return number
        return text


def _brief(text: str) -> str:
    """An option for messages; of a long one only the path, as half a secret would not be masked later."""
    if text.isprintable() and len(text) <= 60:
        return text
    path, equals, _ = text.partition("=")
    return quote(f"{path}{equals and '=...'}")
