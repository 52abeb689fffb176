"""Parse YAML into plain Python data with line numbers, within limits.

It is built from the parser's events, because PyYAML's composer recurses in C and crashes on a few thousand open
brackets. Duplicate keys are refused (PyYAML silently keeps the last), unless the rules allow them. Nesting and
the expansion of aliases are limited: ten lines of aliases can expand to a billion values.

Values are YAML 1.1's (``no`` is false); a date stays the text it was written as.

Sources:
    YAML 1.1, https://yaml.org/type/ (merge keys, implicit types); YAML 1.2, section 10.3.2 (core schema);
    go-yaml v2, resolve.go (resolve, yamlStyleFloat): what Kubernetes reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import yaml
from yaml.constructor import ConstructorError, SafeConstructor

from gpustate.documents import Json, JsonView
from gpustate.errors import GpustateError
from gpustate.formats.words import at, quote, quote_name

T = TypeVar("T")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
FLOAT = _TAG + "float"
_TEXT_TAGS = frozenset(_TAG + name for name in ("str", "timestamp", "value"))
_SCALARS = SafeConstructor()


class Written(float):
    """A decimal number that is shown as written: the version 580.10 is not 580.1.

    For :attr:`Rules.tags`, as the conversion of :data:`FLOAT`.
    """

    text: str

    def __new__(cls, text: str) -> Written:
        node = yaml.ScalarNode(FLOAT, text)
        number = super().__new__(cls, float(_SCALARS.construct_yaml_float(node)))
        number.text = text
        return number

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__


class Dumper(yaml.SafeDumper):
    """Writes no anchors: equal values are written twice."""

    def ignore_aliases(self, data: object) -> bool:
        """Of every value."""
        return True


#: Texts that readers of YAML 1.1, of YAML 1.2 or in Go take for a boolean, a number or a time, and PyYAML does not.
_NO_TEXT = re.compile(
    r"""(?:[yYnN]
    |[-+]?_*(?:
        0_*[xX][0-9a-fA-F_]+ | 0_*[bB][01_]+ | 0_*[oO][0-7_]+
        |(?:\._*[0-9][0-9_]* | [0-9][0-9_]*(?:\.[0-9_]*)?) (?:[eE]_*[-+]?[0-9_]+)?
    )
    |[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*)\Z""",
    re.VERBOSE,
)
# The Dumper quotes texts for which a resolver finds another type. This one is the last: numbers have found theirs.
Dumper.add_implicit_resolver(FLOAT, _NO_TEXT, [*"yYnN-+.0123456789"])


class _ObjectDumper(Dumper):
    """Writes multi-line text as block scalars."""


def _text_node(dumper: _ObjectDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar(_TAG + "str", text, style=style)


_ObjectDumper.add_representer(str, _text_node)


def dump_objects(objects: Iterable[JsonView]) -> str:
    """Write objects as the documents of a YAML file."""
    text: str = yaml.dump_all(
        objects, Dumper=_ObjectDumper, sort_keys=False, allow_unicode=True, width=80
    )
    return text


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules for a kind of file.

    Args:
        error: raised for every problem of the text.
        depth: levels of nesting.
        values: in one file, each alias counted as often as it is used.
        tags: conversions of scalars by tag, in addition to YAML's own.
        text_keys: a key is the text as written; otherwise it has a type, like values.
        many: a file may contain several documents.
        last_key_counts: of duplicate keys the last one counts, as in Go's YAML libraries; both are in
            :attr:`Lines.repeated`.
        quoted_keys: with ``text_keys``, a key that Go's YAML reads as another text (``1.10`` as ``1.1``,
            ``yes`` as ``true``) must be quoted.
    """

    error: type[GpustateError]
    depth: int
    values: int
    tags: Mapping[str, Callable[[str], Any]] = field(default_factory=Json)
    text_keys: bool = False
    many: bool = False
    last_key_counts: bool = False
    quoted_keys: bool = False


@dataclass(slots=True)
class Lines:
    """Lines, from 1, by the identity of the mapping or list they are in: of each key, of each item.

    ``repeated``: duplicate keys, with the line of each but the last, and its value. Keeping the values prevents
    reuse of their identities.
    """

    of_keys: dict[int, dict[Any, int]] = field(default_factory=dict[int, dict[Any, int]])
    of_items: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    repeated: dict[int, list[tuple[Any, int, Any]]] = field(
        default_factory=dict[int, list[tuple[Any, int, Any]]]
    )


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file; ``line`` is its first line."""

    data: Any
    line: int
    lines: Lines

    def wrapped(self, wrap: Callable[[Any, int], T]) -> T:
        """Wrap every value with its line, recursively.

        The value of an alias is wrapped once, however often it is used.
        """
        wrapped_by_id: dict[int, Any] = {}

        def below(data: Any) -> Any:
            if not isinstance(data, dict | list):
                return data
            if id(data) not in wrapped_by_id:
                if isinstance(data, dict):
                    of_keys = self.lines.of_keys[id(data)]
                    rows = {key: wrap(below(item), of_keys[key]) for key, item in data.items()}
                    wrapped_by_id[id(data)] = rows
                else:
                    lines = self.lines.of_items[id(data)]
                    pairs = zip(data, lines, strict=True)
                    wrapped_by_id[id(data)] = [wrap(below(item), line) for item, line in pairs]
            return wrapped_by_id[id(data)]

        return wrap(below(self.data), self.line)


def documents(text: str, path: str, rules: Rules) -> list[Document]:
    """Return the documents of a file.

    Raises:
        GpustateError: of the rules' class, with the line of the problem.
    """
    loader = None
    try:
        loader = _Loader(text)
        return list(_Builder(loader, path, rules).documents())
    except yaml.MarkedYAMLError as error:
        raise _syntax(error, text, path, rules) from error
    except yaml.reader.ReaderError as error:
        character = error.character
        code = character if isinstance(character, int) else ord(str(character)[:1] or "\0")
        line = text.count("\n", 0, error.position) + 1
        raise rules.error(
            f"is not YAML: a control character (0x{code:02x})", place=at(path, line)
        ) from error
    except UnicodeError as error:
        raise rules.error("is not YAML: invalid characters", place=path) from error
    finally:
        if loader is not None:
            loader.dispose()


#: libyaml's words for more than 1000 levels, which it finds ahead of the first event.
_TOO_DEEP = "exceeded maximum nesting depth"


def _syntax(error: yaml.MarkedYAMLError, text: str, path: str, rules: Rules) -> GpustateError:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return rules.error(f"is not YAML: {error.problem}", place=path)
    place = at(path, mark.line + 1)
    if error.problem == _TOO_DEEP:
        return rules.error(f"nested deeper than {rules.depth} levels", place=place)
    lines = text.splitlines()
    written = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in written[: mark.column + 1]:
        return rules.error(
            "is not YAML: a tab used for indentation", place=place, fix="replace it with spaces"
        )
    context = ""
    if error.context and error.context_mark is not None and error.context_mark.line != mark.line:
        context = f" ({error.context} that begins in line {error.context_mark.line + 1})"
    return rules.error(f"is not YAML: {error.problem}{context}", place=place)


@dataclass(slots=True)
class _Anchored:
    """The value of an alias; ``size`` is None while it is still being read."""

    value: Any = None
    size: int | None = None
    height: int = 0


class _Builder:
    """Turns parser events into data, with a method per kind of event."""

    def __init__(self, loader: Any, path: str, rules: Rules) -> None:
        self.loader = loader
        self.path = path
        self.rules = rules
        self.lines = Lines()
        self.anchors: dict[str, _Anchored] = {}
        self.values = 0
        self.deepest = 0  # since the last reset

    def documents(self) -> Iterator[Document]:
        self.loader.get_event()  # the stream begins
        number = 0
        while not isinstance(start := self.loader.get_event(), yaml.StreamEndEvent):
            number += 1
            if number > 1 and not self.rules.many:
                raise self.error("a second document begins, wanted one", start)
            self.anchors.clear()
            event = self.loader.get_event()
            yield Document(self.value(event, 0), event.start_mark.line + 1, self.lines)
            self.loader.get_event()  # the document ends

    def value(self, event: Any, depth: int) -> Any:
        """Return the value that begins with ``event``."""
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event, depth)
        self.values += 1
        if self.values > self.rules.values:
            raise self.error(f"the file contains more than {self.rules.values} values", event)
        if event.anchor is not None:
            return self.anchored(event, depth)
        return self.unanchored(event, depth)

    def unanchored(self, event: Any, depth: int) -> Any:
        if isinstance(event, yaml.ScalarEvent):
            return self.scalar(event)
        self.reach(depth + 1, event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.sequence(event, depth + 1)
        return self.mapping(event, depth + 1)

    def anchored(self, event: Any, depth: int) -> Any:
        # An anchor's name may be reused: an alias refers to the last one before it.
        anchored = self.anchors[event.anchor] = _Anchored()
        values, above, self.deepest = self.values, self.deepest, depth
        anchored.value = self.unanchored(event, depth)
        anchored.size = self.values - values + 1
        anchored.height = self.deepest - depth
        self.deepest = max(above, self.deepest)
        return anchored.value

    def alias(self, event: Any, depth: int) -> Any:
        anchored = self.anchors.get(event.anchor)
        if anchored is None:
            raise self.error(
                f"the alias *{quote_name(event.anchor)} has no anchor before it", event
            )
        if anchored.size is None:
            raise self.error(
                f"the alias *{quote_name(event.anchor)} is inside its own value", event
            )
        self.values += anchored.size
        if self.values > self.rules.values:
            raise self.error(f"the aliases expand to more than {self.rules.values} values", event)
        self.reach(depth + anchored.height, event)
        return anchored.value

    def reach(self, depth: int, event: Any) -> None:
        """Enter a level, if that is not too deep."""
        if depth > self.rules.depth:
            raise self.error(f"nested deeper than {self.rules.depth} levels", event)
        self.deepest = max(self.deepest, depth)

    def sequence(self, event: Any, depth: int) -> list[Any]:
        self.check_tag(event, "seq")
        items: list[Any] = []
        lines: list[int] = []
        while not isinstance(event := self.loader.get_event(), yaml.SequenceEndEvent):
            lines.append(event.start_mark.line + 1)
            items.append(self.value(event, depth))
        self.lines.of_items[id(items)] = lines
        return items

    def mapping(self, event: Any, depth: int) -> dict[Any, Any]:
        self.check_tag(event, "map")
        pairs: dict[Any, Any] = {}
        lines: dict[Any, int] = {}
        merged: list[tuple[Any, Any]] = []
        while not isinstance(event := self.loader.get_event(), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]:
                merged.append((self.value(self.loader.get_event(), depth), event))
                continue
            key = self.key(event, depth)
            if key in pairs:
                if not self.rules.last_key_counts:
                    raise self.error(
                        f"the key {quote(key)} is a duplicate of line {lines[key]}", event
                    )
                self.lines.repeated.setdefault(id(pairs), []).append((key, lines[key], pairs[key]))
            lines[key] = line
            pairs[key] = self.value(self.loader.get_event(), depth)
        for value, where in merged:
            self.merge(value, where, pairs, lines)
        self.lines.of_keys[id(pairs)] = lines
        return pairs

    def key(self, event: Any, depth: int) -> Any:
        if self.rules.text_keys:
            if isinstance(event, yaml.AliasEvent):
                text = self.alias(event, depth)
                if isinstance(text, str):
                    return text
            if not isinstance(event, yaml.ScalarEvent):
                raise self.error("a key is not a string", event)
            if self.rules.quoted_keys and self.is_renamed(event):
                raise self.error(
                    f"the key {quote(event.value)} is not text in YAML; quote it", event
                )
            return event.value
        key = self.value(event, depth)
        try:
            hash(key)
        except TypeError:
            raise self.error("a key is a list or a mapping, wanted a string", event) from None
        return key

    def is_renamed(self, event: Any) -> bool:
        """Whether Go's YAML libraries read a key as another text, or not as text."""
        if event.implicit[0] and event.value in ("y", "Y", "n", "N"):
            return True
        value = self.scalar(event)
        if type(value) is int:
            return str(value) != event.value or not -(2**63) <= value < 2**63
        return not isinstance(value, str) and event.value not in ("true", "false")

    def merge(self, value: Any, event: Any, entries: dict[Any, Any], lines: dict[Any, int]) -> None:
        """Apply ``<<``; explicit keys and earlier merges take precedence."""
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                raise self.error("'<<' must be a mapping or a list of mappings", event)
            key_lines = self.lines.of_keys.get(id(part), {})
            for key, item in part.items():
                if key not in entries:
                    entries[key] = item
                    lines[key] = key_lines.get(key) or event.start_mark.line + 1

    def scalar(self, event: Any) -> Any:
        tag = event.tag
        if tag is None or tag == "!":
            tag = self.loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag in _TEXT_TAGS:
            return event.value
        node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
        try:
            if tag in self.rules.tags:
                return self.rules.tags[tag](event.value)
            if tag == _TAG + "bool":
                return _SCALARS.construct_yaml_bool(node)
            if tag == _TAG + "null":
                return None
            if tag == _TAG + "int":
                return _SCALARS.construct_yaml_int(node)
            if tag == FLOAT:
                return _SCALARS.construct_yaml_float(node)
        except (ValueError, KeyError, OverflowError, IndexError, ConstructorError) as error:
            kind = tag.removeprefix(_TAG)
            # The value is not quoted: the file may contain secrets.
            raise self.error(f"this is not a YAML {kind}", event) from error
        raise self.error(f"the tag {quote(tag.removeprefix(_TAG))} is not supported", event)

    def check_tag(self, event: Any, kind: str) -> None:
        if event.tag not in {None, "!", _TAG + kind}:
            name = event.tag.removeprefix(_TAG)
            raise self.error(f"the tag {quote(name)} is not supported on a {kind}", event)

    def error(self, why: str, event: Any) -> GpustateError:
        return self.rules.error(why, place=at(self.path, event.start_mark.line + 1))
