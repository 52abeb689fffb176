"""CSV exactly as Go's ``encoding/csv`` reads it, which is not how Python's ``csv`` does.

A column is quoted only if the quote stands directly behind the comma, a quote anywhere else is an error,
a comment begins in the first column of a record, an empty line is skipped and a line of blanks is
not, and a quoted column may span lines. Standard library alone: the lab's programs run this file too.

Sources:
    Go 1.26, encoding/csv, ``Reader`` with its defaults (``LazyQuotes`` and ``TrimLeadingSpace`` off).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

BARE_QUOTE = 'bare " in a column that is not quoted'
QUOTE = 'text or blanks after the closing " of a column, or no closing "'


@dataclass(frozen=True, slots=True)
class Record:
    """One record.

    Args:
        line: number of its first line.
        columns: its columns, with blanks as they stand.
        problem: why Go stops here; empty when it does not.
    """

    line: int
    columns: tuple[str, ...]
    problem: str = ""


def records(text: str, comment: str = "#") -> Iterator[Record]:
    """Yield the records of a text; after a malformed one it goes on with the next line."""
    lines = _lines(text)
    at = 0
    while at < len(lines):
        line = lines[at]
        first = at + 1
        at += 1
        if line.startswith(comment) or line in ("", "\n"):
            continue
        columns: list[str] = []
        position: int | None = 0
        problem = ""
        while position is not None and not problem:
            if line.startswith('"', position):
                column, line, position, problem, at = _quoted(line, position + 1, lines, at)
            else:
                comma = line.find(",", position)
                column = line[position:comma] if comma >= 0 else line[position:].removesuffix("\n")
                position = comma + 1 if comma >= 0 else None
                if '"' in column:
                    problem = BARE_QUOTE
            columns.append(column)
        yield Record(first, tuple(columns), problem)


def column(text: str) -> str:
    """Return a text as a column, in quotes where it needs them."""
    if any(mark in text for mark in ',"\r\n'):
        doubled = text.replace('"', '""')
        return f'"{doubled}"'
    return text


def _lines(text: str) -> list[str]:
    """Lines with their ``\\n``; a carriage return before it, or at the very end, does not count."""
    *complete, last = text.split("\n")
    lines = [f"{line.removesuffix(chr(13))}\n" for line in complete]
    return [*lines, last.removesuffix("\r")] if last else lines


def _quoted(
    line: str, position: int, lines: list[str], at: int
) -> tuple[str, str, int | None, str, int]:
    """The column, the line it ends in and where the next column begins there, a problem, the next line."""
    parts: list[str] = []
    while True:
        quote = line.find('"', position)
        if quote >= 0:
            parts.append(line[position:quote])
            after = line[quote + 1 : quote + 2]
            if after == '"':
                parts.append('"')
                position = quote + 2
                continue
            following = quote + 2 if after == "," else None
            problem = "" if after in (",", "\n", "") else QUOTE
            return "".join(parts), line, following, problem, at
        parts.append(line[position:])
        if at == len(lines):
            return "".join(parts), line, None, QUOTE, at
        line, position = lines[at], 0
        at += 1
