"""Set keys in a foreign file without changing anything else.

A new table goes into a marked block at the end of the file. A key of a foreign table goes after the
header of that table; if it was set already, the old line is kept as a comment. An inline table cannot be
extended from outside: its line is kept as a comment and written again with our key.

:func:`gpustate.formats.containerd.marks.strip` undoes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpustate.documents import JsonView
from gpustate.errors import ProbeError
from gpustate.formats.containerd.marks import BEGIN, END, MARK, PRESERVED, insert_after
from gpustate.formats.toml_scan import (
    Statement,
    array_items,
    inline_entries,
    line_break,
    render_key,
    render_value,
    scan,
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One key or one whole table of a file; ``None`` removes it."""

    path: tuple[str, ...]
    value: Any


@dataclass(slots=True)
class _Block:
    """New tables that go into a block at the end."""

    keys: dict[tuple[str, ...], list[str]] = field(
        default_factory=lambda: dict[tuple[str, ...], list[str]]()
    )
    tables: list[Setting] = field(default_factory=lambda: list[Setting]())

    def lines(self) -> list[str]:
        lines: list[str] = []
        for path, keys in self.keys.items():
            lines += [f"[{render_key(path)}]", *(f"  {key}" for key in keys)]
        for table in self.tables:
            lines += render_table(table.path, table.value)
        return lines


def render_table(path: tuple[str, ...], table: JsonView, indent: str = "") -> list[str]:
    """Return the lines of one table; nested tables follow as separate tables."""
    lines = [f"{indent}[{render_key(path)}]"]
    inner = indent + "  "
    for key, value in table.items():
        if not isinstance(value, Mapping):
            lines.append(f"{inner}{render_key((key,))} = {render_value(value)}")
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += render_table((*path, key), value, inner)
    return lines


def set_in_place(text: str, settings: Sequence[Setting]) -> str:
    """Return ``text`` with all settings applied."""
    newline = line_break(text)
    block = _Block()
    for setting in settings:
        text = _set(text, setting, block, newline)
    lines = block.lines()
    if lines:
        text = insert_after(text, len(text), newline.join([BEGIN, *lines, END]), newline)
    return text


def add_import(text: str, pattern: str) -> str:
    """Return ``text`` with ``pattern`` last among its imports."""
    parsed = scan(text)
    newline = line_break(text)
    quoted = render_value(pattern)
    statement = parsed.find(("imports",))
    if statement is None:
        version = parsed.find(("version",))
        at = version.end if version is not None else 0
        return insert_after(text, at, f"imports = [{quoted}] {MARK}", newline)
    items = array_items(text, statement.value_start)
    if not items:
        at = statement.value_start + 1
        return text[:at] + quoted + text[at:]
    start, end = items[-1]
    comma = text.find(",", end, statement.value_end)
    # A comma in a comment does not count: the scan of the rest of the array tells them apart.
    has_comma = comma >= 0 and not text[end:comma].strip()
    after = comma + 1 if has_comma else end
    line_end = text.find("\n", after) + 1
    tail = text[after:line_end].strip()
    alone = not text[text.rfind("\n", 0, start) + 1 : start].strip()
    if alone and line_end and line_end < statement.value_end and (not tail or tail[0] == "#"):
        indent = text[text.rfind("\n", 0, start) + 1 : start]
        line = f"{indent}{quoted}," if has_comma else f"{indent}, {quoted}"
        return text[:line_end] + line + newline + text[line_end:]
    return text[:after] + (f" {quoted}," if has_comma else f", {quoted}") + text[after:]


