"""Comments that mark the lines added by gpustate, and how to remove these lines.

Every edit is marked, so that it can be undone years later without a copy of the original file, even after
the administrator has edited around it:

- ``# BEGIN gpustate`` to ``# END gpustate``: a block added at the end;
- a statement that ends in ``# gpustate``: an added line;
- ``# gpustate keeps: ...``: a foreign line that an added one replaces;
- gpustate's pattern in ``imports``.

:func:`strip` removes all of it. If an added line was edited by hand since, the edit stays and only the mark is
removed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpustate.errors import ProbeError
from gpustate.formats.toml_scan import Comment, Scan, Statement, array_items, parse, scan

MARK = "# gpustate"
PRESERVED = "# gpustate keeps: "
BEGIN = "# BEGIN gpustate: NVIDIA runtime handler. Edits between BEGIN and END are lost."
END = "# END gpustate"
UNCLOSED = f"gpustate's block begins here and its line {END!r} is missing"
CLOSE = "add that line after the tables of the handler"
NEW_FILE = "# gpustate made this file: there was none."
DROP_IN = "# This file is gpustate's, edits are lost. It goes away with the NVIDIA runtime handler."

_BEGIN_START = BEGIN.partition(":")[0]
_BLOCK = re.compile(rf"^{re.escape(_BEGIN_START)}.*?^{re.escape(END)}\r?\n?", re.S | re.M)


@dataclass(frozen=True, slots=True)
class Stripped:
    """A text without our lines; ``None`` if the file would not exist."""

    text: str | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Cut:
    start: int
    end: int
    new: str = ""


def import_pattern(drop_in_path: str) -> str:
    """Return the import that loads our drop-in and nothing else of its directory.

    With a star, because containerd refuses to start if an import without one does not exist.
    """
    return drop_in_path.removesuffix(".toml") + "*.toml"


def insert_after(text: str, at: int, lines: str, newline: str) -> str:
    """Insert ``lines`` after the statement that ends at ``at``; a missing final newline stays missing."""
    if at == 0 or text[at - 1] == "\n":
        return text[:at] + lines + newline + text[at:]
    return text[:at] + newline + lines + text[at:]


def retire(text: str) -> str:
    """Return a foreign file as comments that :func:`strip` restores."""
    lines = text.removesuffix("\n").split("\n")
    commented = "\n".join(PRESERVED + line for line in lines)
    return f"{DROP_IN}\n{commented}" + ("\n" if text.endswith("\n") else "")


def same(old_text: str, new_text: str, path: str, *, pattern: str, name: str) -> bool:
    """Whether two texts are equivalent with and without our lines; arguments as of :func:`strip`."""
    try:
        stripped = [strip(t, path, pattern=pattern, name=name).text for t in (old_text, new_text)]
        return stripped[0] == stripped[1] and parse(old_text, path) == parse(new_text, path)
    except ProbeError:
        return False


def strip(text: str, path: str, *, pattern: str, name: str, keep_import: bool = False) -> Stripped:
    """Remove every line of ours from ``text``.

    Args:
        text: one configuration file.
        path: its path, for messages.
        pattern: our entry of ``imports``.
        name: our handler.
        keep_import: ``pattern`` is part of the original.

    Raises:
        ProbeError: not TOML, with and without our block.
    """
    if text.startswith(DROP_IN):
        return Stripped(_kept_lines(text) or None)
    text = _readable(text, path)
    parsed = scan(text)
    blocks = _blocks(parsed, text, path)
    marked = [s for s in parsed.statements if s.comment == MARK and not _inside(s, blocks)]
    foreign = [s for s in parsed.statements if s not in marked and not _inside(s, blocks)]
    preserved = [
        c for c in parsed.comments if c.text.startswith(PRESERVED) and not _inside(c, blocks)
    ]
    names = {name} | {s.path[-1] for s in parsed.statements if _names_runtime(s, blocks)}
    cuts = list(blocks)
    dropped: set[Comment] = set()
    notes: list[str] = []
    for statement in marked:
        before = _preserved_before(statement, preserved)
        if statement.path == ("imports",):
            cuts.extend(_cut_import(text, statement, pattern, alone_goes=True))
        elif statement.path == ("version",) and (foreign or preserved):
            cuts.append(_unmark(text, statement))
        elif _edited(text, statement, before, names):
            cuts.append(_unmark(text, statement))
            cuts.extend(_Cut(comment.start, comment.end) for comment in before)
            dropped.update(before)
            notes.append(
                f"{path}: {'.'.join(statement.path)} was edited by hand since; not changed"
            )
        else:
            cuts.append(_Cut(statement.start, statement.end))
    cuts.extend(_Cut(c.start, c.start + len(PRESERVED)) for c in preserved if c not in dropped)
    new_file_marks = [c for c in parsed.comments if c.text == NEW_FILE]
    cuts.extend(_Cut(c.start, c.end) for c in new_file_marks)
    imports = parsed.find(("imports",))
    if imports is not None and imports in foreign and not keep_import:
        cuts.extend(_cut_import(text, imports, pattern, alone_goes=False))
    stripped = _apply(text, cuts)
    return Stripped(None if new_file_marks and not stripped.strip() else stripped, tuple(notes))


def marked_runtimes(files: Mapping[str, str]) -> set[str]:
    """Names of the runtimes that our lines define: the handler, and what somebody has renamed it to.

    Args:
        files: path to text.
    """
    names: set[str] = set()
    for path, text in files.items():
        try:
            parsed = scan(text)
            blocks = _blocks(parsed, text, path)
        except ProbeError:
            continue
        drop_in = text.startswith(DROP_IN)
        tables = (s for s in parsed.statements if s.path[-2:-1] == ("runtimes",))
        names |= {
            s.path[-1]
            for s in tables
            if s.kind == "table" and (drop_in or s.comment == MARK or _inside(s, blocks))
        }
    return {name for name in names if re.fullmatch(r"[\w-]+", name)}


def _readable(text: str, path: str) -> str:
    """Return ``text``, without our block if only the block makes it invalid TOML.

    For example, an administrator added a table that our block, far below, defines too.
    """
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError):
        outside = _BLOCK.sub("", text)
        try:
            tomllib.loads(outside)
        except (ValueError, RecursionError):
            parse(text, path)
        return outside
    return text


def _apply(text: str, cuts: list[_Cut]) -> str:
    for cut in sorted(cuts, key=lambda c: c.start, reverse=True):
        start = cut.start
        end = min(cut.end, len(text))  # its newline may have been removed with the next cut
        if end == len(text) and not cut.new and end > start and not text.endswith("\n"):
            # Inserted after a last line without newline: the newline is ours.
            start -= 2 if text[:start].endswith("\r\n") else min(start, 1)
        text = text[:start] + cut.new + text[end:]
    return text


def _kept_lines(text: str) -> str:
    lines = text.split("\n")
    return "\n".join(
        line.removeprefix(PRESERVED) for line in lines if line.startswith(PRESERVED)
    ) + ("\n" if text.endswith("\n") and PRESERVED in text else "")


def _blocks(parsed: Scan, text: str, path: str) -> list[_Cut]:
    blocks: list[_Cut] = []
    begin: Comment | None = None
    for comment in parsed.comments:
        if comment.text.startswith(_BEGIN_START):
            begin = comment
        elif comment.text == END and begin is not None:
            blocks.append(_Cut(begin.start, comment.end))
            begin = None
    if begin is not None:
        raise ProbeError(
            UNCLOSED, place=f"{path}:{text.count(chr(10), 0, begin.start) + 1}", fix=CLOSE
        )
    return blocks


def _inside(item: Statement | Comment, blocks: list[_Cut]) -> bool:
    return any(block.start <= item.start < block.end for block in blocks)


def _names_runtime(statement: Statement, blocks: list[_Cut]) -> bool:
    header_of_one = statement.kind == "table" and statement.path[-2:-1] == ("runtimes",)
    return header_of_one and _inside(statement, blocks)


def _preserved_before(statement: Statement, preserved: list[Comment]) -> list[Comment]:
    """Return the kept lines that ``statement`` replaces: those right above it."""
    before: list[Comment] = []
    at = statement.start
    for comment in reversed(preserved):
        if comment.end == at:
            before.append(comment)
            at = comment.start
    return before


def _edited(text: str, statement: Statement, before: list[Comment], names: set[str]) -> bool:
    value = _value(text, statement)
    if statement.path[-1] == "default_runtime_name":
        return value not in names
    if isinstance(value, dict) and before:
        old = "".join(c.text.removeprefix(PRESERVED) + "\n" for c in reversed(before))
        was = _nested(old, statement)
        # containerd 1.x: the built-in runc is written out if the files name other runtimes only.
        added = names if _holds(was, "runc") else {*names, "runc"}
        return bool(_without(value, added) != _without(was, added))
    return False


def _holds(value: Any, key: str) -> bool:
    if not isinstance(value, Mapping):
        return False
    return key in value or any(_holds(inner, key) for inner in value.values())


def _nested(old: str, statement: Statement) -> Any:
    value: Any = tomllib.loads(old)
    for part in statement.path[len(statement.section) :]:
        value = value[part] if isinstance(value, Mapping) else None
    return value


def _without(value: Any, names: set[str]) -> Any:
    """Return a table without our settings (handler, default, CDI) and without empty tables."""
    if not isinstance(value, Mapping):
        return value
    skip = {*names, "default_runtime_name", "enable_cdi", "cdi_spec_dirs"}
    inner = {k: _without(v, names) for k, v in value.items() if k not in skip}
    return {k: v for k, v in inner.items() if v != {}}


def _value(text: str, statement: Statement) -> Any:
    return tomllib.loads(f"k = {text[statement.value_start : statement.value_end]}")["k"]


def _unmark(text: str, statement: Statement) -> _Cut:
    at = text.index(MARK, statement.value_end)
    return _Cut(statement.value_end, at + len(MARK))


def _cut_import(text: str, statement: Statement, pattern: str, *, alone_goes: bool) -> list[_Cut]:
    """Return the cuts that remove ``pattern`` from the array, and our mark from its line."""
    unmark = [_unmark(text, statement)] if alone_goes else []
    if text[statement.value_start] != "[":
        return unmark
    items = array_items(text, statement.value_start)
    values = _value(text, statement)
    if pattern not in values:
        return unmark
    if alone_goes and len(items) == 1:
        return [_Cut(statement.start, statement.end)]
    return [_cut_item(text, items, values.index(pattern)), *unmark]


def _cut_item(text: str, items: list[tuple[int, int]], at: int) -> _Cut:
    start, end = items[at]
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", end) + 1
    if line_end and text[line_start:line_end].strip(" \t\r\n,") == text[start:end]:
        return _Cut(line_start, line_end)
    if text[end] == ",":
        # One blank is removed too: the one before, or else the one after the comma.
        if at:
            return _Cut(start - 1 if text[start - 1] == " " else start, end + 1)
        return _Cut(start, end + (2 if text[end + 1] == " " else 1))
    between = text[items[at - 1][1] : start] if at else ""
    return _Cut(start if "#" in between else start - len(between), end)
