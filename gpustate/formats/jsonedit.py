"""Set and remove keys of a foreign JSON file without changing anything else.

Parsing and dumping such a file would lose its key order, indentation, escapes and number formats. So an edit
works on the text: an existing value is replaced in place, and a new one is added after the last key of its
object, formatted like its neighbours. Every edit is verified by parsing the result.

Sources:
    RFC 8259. encoding/json of Go, which reads the files edited here: of two equal keys the last one counts.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpustate.documents import Json, JsonView
from gpustate.errors import ProbeError

_BLANK = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.S)
_SCALAR = re.compile(r"[^,\]} \t\r\n]+")
_BOM = "\ufeff"
_INDENT = "    "


@dataclass(slots=True)
class _Value:
    """The position of a value; of an object also its members in order."""

    start: int
    end: int = 0
    members: list[_Member] | None = None


@dataclass(slots=True)
class _Member:
    key: str
    start: int
    key_end: int
    value: _Value = field(default_factory=lambda: _Value(0))


def parse(text: str, place: str) -> Json:
    """Parse ``text``; only blanks is an empty object.

    Args:
        text: the file; a leading byte order mark is ignored.
        place: its path, for the message.

    Raises:
        ProbeError: it is not a JSON object; with file and line.
    """
    body = text.removeprefix(_BOM)
    if not body.strip(" \t\r\n"):
        return {}
    try:
        data = json.loads(body, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ProbeError(
            f"not valid JSON: {error.msg}",
            place=f"{place}:{error.lineno}",
            fix="repair the file first",
        ) from error
    except (ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ProbeError(
            f"not valid JSON: {why}", place=place, fix="repair the file first"
        ) from error
    if not isinstance(data, dict):
        raise ProbeError(
            f"is a {type(data).__name__}, wanted an object",
            place=place,
            fix="repair the file first",
        )
    return data


def set_key(text: str, path: Sequence[str], value: object, place: str) -> str:
    """Return ``text`` with one key set; missing objects are created.

    Args:
        text: the file; only blanks is an empty object.
        path: keys from the top.
        value: any JSON value.
        place: the file's path, for messages.

    Raises:
        ProbeError: it is not JSON, or a key of the path is a duplicate or not an object.
    """
    expected = copy.deepcopy(parse(text, place))
    table = expected
    for key in path[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ProbeError(f"{key} is not an object", place=place, fix="correct it")
    table[path[-1]] = value
    if not text.removeprefix(_BOM).strip(" \t\r\n"):
        bom = _BOM if text.startswith(_BOM) else ""
        return bom + json.dumps(expected, indent=_INDENT, ensure_ascii=False) + "\n"
    owner, target, missing = _walk(text, path, place)
    if not missing:
        edited = text[: target.start] + _rendered(text, value, target.start) + text[target.end :]
    else:
        for key in reversed(missing[1:]):
            value = {key: value}
        edited = _inserted(text, owner, missing[0], value)
    return _verified(edited, expected, place)


def drop_key(text: str, path: Sequence[str], place: str) -> str:
    """Return ``text`` without one key, which may be missing.

    Raises:
        ProbeError: it is not JSON, or a key of the path is a duplicate.
    """
    expected = copy.deepcopy(parse(text, place))
    table: Any = expected
    for key in path[:-1]:
        table = table.get(key) if isinstance(table, dict) else None
    if not isinstance(table, dict) or path[-1] not in table:
        return text
    del table[path[-1]]
    owner, _, _ = _walk(text, path, place)
    members = owner.members or []
    at = next(i for i, member in enumerate(members) if member.key == path[-1])
    if len(members) == 1:
        edited = text[: owner.start] + "{}" + text[owner.end :]
    elif at == 0:
        edited = text[: members[0].start] + text[members[1].start :]
    else:
        edited = text[: members[at - 1].value.end] + text[members[at].value.end :]
    return _verified(edited, expected, place)


def lookup(data: JsonView, path: Sequence[str]) -> Any:
    """Return the value at ``path``; ``None`` if it is not set."""
    value: Any = data
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _verified(text: str, expected: JsonView, place: str) -> str:
    try:
        same = parse(text, place) == expected
    except ProbeError:
        same = False
    if not same:
        raise ProbeError(
            "a key cannot be set without changing others", place=place, fix="set it by hand"
        )
    return text


def _walk(text: str, path: Sequence[str], place: str) -> tuple[_Value, _Value, list[str]]:
    """Return the innermost object of the path, the last value found, and the missing keys."""
    value = _scan(text, _past(text, 1 if text.startswith(_BOM) else 0))
    owner = value
    for at, key in enumerate(path):
        if value.members is None:
            raise ProbeError(f"{path[at - 1]} is not an object", place=place, fix="correct it")
        owner = value
        matches = [member for member in value.members if member.key == key]
        if len(matches) > 1:
            line = text.count("\n", 0, matches[-1].start) + 1
            raise ProbeError(
                f"duplicate key {key}", place=f"{place}:{line}", fix="remove one of them"
            )
        if not matches:
            return owner, value, list(path[at:])
        value = matches[0].value
    return owner, value, []


def _scan(text: str, at: int) -> _Value:
    """Return the value at ``at`` of valid JSON, with its members if it is an object."""
    value = _Value(at)
    if text[at] == "{":
        value.members = []
        at = _past(text, at + 1)
        while text[at] != "}":
            end = _string_end(text, at)
            member = _Member(str(json.loads(text[at:end])), at, end)
            colon = _past(text, end)
            member.value = _scan(text, _past(text, colon + 1))
            value.members.append(member)
            at = _past(text, member.value.end)
            if text[at] == ",":
                at = _past(text, at + 1)
        value.end = at + 1
    elif text[at] == "[":
        at = _past(text, at + 1)
        while text[at] != "]":
            at = _past(text, _scan(text, at).end)
            if text[at] == ",":
                at = _past(text, at + 1)
        value.end = at + 1
    elif text[at] == '"':
        value.end = _string_end(text, at)
    else:
        match = _SCALAR.match(text, at)
        value.end = match.end() if match else at
    return value


def _inserted(text: str, owner: _Value, key: str, value: object) -> str:
    """Return ``text`` with a new last member of an object, formatted like its neighbours."""
    members = owner.members or []
    if not members:
        indent = _line_indent(text, owner.start)
        if "\n" not in text:
            inner = f"{json.dumps(key, ensure_ascii=False)}: {_inline(value)}"
            return f"{text[: owner.start]}{{{inner}}}{text[owner.end :]}"
        newline, unit = _line_break(text), _unit(text)
        lead = newline + indent + unit
        member = _member(text, key, value, ": ", lead)
        return f"{text[: owner.start]}{{{lead}{member}{newline}{indent}}}{text[owner.end :]}"
    last = members[-1]
    if len(members) > 1:
        before = text[members[-2].value.end : last.start].partition(",")[2]
    else:
        before = text[owner.start + 1 : last.start]
    lead = before if "\n" in before or len(members) > 1 else " "
    colon = text[last.key_end : last.value.start]
    member = _member(text, key, value, colon if "\n" not in colon else ": ", lead)
    return f"{text[: last.value.end]},{lead}{member}{text[last.value.end :]}"


def _member(text: str, key: str, value: object, colon: str, lead: str) -> str:
    name = json.dumps(key, ensure_ascii=False)
    if "\n" not in lead:
        return f"{name}{colon}{_inline(value)}"
    indent = lead.rpartition("\n")[2]
    return f"{name}{colon}{_block(value, indent, _unit(text), _line_break(text))}"


def _rendered(text: str, value: object, at: int) -> str:
    """``value`` formatted like the value it replaces, on one line or several."""
    if "\n" not in text:
        return _inline(value)
    return _block(value, _line_indent(text, at), _unit(text), _line_break(text))


def _inline(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _block(value: object, indent: str, unit: str, newline: str) -> str:
    lines = json.dumps(value, indent=unit or _INDENT, ensure_ascii=False).split("\n")
    return (newline + indent).join(lines)


def _line_indent(text: str, at: int) -> str:
    """The blanks that the line of ``at`` begins with."""
    start = text.rfind("\n", 0, at) + 1
    line = text[start:at].removeprefix(_BOM)
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    """The indentation of one level: that of the file's first indented line."""
    for line in text.split("\n")[1:]:
        blanks = line[: len(line) - len(line.lstrip(" \t"))]
        if blanks and line.strip():
            return blanks
    return _INDENT


def _line_break(text: str) -> str:
    at = text.find("\n")
    return "\r\n" if at > 0 and text[at - 1] == "\r" else "\n"


def _string_end(text: str, at: int) -> int:
    match = _STRING.match(text, at)
    return match.end() if match else at


def _past(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
