"""Context of a document: person, nodes, commit, and the command that retries some nodes. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpustate.plan.groups import Group
from gpustate.plan.ranges import fold

#: Keys of a context that are shown, in this order.
_SHOWN = ("inventory", "limit", "exclude", "commit", "person")


def shown(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and value of each part of the context; documents of earlier releases have none."""
    context: Mapping[str, Any] = document.get("context") or {}
    for key in _SHOWN:
        if context.get(key):
            yield key, str(context[key])


def retry(document: Mapping[str, Any], names: Sequence[str]) -> str:
    """The command that repeats the run for some nodes; empty if the document does not have it."""
    words = [str(word) for word in (document.get("context") or {}).get("retry") or ()]
    if not words:
        return ""
    if "--canary" in words:  # names nodes that these are not among
        where = words.index("--canary")
        del words[where : where + 2]
    return f"{shlex.join(words)} -l {shlex.quote(','.join(fold(names)))}"


def troubled(one: Group) -> bool:
    """Nodes that could not be planned, or failed."""
    return one.node["status"] != "ok" and not one.pending
