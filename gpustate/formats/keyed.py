"""Parse ``key=value`` lines, the output of queries."""

from __future__ import annotations

from collections.abc import Mapping


def lists(text: str) -> dict[str, list[str]]:
    """Values by key in order, stripped; other lines are ignored."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            values.setdefault(key, []).append(value.strip())
    return values


def first(keys: Mapping[str, list[str]], key: str, default: str = "") -> str:
    """The first value of a key."""
    return keys.get(key, [default])[0]
