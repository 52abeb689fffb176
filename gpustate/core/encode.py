"""Observations as plain JSON data, so that they can be compared, kept and hashed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any

_AS_THEY_ARE = frozenset((str, int, float, bool, type(None)))


@cache
def _fields(kind: type) -> tuple[str, ...] | None:
    """Names of a dataclass's fields; ``None`` for anything else. Looked up for every value of a fleet."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind))


def plain(value: Any) -> Any:
    """Turn dataclasses, enums, tuples and sets into what JSON has; sets are sorted."""
    kind: Any = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is tuple or kind is list:
        return [item if type(item) in _AS_THEY_ARE else plain(item) for item in value]
    names = _fields(kind)
    if names is not None:
        return {
            name: item if type(item := getattr(value, name)) in _AS_THEY_ARE else plain(item)
            for name in names
        }
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return {
            str(key): plain(item) for key, item in sorted(value.items(), key=lambda kv: str(kv[0]))
        }
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=json.dumps)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no plain form")


def differing(first: object, second: object) -> Iterator[tuple[str, Any, Any]]:
    """Fields in which two instances of one dataclass differ, each with both plain values.

    What is the same object in both is not looked into: ``replace`` keeps most of them.
    """
    kind: Any = type(first)
    for name in _fields(kind) or ():
        first_value, second_value = getattr(first, name), getattr(second, name)
        if first_value is second_value:
            continue
        before, after = plain(first_value), plain(second_value)
        if before != after:
            yield name, before, after


def fingerprint(value: Any) -> str:
    """Hash of the plain form, the same in every process: 16 hexadecimal digits."""
    return plain_fingerprint(plain(value))


def plain_fingerprint(data: Any) -> str:
    """The same of data that is plain already."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
