"""Kubernetes YAML (or JSON) text to items that know their lines.

A file may hold several documents, and a ``kind: List`` several more. Values are those the API
server would see: YAML 1.1, so an unquoted ``on`` or ``no`` is a boolean. A key that stands twice in
one mapping is refused, nesting is bounded, and so is what aliases expand to.

The items are built from the parser's events, not by PyYAML's composer: that one recurses in C and
dies of a few thousand open brackets.

Sources:
    YAML 1.1, https://yaml.org/type/ (implicit types, merge keys).
    kubernetes-sigs/yaml: what kubectl makes of a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.constructor import ConstructorError, SafeConstructor

from gpustate.errors import PolicyError

LIMIT_DEPTH = 60
#: Values in one file, each alias counted as often as it is used.
LIMIT_VALUES = 500_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_SCALARS = SafeConstructor()


@dataclass(frozen=True, slots=True)
class Item:
    """A value and the line its key (in a list: the value itself) stands on.

    Args:
        value: a scalar, a dict of items by key, or a list of items.
        line: counted from 1.
    """

    value: Any
    line: int

    def get(self, *path: str) -> Item | None:
        """Follow keys down mappings; ``None`` where one is missing or leads to nothing."""
        item: Item | None = self
        for key in path:
            if item is None or not isinstance(item.value, dict):
                return None
            item = item.value.get(key)
        return None if item is None or item.value is None else item

    def text(self, *path: str) -> str:
        """The string at a path; empty when there is none."""
        item = self.get(*path)
        return item.value if item is not None and isinstance(item.value, str) else ""


def plain(item: Item) -> Any:
    """Return an item as plain Python data."""
    if isinstance(item.value, dict):
        return {key: plain(value) for key, value in item.value.items()}
    if isinstance(item.value, list):
        return [plain(value) for value in item.value]
    return item.value


def kind_of(value: object) -> str:
    """Name the type of an item's value as someone who writes YAML would."""
    names: tuple[tuple[type, str], ...] = (
        (dict, "a mapping"),
        (list, "a list"),
        (bool, "a boolean"),
        (str, "a string"),
        (int, "a number"),
        (float, "a number"),
    )
    return next((name for known, name in names if isinstance(value, known)), "nothing")


def shown(value: object, limit: int = 60) -> str:
    """Quote a value for a message, on one line and not longer than ``limit``."""
    text = value if isinstance(value, str) else str(value)
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")


def read(text: str, path: str) -> list[Item]:
    """Return the documents of a file that are not empty, those of a ``List`` one by one.

    Raises:
        PolicyError: with the line at which the text stops making sense.
    """
    found: list[Item] = []
    for item in _documents(text, path):
        if item.text("kind") == "List" and item.text("apiVersion") == "v1":
            items = item.get("items")
            if items is not None and isinstance(items.value, list):
                found.extend(items.value)
                continue
        if item.value is not None:
            found.append(item)
    return found


def _documents(text: str, path: str) -> list[Item]:
    loader = None
    try:
        loader = _Loader(text)
        return list(_Builder(loader, path).documents())
    except yaml.MarkedYAMLError as error:
        raise _syntax(error, text, path) from error
    except yaml.reader.ReaderError as error:
        character = error.character
        code = character if isinstance(character, int) else ord(str(character)[:1] or "\0")
        line = text.count("\n", 0, error.position) + 1
        raise PolicyError(
            f"is not YAML: a control character (0x{code:02x})", place=f"{path}:{line}"
        ) from error
    except UnicodeError as error:
        raise PolicyError("is not YAML: a character that is no text", place=path) from error
    finally:
        if loader is not None:
            loader.dispose()


def _syntax(error: yaml.MarkedYAMLError, text: str, path: str) -> PolicyError:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return PolicyError(f"is not YAML: {error.problem}", place=path)
    place = f"{path}:{mark.line + 1}"
    lines = text.splitlines()
    written = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in written[: mark.column + 1]:
        return PolicyError(
            "is not YAML: a tab, where only spaces may indent",
            place=place,
            fix="replace it by spaces",
        )
    context = ""
    if error.context and error.context_mark is not None and error.context_mark.line != mark.line:
        context = f" ({error.context} that begins in line {error.context_mark.line + 1})"
    return PolicyError(f"is not YAML: {error.problem}{context}", place=place)


@dataclass(slots=True)
class _Anchored:
    """What an alias stands for; ``size`` is None while the value is still being read."""

    value: Any = None
    size: int | None = None


