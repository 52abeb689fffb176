"""Lines of ``key=value``, as the looks of states print them."""

from __future__ import annotations


def lists(text: str) -> dict[str, list[str]]:
    """Values of each key in their order, without blanks around them; other lines are left out."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            found.setdefault(key, []).append(value.strip())
    return found
