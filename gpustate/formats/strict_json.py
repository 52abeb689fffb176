"""Parse JSON strictly: duplicate keys and numbers that JSON does not have are errors.

Python's own parser keeps the last of two equal keys, accepts ``NaN``, and reports a number with too many digits
with advice for programmers. Every error here has the caller's class, and is one line with a line number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from gpustate.documents import Json
from gpustate.errors import GpustateError
from gpustate.formats.words import at, quote_name

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


def _as_it_is(data: Json) -> Any:
    return data


def _tokens(text: str) -> Iterator[tuple[int, str]]:
    """Texts, brackets, colons and words of JSON, each with its line."""
    line, end = 1, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", end, match.start())
        end = match.start()
        yield line, match[0]


def _line_of(text: str, word: str) -> int | None:
    return next((line for line, token in _tokens(text) if token == word), None)


def _line_of_second(text: str) -> int | None:
    """The line of a duplicate key, in the object that ends first, in the parser's order."""
    objects: list[dict[str, int]] = []
    twice: list[int | None] = []
    before = (0, "")
    for line, token in _tokens(text):
        if token == "{":
            objects.append({})
            twice.append(None)
        elif token == "}" and objects:
            objects.pop()
            second = twice.pop()
            if second is not None:
                return second
        elif token == ":" and objects:
            key = json.loads(before[1])
            if key in objects[-1] and twice[-1] is None:
                twice[-1] = before[0]
            objects[-1].setdefault(key, before[0])
        before = line, token
    return None


def read(
    text: str,
    place: str,
    error: type[GpustateError],
    *,
    problem: str = "is not JSON",
    lined: bool = True,
    fix: str | None = None,
    make: Callable[[Json], Any] = _as_it_is,
) -> Any:
    """Read a whole text.

    Args:
        text: all of it.
        place: of the text, usually a file's path.
        error: raised for every problem.
        problem: the message for a text that is not JSON.
        lined: whether errors have line numbers; not for text from a command line.
        fix: the next step for every problem.
        make: converts an object, after everything in it.

    Raises:
        GpustateError: of the given class.
    """

    def pairs(rows: list[tuple[str, Any]]) -> Any:
        data = dict(rows)
        if len(data) != len(rows):
            keys = [key for key, _ in rows]
            twice = next(key for number, key in enumerate(keys) if key in keys[:number])
            raise error(
                f"the key {quote_name(twice)} is defined twice",
                place=at(place, _line_of_second(text) if lined else None),
                fix=fix,
            )
        return make(data)

    def constant(word: str) -> NoReturn:
        line = _line_of(text, word) if lined else None
        raise error(f"{word} is not a JSON number", place=at(place, line), fix=fix)

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as wrong:
        line = wrong.lineno if lined else None
        raise error(
            f"{problem}: {wrong.msg} (column {wrong.colno})", place=at(place, line), fix=fix
        ) from wrong
    except RecursionError as wrong:
        raise error(f"{problem}: nested too deep", place=place, fix=fix) from wrong
    except ValueError as wrong:
        why = str(wrong).partition("; use sys.")[0]
        raise error(f"{problem}: {why}", place=place, fix=fix) from wrong