def _set(text: str, setting: Setting, block: _Block, newline: str) -> str:
    parsed = scan(text)
    path, value = setting.path, setting.value
    outer = next((s for s in parsed.statements if _inline_around(text, s, path)), None)
    if outer is not None:
        new = _set_inline(text, outer.value_start, outer.path, setting)
        return _replace(text, outer, new, newline)
    present = [s for s in parsed.statements if s.path[: len(path)] == path]
    if isinstance(value, Mapping) or value is None:
        for statement in reversed(present):
            text = text[: statement.start] + _as_preserved(text, statement) + text[statement.end :]
        if value is not None:
            block.tables.append(setting)
        return text
    if present:
        return _replace(text, present[0], render_value(value), newline)
    return _add_key(text, setting, block, newline)


def _add_key(text: str, setting: Setting, block: _Block, newline: str) -> str:
    parsed = scan(text)
    *parent_parts, key = setting.path
    parent = tuple(parent_parts)
    line = f"{render_key((key,))} = {render_value(setting.value)}"
    header = parsed.header(parent)
    if header is not None:
        inside = [s for s in parsed.statements if s.kind == "key" and s.section == parent]
        indent = _indent(text, inside[0]) if inside else _indent(text, header) + "  "
        return insert_after(text, header.end, f"{indent}{line} {MARK}", newline)
    dotted = [
        s
        for s in parsed.statements
        if s.kind == "key" and len(s.section) < len(parent) and s.path[: len(parent)] == parent
    ]
    if dotted:
        last = dotted[-1]
        relative = render_key(setting.path[len(last.section) :])
        line = f"{_indent(text, last)}{relative} = {render_value(setting.value)} {MARK}"
        return insert_after(text, last.end, line, newline)
    block.keys.setdefault(parent, []).append(line)
    return text


def _inline_around(text: str, statement: Statement, path: tuple[str, ...]) -> bool:
    """Whether ``path`` lies inside the inline table that ``statement`` sets."""
    return (
        statement.kind == "key"
        and len(statement.path) < len(path)
        and path[: len(statement.path)] == statement.path
        and text[statement.value_start] == "{"
    )


def _set_inline(text: str, start: int, at: tuple[str, ...], setting: Setting) -> str:
    """Return the inline table that starts at ``start`` with the setting made inside it."""
    keys_below = setting.path[len(at) :]
    if setting.value is None:
        raise ProbeError(
            f"{render_key(setting.path)} is in an inline table and cannot be removed from it",
            fix=f"write it as a [{render_key(setting.path)}] table",
        )
    end = start
    entries = inline_entries(text, start)
    for keys, value_start, value_end in entries:
        end = value_end
        inside = len(keys) < len(keys_below) and keys_below[: len(keys)] == keys
        if keys == keys_below or (inside and text[value_start] == "{"):
            new = (
                render_value(setting.value)
                if keys == keys_below
                else _set_inline(text, value_start, (*at, *keys), setting)
            )
            close = _close(text, entries[-1][2])
            return text[start:value_start] + new + text[value_end:close]
    entry = f"{render_key(keys_below)} = {render_value(setting.value)}"
    if not entries:
        return "{ " + entry + " }"
    return text[start:end] + f", {entry}" + text[end : _close(text, end)]


def _close(text: str, at: int) -> int:
    return text.index("}", at) + 1


def _replace(text: str, statement: Statement, value: str, newline: str) -> str:
    """Change the value of a statement; foreign lines stay above it as comments."""
    line = f"{text[statement.start : statement.value_start]}{value} {MARK}"
    if statement.comment == MARK:
        tail = text[statement.value_end : statement.end].partition(MARK)[2]
        return text[: statement.start] + line + tail + text[statement.end :]
    preserved = _as_preserved(text, statement)
    text = text[: statement.start] + preserved + text[statement.end :]
    return insert_after(text, statement.start + len(preserved), line, newline)


def _as_preserved(text: str, statement: Statement) -> str:
    lines = text[statement.start : statement.end]
    last = lines.endswith("\n")
    preserved = "\n".join(PRESERVED + line for line in lines.removesuffix("\n").split("\n"))
    return preserved + ("\n" if last else "")


def _indent(text: str, statement: Statement) -> str:
    return text[statement.start : statement.key_start]
