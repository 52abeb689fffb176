"""Groups of Debian's alternatives: which of several paths one link leads to.

In automatic mode the link moves whenever a package with a higher priority comes; in manual mode it
stays where a person set it.

Sources:
    update-alternatives(1), ``--query``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """One group.

    Args:
        link: the path that is looked at, ``/usr/local/cuda``.
        auto: it moves by priority.
        value: where it leads now; ``None`` when it leads nowhere.
        choices: every path it may lead to.
    """

    link: str
    auto: bool
    value: str | None
    choices: tuple[str, ...]


def parse_query(text: str) -> Group | None:
    """Read ``update-alternatives --query NAME``; ``None`` where there is no such group."""
    link, status, value = "", "", ""
    choices: list[str] = []
    for line in text.splitlines():
        key, colon, rest = line.partition(":")
        rest = rest.strip()
        if not colon:
            continue
        if key == "Link":
            link = rest
        elif key == "Status":
            status = rest
        elif key == "Value":
            value = rest
        elif key == "Alternative":
            choices.append(rest)
    if not link or status not in ("auto", "manual"):
        return None
    return Group(
        link, status == "auto", value if value not in ("", "none") else None, tuple(choices)
    )
