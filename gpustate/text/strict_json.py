"""JSON text to plain Python data, strictly: a key that stands twice and numbers JSON lacks are errors.

Python's own reader keeps the last of two equal keys, takes ``NaN``, and tells a number of too many digits
with advice for programmers. Every error here is of the caller's class, one line, with its line.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

from gpustate.errors import GpustateError
from gpustate.text.words import at, named


def _as_it_is(found: dict[str, Any]) -> Any:
    return found


def read(
    text: str,
    place: str,
    error: type[GpustateError],
    *,
    said: str = "is not JSON",
    lined: bool = True,
    fix: str | None = None,
    make: Callable[[dict[str, Any]], Any] = _as_it_is,
) -> Any:
    """Read a whole text.

    Args:
        text: all of it.
        place: where it stands, a file's path as a rule.
        error: raised for everything that is wrong with it.
        said: of a text that is none.
        lined: it has lines of its own, to be named; not what was written on a command line.
        fix: the next move for a text that is none.
        make: what becomes of an object, when all in it is made.

    Raises:
        GpustateError: of the class that was given.
    """

    def pairs(rows: list[tuple[str, Any]]) -> Any:
        found = dict(rows)
        if len(found) != len(rows):
            keys = [key for key, _ in rows]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise error(f"the key {named(twice)} is there twice", place=place)
        return make(found)

    def constant(word: str) -> NoReturn:
        raise error(f"{word} is no number of JSON", place=place)

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as wrong:
        line = wrong.lineno if lined else None
        raise error(
            f"{said}: {wrong.msg} (column {wrong.colno})", place=at(place, line), fix=fix
        ) from wrong
    except RecursionError as wrong:
        raise error(f"{said}: nested too deep", place=place, fix=fix) from wrong
    except ValueError as wrong:
        why = str(wrong).partition("; use sys.")[0]
        raise error(f"{said}: {why}", place=place, fix=fix) from wrong
