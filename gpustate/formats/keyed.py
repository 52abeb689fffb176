"""Parse ``key=value`` lines, the output of queries."""

from __future__ import annotations

from collections.abc import Mapping


def lists(text: str) -> dict[str, list[str]]:
    """Values by key in order, stripped; other lines are ignored."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            found.setdefault(key, []).append(value.strip())
    return found


def first(keys: Mapping[str, list[str]], key: str, default: str = "") -> str:
    """The first value of a key."""
    return keys.get(key, [default])[0]
