"""Locate the statements of a TOML text, so that an edit can change one and keep every other byte.

``tomllib`` drops positions, and writers that keep comments still change whitespace. This module only finds
spans. :func:`parse` validates with ``tomllib``, and every edit based on these spans is verified by parsing the
result.

Sources:
    TOML 1.0.0: keys, strings, arrays, inline tables.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import Literal

from gpustate.documents import Json
from gpustate.errors import ProbeError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BARE_VALUE = re.compile(r"[^,\]}#\r\n]+")
_BLANK = re.compile(r"[ \t]*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_NAMES, _NAME = re.compile(r"\((?:'[^']*'(?:, |,)?)+\)"), re.compile(r"'([^']*)'")
_LINE_OF = re.compile(r"\(at line (\d+)")


@dataclass(frozen=True, slots=True)
class Statement:
    """One header, or one ``key = value``, with the lines it takes."""

    kind: Literal["table", "array", "key"]
    section: tuple[str, ...]  # path of its header; () before the first one
    path: tuple[str, ...]  # from the top of the document
    start: int  # first byte of its first line, indentation included
    key_start: int
    value_start: int  # of a header: where the header ends
    value_end: int
    end: int  # past its line break, or the end of the text
    comment: str  # after the value on the same line, without the blanks before it


@dataclass(frozen=True, slots=True)
class Comment:
    """A line that is only a comment, outside of any value."""

    start: int
    end: int
    text: str  # the line without its line break


@dataclass(frozen=True, slots=True)
class Scan:
    """The statements and the comment lines of one text, in order."""

    statements: tuple[Statement, ...]
    comments: tuple[Comment, ...]

    def find(self, path: tuple[str, ...]) -> Statement | None:
        """Return the ``key = value`` that sets ``path``."""
        return next((s for s in self.statements if s.kind == "key" and s.path == path), None)

    def header(self, path: tuple[str, ...]) -> Statement | None:
        """Return the ``[path]`` line."""
        return next((s for s in self.statements if s.kind == "table" and s.path == path), None)


def _key(match: re.Match[str]) -> str:
    names = (n if re.fullmatch(r"[\w-]+", n) else f'"{n}"' for n in _NAME.findall(match[0]))
    return f"[{'.'.join(names)}]"


def parse(text: str, place: str) -> Json:
    """Parse TOML.

    Args:
        text: TOML.
        place: its file, for the message.

    Raises:
        ProbeError: it is not TOML; with file and line.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = _LINE_OF.search(str(error))
        number = line.group(1) if line else str(text.count("\n") + 1)
        # tomllib prints the parts of a key as a Python tuple.
        message = _NAMES.sub(_key, str(error))
        message = message.partition(" (at ")[0]
        raise ProbeError(
            f"not valid TOML: {message}", place=f"{place}:{number}", fix="repair the file first"
        ) from error
    except (ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else "a number is too long"
        raise ProbeError(
            f"not valid TOML: {why}", place=place, fix="repair the file first"
        ) from error


def line_break(text: str) -> str:
    """Return the line break that ``text`` uses, by its first one."""
    at = text.find("\n")
    return "\r\n" if at > 0 and text[at - 1] == "\r" else "\n"


def scan(text: str) -> Scan:
    """Return the statements and comment lines of a text that ``tomllib`` reads; of no other."""
    statements: list[Statement] = []
    comments: list[Comment] = []
    section: tuple[str, ...] = ()
    at = 0
    while at < len(text):
        start = at
        at = _past(_BLANK, text, at)
        if at == len(text):
            break
        if text[at] in "\r\n":
            at = _line_end(text, at)
            continue
        if text[at] == "#":
            at = _line_end(text, at)
            comments.append(Comment(start, at, text[start:at].rstrip("\r\n")))
            continue
        key_start = at
        kind: Literal["table", "array", "key"] = "key"
        if text[at] == "[":
            kind = "array" if text.startswith("[[", at) else "table"
            section, at = _dotted_key(text, at + (2 if kind == "array" else 1))
            path = section
            at += 2 if kind == "array" else 1
            value_start = at
        else:
            keys, at = _dotted_key(text, at)
            path = (*section, *keys)
            value_start = _past(_BLANK, text, at + 1)
            at = skip_value(text, value_start)
        end = _line_end(text, at)
        comment = text[at:end].strip()
        statements.append(
            Statement(kind, section, path, start, key_start, value_start, at, end, comment)
        )
        at = end
    return Scan(tuple(statements), tuple(comments))


def skip_value(text: str, at: int) -> int:
    """Return where the value that starts at ``at`` ends."""
    if text[at] in "\"'":
        return _skip_string(text, at)
    if text[at] not in "[{":
        match = _BARE_VALUE.match(text, at)
        return at + len(match.group().rstrip()) if match else at
    depth = 0
    while at < len(text):
        if text[at] in "\"'":
            at = _skip_string(text, at)
            continue
        if text[at] == "#":
            at = _line_end(text, at)
            continue
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(text[at], 0)
        at += 1
        if depth == 0:
            break
    return at


def array_items(text: str, start: int) -> list[tuple[int, int]]:
    """Return the spans of the items of the array whose ``[`` is at ``start``."""
    items: list[tuple[int, int]] = []
    at = _past(_BLANK_LINES, text, start + 1)
    while text[at] != "]":
        end = skip_value(text, at)
        items.append((at, end))
        at = _past(_BLANK_LINES, text, end)
        if text[at] == ",":
            at = _past(_BLANK_LINES, text, at + 1)
    return items


def inline_entries(text: str, start: int) -> list[tuple[tuple[str, ...], int, int]]:
    """Return key, start and end of the values of the inline table whose ``{`` is at ``start``."""
    entries: list[tuple[tuple[str, ...], int, int]] = []
    at = _past(_BLANK_LINES, text, start + 1)
    while text[at] != "}":
        keys, at = _dotted_key(text, at)
        value = _past(_BLANK, text, at + 1)
        end = skip_value(text, value)
        entries.append((keys, value, end))
        at = _past(_BLANK_LINES, text, end)
        if text[at] == ",":
            at = _past(_BLANK_LINES, text, at + 1)
    return entries


def render_key(path: tuple[str, ...]) -> str:
    """Return ``path`` as a dotted key, quoted where needed."""
    return ".".join(part if _BARE_KEY.fullmatch(part) else render_value(part) for part in path)


def render_value(value: object) -> str:
    """Return ``value`` on one line, as TOML.

    Raises:
        ProbeError: a kind of value that no configuration handled here has (a date).
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return '"' + "".join(_escape(character) for character in value) + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(render_value(item) for item in value) + "]"
    if isinstance(value, dict):
        inside = ", ".join(f"{render_key((str(k),))} = {render_value(v)}" for k, v in value.items())
        return "{ " + inside + " }" if inside else "{}"
    raise ProbeError(f"a value of type {type(value).__name__} cannot be copied: {value!r}")


def _escape(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if ord(character) < 0x20 or ord(character) == 0x7F:
        return f"\\u{ord(character):04x}"
    return character


def _dotted_key(text: str, at: int) -> tuple[tuple[str, ...], int]:
    """Return the key at ``at`` and the place of what follows it: ``=`` or ``]``."""
    parts: list[str] = []
    while True:
        at = _past(_BLANK, text, at)
        if text[at] in "\"'":
            end = _skip_string(text, at)
            parts.append(str(tomllib.loads(f"k = {text[at:end]}")["k"]))
        else:
            end = _past(_BARE_KEY, text, at)
            parts.append(text[at:end])
        at = _past(_BLANK, text, end)
        if text[at] != ".":
            return tuple(parts), at
        at += 1


def _skip_string(text: str, at: int) -> int:
    quote = text[at]
    triple = text.startswith(quote * 3, at)
    at += 3 if triple else 1
    while at < len(text):
        if text[at] == "\\" and quote == '"':
            at += 2
        elif triple and text.startswith(quote * 3, at):
            at += 3
            # Up to two quotes may stand right before the closing three.
            while at < len(text) and text[at] == quote:
                at += 1
            return at
        elif not triple and text[at] == quote:
            return at + 1
        else:
            at += 1
    return at


def _past(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _line_end(text: str, at: int) -> int:
    newline = text.find("\n", at)
    return len(text) if newline < 0 else newline + 1
