"""Node names in inventories: ranges, ports, IPv6 addresses.

``gpu[01:16]`` is sixteen names, ``rack[a:c]-[1:2]`` six, ``gpu[0:8:2]`` every second one. A port
follows a colon (``gpu1:2222``, ``[2001:db8::1]:2222``). Ansible accepts nearly any text as a node name. Here
an invalid name is refused, because it is nearly always a misplaced variable or comment, and because names
become file names and arguments of programs.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
import string
from collections.abc import Sequence

from gpustate.errors import InventoryError
from gpustate.formats.words import quote

#: The most nodes of one pattern; beyond that, a typo is likelier than such a fleet.
LIMIT_NODES = 100_000

_NAME = re.compile(r"[\w.%:-]+")
_BRACKETS = re.compile(r"\[[^\]]*\]")
_NUMBER = re.compile(r"[0-9]{1,15}")


def expand(pattern: str, place: str) -> tuple[list[str], int | None]:
    """Return the names of ``pattern`` and its port, if any.

    Raises:
        InventoryError: an invalid range, port or node name.
    """
    body, port = split_port(pattern, place)
    if "[" not in body and "]" not in body:
        return [check_name(body, place)], port
    parts = _parts(body, place)
    total = 1
    for part in parts:
        total *= len(part)
    if total > LIMIT_NODES:
        raise InventoryError(
            f"{quote(pattern)} expands to {total} nodes, more than the limit of {LIMIT_NODES} per pattern",
            place=place,
            fix="check the bounds of the range",
        )
    return [check_name("".join(name), place) for name in itertools.product(*parts)], port


def check_name(name: str, place: str) -> str:
    """Return ``name`` if it is a valid node name."""
    if _NAME.fullmatch(name) and name[0] != "-" and name not in {".", ".."}:
        return name
    if "=" in name:
        raise InventoryError(
            f"{quote(name)} looks like a variable, wanted the name of a node",
            place=place,
            fix="put it after a node's name, or under [group:vars]",
        )
    if "@" in name:
        raise InventoryError(
            f"{quote(name)}: a node's name cannot include a user",
            place=place,
            fix="write only the name, and set ansible_user",
        )
    raise InventoryError(
        f"{quote(name)} is not a node name (letters, digits, '.', '-', '_', or an address)",
        place=place,
    )


def split_port(text: str, place: str) -> tuple[str, int | None]:
    """Split ``name:port``; an IPv6 address needs brackets before a port."""
    if text.startswith("["):
        inner, closed, tail = text[1:].partition("]")
        if closed and is_ipv6(inner):
            if not tail:
                return inner, None
            if tail.startswith(":"):
                return inner, parse_port(tail[1:], text, place)
    if ":" not in text:
        return text, None
    outside = _BRACKETS.sub("0", text)
    # :func:`expand` reports an unclosed bracket.
    if ":" not in outside or "[" in outside or is_ipv6(outside):
        return text, None
    if outside.count(":") > 1:
        raise InventoryError(
            f"{quote(text)} is neither name:port nor an IPv6 address",
            place=place,
            fix="write an IPv6 address with a port as [address]:port",
        )
    host, _, port = text.rpartition(":")
    return host, parse_port(port, text, place)


def is_ipv6(text: str) -> bool:
    """Whether ``text`` is an IPv6 address."""
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def parse_port(text: str, context: str, place: str) -> int:
    """Parse the port in ``text``."""
    if _NUMBER.fullmatch(text) and 1 <= int(text) <= 65535:
        return int(text)
    raise InventoryError(
        f"{quote(text)} in {quote(context)} is not a port, wanted a number from 1 to 65535",
        place=place,
    )


def _parts(body: str, place: str) -> list[Sequence[str]]:
    """Split ``body`` into the texts between ranges and the values of each range."""
    parts: list[Sequence[str]] = []
    tail = body
    while tail:
        literal, opened, tail = tail.partition("[")
        if "]" in literal:
            raise _bad(body, "']' without '['", place)
        if literal:
            parts.append((literal,))
        if opened:
            inner, closed, tail = tail.partition("]")
            if not closed:
                raise _bad(body, "'[' is not closed", place)
            parts.append(_values(inner, body, place))
    return parts


def _values(inner: str, body: str, place: str) -> Sequence[str]:
    """Return the values of one range, without its brackets."""
    bounds = inner.split(":")
    if len(bounds) not in (2, 3):
        raise _bad(body, f"{quote(f'[{inner}]')} is not begin:end or begin:end:step", place)
    begin, end = bounds[0] or "0", bounds[1]
    step = bounds[2] if len(bounds) == 3 else "1"
    if not end:
        raise _bad(body, f"{quote(f'[{inner}]')} has no end", place)
    if not _NUMBER.fullmatch(step) or int(step) == 0:
        raise _bad(body, f"the step {quote(step)} is not a number above zero", place)
    if len(begin) == 1 and len(end) == 1 and {begin, end} <= set(string.ascii_letters):
        first, last = string.ascii_letters.index(begin), string.ascii_letters.index(end)
        if first > last:
            raise _bad(body, f"{begin} comes after {end}", place)
        return list(string.ascii_letters[first : last + 1 : int(step)])
    return _numbers(begin, end, int(step), body, place)


def _numbers(begin: str, end: str, step: int, body: str, place: str) -> Sequence[str]:
    if not (_NUMBER.fullmatch(begin) and _NUMBER.fullmatch(end)):
        raise _bad(body, f"{quote(begin)} and {quote(end)} are not two numbers or letters", place)
    width = len(begin) if begin[0] == "0" and len(begin) > 1 else 0
    # Ansible's rule: with leading zeros all names have the same length.
    if width and width != len(end):
        raise _bad(body, f"{begin} and {end} differ in length", place)
    if int(begin) > int(end):
        raise _bad(body, f"{begin} comes after {end}", place)
    numbers = range(int(begin), int(end) + 1, step)
    if len(numbers) > LIMIT_NODES:
        raise _bad(
            body, f"it expands to {len(numbers)} nodes, more than the limit of {LIMIT_NODES}", place
        )
    return [str(number).zfill(width) for number in numbers]


def _bad(body: str, why: str, place: str) -> InventoryError:
    return InventoryError(f"invalid range in {quote(body)}: {why}", place=place)
