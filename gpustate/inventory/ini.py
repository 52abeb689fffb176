"""Ansible's INI inventories.

Three kinds of section: ``[group]`` (one node or range per line, followed by ``key=value``),
``[group:vars]`` and ``[group:children]``. Surprising, and the same as in Ansible:

- After a node, quotes are the shell's and ``#`` begins a comment. Under ``[group:vars]`` everything
  right of the first ``=`` is the value, quotes and ``#`` included.
- A value that is a Python literal becomes that value: ``8`` a number, ``True`` a boolean,
  ``[1, 2]`` a list. ``true`` and ``yes`` stay text, and so does ``08``.
- ``[x:vars]`` and a child need a ``[x]`` or ``[x:children]`` somewhere.

Sources:
    Ansible, "How to build your inventory", and ``ansible.builtin.ini`` of ansible-core 2.19.
"""

from __future__ import annotations

import ast
import re
import shlex
import warnings
from dataclasses import dataclass, field
from typing import Any

from gpustate.errors import InventoryError
from gpustate.formats.words import at, quote, quote_name
from gpustate.inventory.ranges import expand
from gpustate.inventory.secrets import line_shown, word_shown
from gpustate.inventory.store import Store, Value

_SECTION = re.compile(r"\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?")
_GROUP_NAME = re.compile(r"([^:\]\s]+)\s*(?:#.*)?")
#: Fast check for lines and values without special characters: most lines of a large inventory,
#: while ``shlex`` takes 100 microseconds per line.
_NEEDS_SHLEX = re.compile(r"""["'\\#]|[^\x20-\x7e\t]""")
_PLAIN_TEXT = re.compile(r"[A-Za-z_][\w./~-]*")
_PLAIN_NUMBER = re.compile(r"[1-9][0-9]{0,15}")


@dataclass(slots=True)
class _Undeclared:
    """Groups used before or without their declaration: name to (place, why)."""

    by_name: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])

    def add(self, name: str, place: str, why: str) -> None:
        self.by_name.setdefault(name, (place, why))


def fill(store: Store, text: str, path: str) -> None:
    """Read ``text`` into ``store``.

    Raises:
        InventoryError: an invalid line, with its number.
    """
    declared = set(store.groups)
    undeclared = _Undeclared()
    group, kind = "ungrouped", "hosts"
    with warnings.catch_warnings():
        # Python warns about odd literals ("\d"), which are only text here.
        warnings.simplefilter("ignore")
        for number, raw in enumerate(text.split("\n"), 1):
            line = raw.strip()
            if not line or line[0] in "#;":
                continue
            place = at(path, number)
            if line[0] == "[" and (match := _SECTION.fullmatch(line)):
                group, kind = _section(store, match, place, declared, undeclared)
            elif line[0] == "[" and line[-1] == "]":
                raise InventoryError(
                    f"{line_shown(line)} is not a section, wanted [group], [group:vars] or"
                    " [group:children], without spaces",
                    place=place,
                )
            elif kind == "hosts":
                _nodes(store, line, group, place, path)
            elif kind == "vars":
                _group_var(store, line, group, place)
            else:
                child = _child(line, place)
                undeclared.add(
                    child,
                    place,
                    f"[{quote_name(group)}:children] refers to the group {quote(child)}",
                )
                store.group(child, place)
                store.add_child(group, child, place)
    for name, (place, why) in undeclared.by_name.items():
        if name not in declared:
            raise InventoryError(
                f"{why}, which is not defined", place=place, fix=f"add [{quote_name(name)}]"
            )


def _section(
    store: Store, match: re.Match[str], place: str, declared: set[str], undeclared: _Undeclared
) -> tuple[str, str]:
    name, kind = match[1], match[2] or "hosts"
    if kind not in {"hosts", "children", "vars"}:
        raise InventoryError(
            f"[{quote_name(name)}:{kind}] is not a valid section, wanted [{quote_name(name)}], [{quote_name(name)}:vars] or"
            f" [{quote_name(name)}:children]",
            place=place,
        )
    store.group(name, place)
    if kind == "vars":
        undeclared.add(name, place, f"[{quote_name(name)}:vars] refers to the group {quote(name)}")
    else:
        declared.add(name)
    return name, kind


def _nodes(store: Store, line: str, group: str, place: str, path: str) -> None:
    """Read one line of a ``[group]`` section."""
    try:
        words = shlex.split(line, comments=True) if _NEEDS_SHLEX.search(line) else line.split()
    except ValueError as error:
        raise InventoryError(
            f"{line_shown(line)}: {str(error).lower()}", place=place, fix="close the quotes"
        ) from error
    if not words or not words[0]:
        raise InventoryError(f"{line_shown(line)} does not name a node", place=place)
    if words[0] == "---":
        raise InventoryError(
            "'---' begins a YAML file, but this one is read as INI",
            place=place,
            fix="rename the file to .yml",
        )
    names, port = expand(words[0], place)
    variables: dict[str, Value] = {}
    for word in words[1:]:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise InventoryError(
                f"{word_shown(word, words[1:])} after {quote(words[0])}, wanted key=value",
                place=place,
                fix="write one node per line, and quote values with spaces",
            )
        variables[key] = Value(parse_literal(text), place)
    first = None if port is None else Value(port, place)
    for name in names:
        store.node(name, group, source=path, port=first).vars.update(variables)


def _group_var(store: Store, line: str, group: str, place: str) -> None:
    key, equals, text = line.partition("=")
    if not equals or not key.strip():
        raise InventoryError(
            f"{line_shown(line)} under [{quote_name(group)}:vars], wanted key=value", place=place
        )
    store.set_group_var(group, key.strip(), Value(parse_literal(text.strip()), place))


def _child(line: str, place: str) -> str:
    match = _GROUP_NAME.fullmatch(line)
    if match is None:
        raise InventoryError(f"{line_shown(line)} is not the name of a group", place=place)
    return match[1]


def parse_literal(text: str) -> Any:
    """Parse ``text`` as a Python literal, or return the text itself."""
    if _PLAIN_TEXT.fullmatch(text) and text not in {"True", "False", "None"}:
        return text
    if _PLAIN_NUMBER.fullmatch(text):
        return int(text)
    try:
        return _plain(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _plain(value: Any) -> Any:
    """Convert Python's own types (tuples, sets, bytes, complex numbers) to those of YAML."""
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if value is ...:
        return "..."
    return str(value) if isinstance(value, complex) else value
