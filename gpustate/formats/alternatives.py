"""Groups of Debian's alternatives: the target of a link among several paths.

In automatic mode a package with a higher priority changes the link. In manual mode it stays where the
administrator set it.

Sources:
    update-alternatives(1), ``--query``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """One group.

    Args:
        link: the generic path, ``/usr/local/cuda``.
        value: the current target; ``None`` if there is none.
        choices: all possible targets.
    """

    link: str
    value: str | None
    choices: tuple[str, ...]


def parse_query(text: str) -> Group | None:
    """Read ``update-alternatives --query NAME``; ``None`` if there is no such group."""
    link, status, value = "", "", ""
    choices: list[str] = []
    for line in text.splitlines():
        key, colon, text_value = line.partition(":")
        text_value = text_value.strip()
        if not colon:
            continue
        if key == "Link":
            link = text_value
        elif key == "Status":
            status = text_value
        elif key == "Value":
            value = text_value
        elif key == "Alternative":
            choices.append(text_value)
    if not link or status not in ("auto", "manual"):
        return None
    return Group(link, value if value not in ("", "none") else None, tuple(choices))
