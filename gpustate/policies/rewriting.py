"""Write a changed document of the Operator as text, and map its lines to their origins.

The reader of Operator files needs text and reports lines. So a changed document is written with one value per
line, and the reported lines are translated to the real places: in the file, or on the command line.

The text is JSON between lines ``---``, which is YAML too. Empty lines keep multi-line text as long as in the
file.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from gpustate.errors import PolicyError
from gpustate.policies.trees import Tree

_LINE = re.compile(r"(.*):(\d+)", re.DOTALL)
#: Characters that YAML needs escaped; it does not support JSON's surrogate pairs.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


@dataclass(slots=True)
class Rewritten:
    """Documents as text.

    Args:
        path: of the file they come from.
        others: other files that its values come from.
        lines: the text, line by line.
        origins: the place of each line.
    """

    path: str
    others: tuple[str, ...] = ()
    lines: list[str] = field(default_factory=list[str])
    origins: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def add(self, tree: Tree) -> None:
        """Write one more document."""
        if self.lines:
            self._line("---", tree.place)
        self._value("", tree, "")

    def place(self, text: str) -> str:
        """Translate ``path:line``."""
        found = _LINE.fullmatch(text)
        if found is None or found[1] != self.path:
            return text
        return self._origin(int(found[2])) or text

    def is_foreign(self, line: int) -> bool:
        """Whether a line comes from the command line and not from the file."""
        found = _LINE.fullmatch(self._origin(line))
        return found is None or found[1] not in (self.path, *self.others)

    def note(self, text: str) -> str:
        """Translate every line in a message: ``path:3``, ``(line 3)``, ``lines 3-7``."""
        text = re.sub(
            re.escape(self.path) + r":(\d+)", lambda m: self._origin(int(m[1])) or m[0], text
        )
        text = re.sub(r"\bline (\d+)\b", lambda m: self._told(int(m[1])) or m[0], text)
        return re.sub(r"\blines (\d+)-(\d+)\b", self._range, text)

    def error(self, error: PolicyError) -> PolicyError:
        """The same error at its real place."""
        place = self.place(error.place) if error.place else error.place
        fix = quoting(place, self.note(error.fix)) if error.fix else error.fix
        return type(error)(self.note(error.message), place=place, fix=fix)

    def _origin(self, line: int) -> str:
        return self.origins[line - 1] if 0 < line <= len(self.origins) else ""

    def _told(self, line: int) -> str:
        origin = self._origin(line)
        number = self._number(origin)
        return f"line {number}" if number else origin

    def _number(self, origin: str) -> int:
        found = _LINE.fullmatch(origin)
        return int(found[2]) if found is not None and found[1] == self.path else 0

    def _range(self, found: re.Match[str]) -> str:
        numbers = [
            self._number(self._origin(line)) for line in range(int(found[1]), int(found[2]) + 1)
        ]
        there = [number for number in numbers if number]
        return f"lines {min(there)}-{max(there)}" if there else self._told(int(found[1]))

    def _line(self, text: str, origin: str) -> None:
        self.lines.append(text)
        self.origins.append(origin)

    def _value(self, before: str, tree: Tree, after: str) -> None:
        """Write a value with the text before it (its key) and after it (a comma)."""
        value = tree.value
        if isinstance(value, dict) and value:
            self._line(f"{before}{{", tree.place)
            self._all([(f"{_scalar(key)}: ", below) for key, below in value.items()])
            self._line(f"}}{after}", tree.place)
        elif isinstance(value, list) and value:
            self._line(f"{before}[", tree.place)
            self._all([("", below) for below in value])
            self._line(f"]{after}", tree.place)
        else:
            self._line(f"{before}{_scalar(value)}{after}", tree.place)
            if isinstance(value, str) and "\n" in value:
                self._rest(value, tree.place)

    def _all(self, rows: list[tuple[str, Tree]]) -> None:
        for number, (before, tree) in enumerate(rows, 1):
            self._value(before, tree, "," if number < len(rows) else "")

    def _rest(self, value: str, place: str) -> None:
        """Pad multi-line text, whose lines the reader counts from the line of its key."""
        found = _LINE.fullmatch(place)
        in_file = found is not None and found[1] == self.path
        for offset in range(1, value.count("\n") + 2):
            self._line("", f"{self.path}:{int(found[2]) + offset}" if in_file and found else place)


def quoting(place: str | None, fix: str | None) -> str | None:
    """The remedy where text is needed: quotes do not help on the command line."""
    quotes = fix is not None and "in quotes" in fix and (place or "").startswith("--set ")
    return "use --set-string" if quotes else fix


def _scalar(value: Any) -> str:
    """A value in JSON; numbers without a JSON form in YAML."""
    if isinstance(value, float):
        return _float(value)
    text = json.dumps(value, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _float(value: float) -> str:
    if value != value:
        return ".nan"
    if value in (float("inf"), float("-inf")):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    # YAML 1.1 requires a dot in a number with an exponent, and a sign in the exponent.
    if "e" in text:
        digits, _, exponent = text.partition("e")
        digits = digits if "." in digits else f"{digits}.0"
        return f"{digits}e{exponent if exponent[0] in '+-' else '+' + exponent}"
    return text
