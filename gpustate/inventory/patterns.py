"""Limit patterns in the syntax of Ansible's ``--limit``.

``gpu:!gpu-07``, ``rack1:&h100``, ``gpu-0*``, ``~gpu-\\d+``, ``gpu[0]``, ``gpu[0:3]`` (inclusive), ``all``,
``@file`` (a pattern per line), and names as shown in plans: ``gpu[1,3]``, ``rack[1-4]-gpu[01-08]``. Commas
separate like colons. In any order, plain patterns are applied first, then ``&``, then ``!``. Nodes are
returned in the order of the inventory.

Unlike in Ansible, an unknown name and an empty result are errors: a typo must not end in "nothing to do".

Sources:
    Ansible, "Patterns: targeting hosts and groups".
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import re
import warnings
from collections.abc import Mapping, Sequence

from gpustate.core.inventory import Inventory
from gpustate.errors import InventoryError
from gpustate.formats.words import quote, quote_name
from gpustate.inventory.files import read_text
from gpustate.inventory.ranges import LIMIT_NODES, is_ipv6
from gpustate.plan.ranges import expand

_SUBSCRIPT = re.compile(r"(.+)\[(?:(-?[0-9]{1,9})|([0-9]{1,9}):([0-9]{0,9}))\]")
#: Parts separated by ``:``, except inside brackets.
_PIECE = re.compile(r"(?:[^\s:\[\]]|\[[^\]]*\])+")
#: Parts separated by commas; an unclosed bracket is a character.
_LISTED = re.compile(r"(?:\[[^\[\]]*\]|[^,])+")
#: A list of numbers, as :mod:`gpustate.plan.ranges` writes it, and one that is a class of single digits as well.
_NUMBERS = re.compile(r"\[((?:[0-9]{1,9}(?:-[0-9]{1,9})?)(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*)\]")
_CLASS = re.compile(r"[0-9](-[0-9])?")
_WILD = frozenset(".?*[")


def select(
    inventory: Inventory, pattern: str, option: str = "--limit", among: str = ""
) -> Inventory:
    """Return the part of ``inventory`` that ``pattern`` selects, in the inventory's order.

    Args:
        option: where the pattern was given; errors begin with it.
        among: whose nodes and groups these are, said of an unknown name.

    Raises:
        InventoryError: an invalid pattern, an unknown name, or an empty result.
    """
    names = [node.name for node in inventory.nodes]
    selected = match(pattern, names, _groups_of(inventory), inventory.source, option, among)
    return dataclasses.replace(
        inventory,
        nodes=tuple(node for node in inventory.nodes if node.name in selected),
        groups=restrict(inventory.groups, selected),
    )


def restrict(
    groups: Mapping[str, Sequence[str]], names: frozenset[str]
) -> dict[str, tuple[str, ...]]:
    """Return ``groups`` with only the members that are in ``names``."""
    return {name: tuple(m for m in members if m in names) for name, members in groups.items()}


def match(
    pattern: str,
    names: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    source: str,
    option: str = "--limit",
    among: str = "",
) -> frozenset[str]:
    """Return the names that ``pattern`` selects of ``names``; see :func:`select`."""
    try:
        return _match(pattern, names, groups, source, among)
    except InventoryError as error:
        raise InventoryError(error.message, place=error.place or option, fix=error.fix) from error


def _match(
    pattern: str, names: Sequence[str], groups: Mapping[str, Sequence[str]], source: str, among: str
) -> frozenset[str]:
    pieces = _pieces(pattern)
    if not pieces:
        raise InventoryError(f"{quote(pattern)} is empty", fix="name a node, a group or 'all'")
    matcher = _Matcher(names, groups, among)
    plain = [piece for piece in pieces if piece[0] not in "&!"]
    selected: set[str] = set()
    for piece in plain or ["all"]:
        selected.update(matcher.members(piece, must_match=True))
    for piece in pieces:
        if piece[0] == "&":
            selected &= set(matcher.members(piece[1:], must_match=True))
    for piece in pieces:
        if piece[0] == "!":
            selected -= set(matcher.members(piece[1:], must_match=not plain))
    if not selected:
        raise InventoryError(
            f"{quote(pattern)} matches none of the {len(names)} nodes in {source}",
            fix="name other nodes or groups",
        )
    return frozenset(selected)


def split(pattern: str) -> list[str]:
    """Split ``pattern`` at its commas, or without any at its colons."""
    pieces = pattern.split(",") if "~" in pattern else _LISTED.findall(pattern)
    if len(pieces) > 1 or pattern.endswith(","):
        return [piece.strip() for piece in pieces if piece.strip()]
    text = pattern.strip()
    if ":" not in text or is_ipv6(text.lstrip("!&")):
        return [text] if text else []
    return _PIECE.findall(text)


def _pieces(pattern: str) -> list[str]:
    """Return the single patterns, with ``@file`` replaced by its content."""
    patterns: list[str] = []
    if pattern.count("[") != pattern.count("]") and "~" not in pattern:
        raise InventoryError(
            f"{quote(pattern)} has an unmatched bracket",
            fix="write gpu[0] for the first of a group, gpu[0:3] for the first four",
        )
    for piece in split(pattern):
        if not piece.startswith("@"):
            patterns.append(piece)
            continue
        if len(piece) == 1:
            raise InventoryError("'@' is not followed by a file name")
        for line in read_text(piece[1:]).splitlines():
            text = line.strip()
            if text and not text.startswith("#"):
                patterns.append(text)
    return patterns


def _groups_of(inventory: Inventory) -> Mapping[str, Sequence[str]]:
    """Return the groups; an inventory built in Python has them only in its nodes."""
    if inventory.groups:
        return inventory.groups
    groups: dict[str, list[str]] = {}
    for node in inventory.nodes:
        for group in node.groups:
            groups.setdefault(group, []).append(node.name)
    return groups


class _Matcher:
    """Finds the nodes of one pattern without ``&`` and ``!``."""

    def __init__(
        self, names: Sequence[str], groups: Mapping[str, Sequence[str]], among: str
    ) -> None:
        self.names = names
        self.among = among
        self.known = frozenset(names)
        self.groups: dict[str, Sequence[str]] = {"all": names, **groups}

    def members(self, piece: str, *, must_match: bool) -> Sequence[str]:
        """Return the nodes, as a group has them in its order, without repetition.

        Args:
            piece: the pattern.
            must_match: whether a wildcard must match something, as a plain name always must.
        """
        if piece in self.known:
            return [piece]
        if not piece:
            raise InventoryError("a '!' or '&' is not followed by a pattern")
        if piece[0] != "~" and any(_is_list(numbers[1]) for numbers in _NUMBERS.finditer(piece)):
            return self._listed(piece, must_match=must_match)
        expression, first, last = _subscript(piece)
        nodes, matched = self._enumerate(expression)
        wild = expression[0] == "~" or any(c in "?*[" for c in expression)
        if not matched and (must_match or not wild):
            raise self._unknown(expression, wild)
        if first is None:
            return nodes
        # ``group[-1]`` ends at the last node.
        part = nodes[first:] if last is None else nodes[first : (last + 1) or None]
        if not part and nodes:
            raise InventoryError(
                f"{quote(piece)} is beyond the {len(nodes)} nodes of {quote(expression)}"
            )
        return part

    def _listed(self, piece: str, *, must_match: bool) -> Sequence[str]:
        """Return the nodes of abbreviated names; an unknown name is an error."""
        wild = all(_CLASS.fullmatch(numbers[1]) for numbers in _NUMBERS.finditer(piece))
        nodes: dict[str, None] = {}
        for name in _expand(piece):
            if wild and name not in self.known and name not in self.groups:
                test = _compiled(name)
                if not any(test.match(candidate) for candidate in (*self.names, *self.groups)):
                    continue
            nodes.update(dict.fromkeys(self.members(name, must_match=must_match)))
        if not nodes and must_match:
            raise self._unknown(piece, wild=True)
        return list(nodes)

    def _enumerate(self, expression: str) -> tuple[list[str], bool]:
        """Return the nodes, and whether any node or group was matched (a group may be empty)."""
        if expression in self.groups:
            return list(self.groups[expression]), True
        test = _compiled(expression)
        nodes: dict[str, None] = {}
        groups = [name for name in self.groups if test.match(name)]
        for name in groups:
            nodes.update(dict.fromkeys(self.groups[name]))
        if not groups or expression[0] == "~" or _WILD & set(expression):
            nodes.update(dict.fromkeys(name for name in self.names if test.match(name)))
        return list(nodes), bool(groups or nodes)

    def _unknown(self, expression: str, wild: bool) -> InventoryError:
        candidates = [*self._known_groups(), *self.names]
        near = difflib.get_close_matches(expression, candidates, n=3, cutoff=0.6)
        problem = "matches no node and no group" if wild else "is neither a node nor a group"
        listed = (
            f"did you mean {', '.join(map(quote_name, near))}?"
            if near
            else f"groups: {self._some_groups()}"
        )
        return InventoryError(f"{quote(expression)} {problem}{self.among}", fix=listed)

    def _known_groups(self) -> list[str]:
        """Defined groups, and ``ungrouped`` if it has a node."""
        return [name for name, nodes in self.groups.items() if nodes or name != "ungrouped"]

    def _some_groups(self) -> str:
        names = sorted(self._known_groups())
        return ", ".join(map(quote_name, names[:8])) + (", ..." if len(names) > 8 else "")


def _is_list(inside: str) -> bool:
    """Whether it is ``1,3`` or ``1-3``, and not an index of a group."""
    return "," in inside or "-" in inside


def _expand(piece: str) -> list[str]:
    """The names of ``gpu[1,3]``, limited in number because a typo is likelier than that many nodes."""
    total = 1
    for numbers in _NUMBERS.finditer(piece):
        for part in numbers[1].split(","):
            first, _, last = part.partition("-")
            if last and int(last) < int(first):
                raise InventoryError(
                    f"{quote(piece)}: {first} is greater than {last}",
                    fix="put the smaller number first",
                )
        total *= sum(_size(part) for part in numbers[1].split(","))
    if total > LIMIT_NODES:
        raise InventoryError(
            f"{quote(piece)} expands to {total} names, more than the limit of {LIMIT_NODES}",
            fix="check the bounds of the range",
        )
    return expand(piece)


def _size(part: str) -> int:
    first, dash, last = part.partition("-")
    return int(last) - int(first) + 1 if dash else 1


def _subscript(piece: str) -> tuple[str, int | None, int | None]:
    """Split ``group[2]`` or ``group[0:3]``; a regular expression keeps its brackets.

    Returns:
        The pattern, the first index and the last one; a last index of None means "to the end".
    """
    subscript = None if piece[0] == "~" else _SUBSCRIPT.fullmatch(piece)
    if subscript is None:
        return piece, None, None
    expression, single, first, last = subscript.groups()
    if single is not None:
        return expression, int(single), int(single)
    return expression, int(first), int(last) if last else None


def _compiled(expression: str) -> re.Pattern[str]:
    regex = expression[1:] if expression[0] == "~" else fnmatch.translate(expression)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(regex)
    except (re.error, RecursionError, OverflowError) as error:
        raise InventoryError(
            f"{quote(expression)} is not a valid pattern: {quote_name(error)}"
        ) from error