class _Builder:
    """Turns parser events into items; one method a kind of event."""

    def __init__(self, loader: Any, path: str) -> None:
        self.loader = loader
        self.path = path
        self.anchors: dict[str, _Anchored] = {}
        self.values = 0

    def documents(self) -> Iterator[Item]:
        self.loader.get_event()  # the stream begins
        while not isinstance(self.loader.get_event(), yaml.StreamEndEvent):
            self.anchors.clear()
            event = self.loader.get_event()
            yield Item(self.value(event, 0), event.start_mark.line + 1)
            self.loader.get_event()  # the document ends

    def value(self, event: Any, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        self.count(1, event)
        before = self.values
        anchored: _Anchored | None = None
        if event.anchor is not None:
            anchored = self.anchors[event.anchor] = _Anchored()
        if isinstance(event, yaml.ScalarEvent):
            found: Any = self.scalar(event)
        elif depth >= LIMIT_DEPTH:
            raise self.error(f"nested deeper than {LIMIT_DEPTH} levels", event)
        elif isinstance(event, yaml.SequenceStartEvent):
            found = self.sequence(event, depth + 1)
        else:
            found = self.mapping(event, depth + 1)
        if anchored is not None:
            anchored.value, anchored.size = found, self.values - before + 1
        return found

    def alias(self, event: Any) -> Any:
        anchored = self.anchors.get(event.anchor)
        if anchored is None:
            raise self.error(f"the alias *{event.anchor} has no anchor before it", event)
        if anchored.size is None:
            raise self.error(f"the alias *{event.anchor} stands inside its own value", event)
        self.count(anchored.size, event)
        return anchored.value

    def count(self, more: int, event: Any) -> None:
        self.values += more
        if self.values > LIMIT_VALUES:
            raise self.error(f"the file stands for more than {LIMIT_VALUES} values", event)

    def sequence(self, event: Any, depth: int) -> list[Item]:
        self.check_tag(event, "seq")
        found: list[Item] = []
        while not isinstance(event := self.loader.get_event(), yaml.SequenceEndEvent):
            line = event.start_mark.line + 1
            found.append(Item(self.value(event, depth), line))
        return found

    def mapping(self, event: Any, depth: int) -> dict[str, Item]:
        self.check_tag(event, "map")
        found: dict[str, Item] = {}
        merged: list[tuple[Any, Any]] = []
        while not isinstance(event := self.loader.get_event(), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]:
                merged.append((self.value(self.loader.get_event(), depth), event))
                continue
            key = self.key(event)
            if key in found:
                raise self.error(f"the key {shown(key)} is also in line {found[key].line}", event)
            found[key] = Item(self.value(self.loader.get_event(), depth), line)
        for value, where in merged:
            self.merge(value, where, found)
        return found

    def key(self, event: Any) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            raise self.error("a key is not a string", event)
        return event.value

    def merge(self, value: Any, event: Any, found: dict[str, Item]) -> None:
        """Fill in what ``<<`` names; keys written out, and earlier merges, win."""
        for part in [item.value for item in value] if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                raise self.error("'<<' wants a mapping or a list of mappings", event)
            for key, item in part.items():
                found.setdefault(key, item)

    def scalar(self, event: Any) -> Any:
        tag = event.tag
        if tag is None or tag == "!":
            tag = self.loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag in {_TAG + "str", _TAG + "timestamp", _TAG + "value", _TAG + "binary"}:
            return event.value
        node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
        try:
            if tag == _TAG + "bool":
                return _SCALARS.construct_yaml_bool(node)
            if tag == _TAG + "null":
                return None
            if tag == _TAG + "int":
                return _SCALARS.construct_yaml_int(node)
            if tag == _TAG + "float":
                return _SCALARS.construct_yaml_float(node)
        except (ValueError, KeyError, OverflowError, IndexError, ConstructorError) as error:
            wanted = tag.removeprefix(_TAG)
            raise self.error(f"{shown(event.value)} is not a YAML {wanted}", event) from error
        raise self.error(f"the tag {shown(tag.removeprefix(_TAG))} is not supported", event)

    def check_tag(self, event: Any, wanted: str) -> None:
        if event.tag not in {None, "!", _TAG + wanted}:
            name = event.tag.removeprefix(_TAG)
            raise self.error(f"the tag {shown(name)} is not supported on a {wanted}", event)

    def error(self, why: str, event: Any) -> PolicyError:
        return PolicyError(why, place=f"{self.path}:{event.start_mark.line + 1}")
