"""YAML and JSON text to plain Python data that still knows its lines.

The document is built from the parser's events, not by PyYAML's composer: that one recurses in C and
dies of a few thousand open brackets. On the way, a key that stands twice in one mapping is refused
(PyYAML keeps the last and says nothing), nesting is bounded, and so is what aliases expand to (ten
lines of aliases can stand for a billion values).

Values are Ansible's: YAML 1.1 (``no`` is false), ``!vault`` is kept as :class:`EncryptedText`,
``!unsafe`` as :class:`LiteralText`. A date stays the text it was written as.

Sources:
    YAML 1.1, https://yaml.org/type/ (merge keys, implicit types).
    Ansible, "Advanced playbook syntax: unsafe or raw strings"; "Protecting sensitive data".
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.constructor import ConstructorError, SafeConstructor

from gpustate.errors import InventoryError
from gpustate.inventory.files import at, named, shown

LIMIT_DEPTH = 100
#: Values in one document, each alias counted as often as it is used.
LIMIT_VALUES = 2_000_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = {_TAG + "str", _TAG + "timestamp", _TAG + "value"}


class EncryptedText(str):
    """The text of a value encrypted with Ansible Vault; nothing here can read it."""

    __slots__ = ()


class LiteralText(str):
    """A text marked ``!unsafe``: braces in it are not a template."""

    __slots__ = ()


@dataclass(slots=True)
class Document:
    """One parsed file and the lines its mapping keys stand on."""

    path: str
    data: Any = None
    lines: dict[int, dict[Any, int]] = field(default_factory=dict[int, dict[Any, int]])

    def place(self, mapping: Any, key: Any) -> str:
        """Return where ``key`` of ``mapping`` stands."""
        return at(self.path, self.lines.get(id(mapping), {}).get(key))


def parse(text: str, path: str) -> Document:
    """Read ``text`` as JSON when ``path`` says so, as YAML otherwise.

    Raises:
        InventoryError: with the line at which the text stops making sense.
    """
    if path.endswith(".json"):
        return Document(path, parse_json(text, path))
    document = Document(path)
    loader = None
    try:
        loader = _Loader(text)
        document.data = _Builder(loader, document).build()
    except yaml.MarkedYAMLError as error:
        raise _syntax(error, text, path) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InventoryError(
            f"is not YAML: a control character (0x{_code(error.character):02x})",
            place=at(path, line),
        ) from error
    finally:
        if loader is not None:
            loader.dispose()
    return document


def parse_json(text: str, place: str) -> Any:
    """Read JSON; Ansible's markers for unsafe and encrypted text are understood."""
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _json_object(pairs, place))
    except json.JSONDecodeError as error:
        raise InventoryError(
            f"is not JSON: {error.msg} (column {error.colno})", place=at(place, error.lineno)
        ) from error
    except (ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise InventoryError(f"is not JSON that can be read: {why}", place=place) from error


def _json_object(pairs: list[tuple[str, Any]], place: str) -> Any:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InventoryError(f"{shown(twice)} stands twice in one object", place=place)
    if len(found) == 1:
        key, value = pairs[0]
        if key == "__ansible_unsafe" and isinstance(value, str):
            return LiteralText(value)
        if key == "__ansible_vault" and isinstance(value, str):
            return EncryptedText(value)
    return found


def _code(character: object) -> int:
    return character if isinstance(character, int) else ord(str(character)[:1] or "\0")


def _syntax(error: yaml.MarkedYAMLError, text: str, path: str) -> InventoryError:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return InventoryError(f"is not YAML: {error.problem}", place=path)
    line = mark.line + 1
    lines = text.splitlines()
    written = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in written[: mark.column + 1]:
        return InventoryError(
            "is not YAML: a tab, where only spaces may indent",
            place=at(path, line),
            fix="replace it by spaces",
        )
    context = ""
    if error.context and error.context_mark is not None and error.context_mark.line != mark.line:
        context = f" ({error.context} that begins in line {error.context_mark.line + 1})"
    return InventoryError(f"is not YAML: {error.problem}{context}", place=at(path, line))


@dataclass(slots=True)
class _Anchored:
    """What an alias stands for; ``size`` is None while the value is still being read."""

    value: Any = None
    size: int | None = None


class _Builder:
    """Turns the events of one document into data; one method a kind of event."""

    def __init__(self, loader: Any, document: Document) -> None:
        self.loader = loader
        self.document = document
        self.anchors: dict[str, _Anchored] = {}
        self.values = 0
        self.scalars = SafeConstructor()

    def build(self) -> Any:
        """Return the only document of the stream; None when there is none."""
        self.loader.get_event()  # the stream begins
        event = self.loader.get_event()
        if isinstance(event, yaml.StreamEndEvent):
            return None
        data = self.value(self.loader.get_event(), 0)
        self.loader.get_event()  # the document ends
        event = self.loader.get_event()
        if not isinstance(event, yaml.StreamEndEvent):
            raise self.error("a second document begins, wanted one", event)
        return data

    def value(self, event: Any, depth: int) -> Any:
        """Return the value that begins with ``event``."""
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        self.values += 1
        before = self.values
        anchored: _Anchored | None = None
        if event.anchor is not None:
            # A name may be given again further down: aliases mean the last one before them.
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
            raise self.error(f"the alias *{named(event.anchor)} has no anchor before it", event)
        if anchored.size is None:
            raise self.error(f"the alias *{named(event.anchor)} stands inside its own value", event)
        self.values += anchored.size
        if self.values > LIMIT_VALUES:
            raise self.error(f"the aliases stand for more than {LIMIT_VALUES} values", event)
        return anchored.value

    def sequence(self, event: Any, depth: int) -> list[Any]:
        self.check_tag(event, "seq")
        found: list[Any] = []
        while not isinstance(event := self.loader.get_event(), yaml.SequenceEndEvent):
            found.append(self.value(event, depth))
        return found

    def mapping(self, event: Any, depth: int) -> dict[Any, Any]:
        self.check_tag(event, "map")
        found: dict[Any, Any] = {}
        lines: dict[Any, int] = {}
        merged: list[Any] = []
        while not isinstance(event := self.loader.get_event(), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]:
                merged.append((self.value(self.loader.get_event(), depth), event))
                continue
            key = self.key(event, depth)
            if key in found:
                raise self.error(f"the key {shown(key)} is also in line {lines[key]}", event)
            lines[key] = line
            found[key] = self.value(self.loader.get_event(), depth)
        for value, where in merged:
            self.merge(value, where, found, lines)
        self.document.lines[id(found)] = lines
        return found

    def key(self, event: Any, depth: int) -> Any:
        key = self.value(event, depth)
        try:
            hash(key)
        except TypeError:
            raise self.error("a key is a list or a mapping, wanted a string", event) from None
        return key

    def merge(self, value: Any, event: Any, found: dict[Any, Any], lines: dict[Any, int]) -> None:
        """Fill in what ``<<`` names; keys written out, and earlier merges, win."""
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                raise self.error("'<<' wants a mapping or a list of mappings", event)
            known = self.document.lines.get(id(part), {})
            for key, item in part.items():
                if key not in found:
                    found[key] = item
                    lines[key] = known.get(key) or event.start_mark.line + 1

    def scalar(self, event: Any) -> Any:
        tag = event.tag
        if tag is None or tag == "!":
            tag = self.loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag in _TEXT_TAGS:
            return event.value
        if tag in {"!vault", "!vault-encrypted"}:
            return EncryptedText(event.value)
        if tag == "!unsafe":
            return LiteralText(event.value)
        node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
        try:
            if tag == _TAG + "bool":
                return self.scalars.construct_yaml_bool(node)
            if tag == _TAG + "null":
                return None
            if tag == _TAG + "int":
                return self.scalars.construct_yaml_int(node)
            if tag == _TAG + "float":
                return self.scalars.construct_yaml_float(node)
        except (ValueError, KeyError, OverflowError, IndexError, ConstructorError) as error:
            wanted = tag.removeprefix(_TAG)
            raise self.error(f"{shown(event.value)} is not a YAML {wanted}", event) from error
        raise self.error(f"the tag {shown(tag.removeprefix(_TAG))} is not supported", event)

    def check_tag(self, event: Any, wanted: str) -> None:
        if event.tag not in {None, "!", _TAG + wanted}:
            name = event.tag.removeprefix(_TAG)
            raise self.error(f"the tag {shown(name)} is not supported on a {wanted}", event)

    def error(self, why: str, event: Any) -> InventoryError:
        return InventoryError(why, place=at(self.document.path, event.start_mark.line + 1))
