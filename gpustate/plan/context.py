"""Who made a document, for which nodes and from which commit, and the command that tries some nodes again. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpustate.plan.groups import Group
from gpustate.plan.ranges import fold

#: Keys of a context that people are shown, in this order.
_SHOWN = ("inventory", "limit", "exclude", "commit", "person")


def shown(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a page says of where it comes from, as name and value; documents of earlier releases say nothing."""
    context: Mapping[str, Any] = document.get("context") or {}
    for key in _SHOWN:
        if context.get(key):
            yield key, str(context[key])


def retry(document: Mapping[str, Any], names: Sequence[str]) -> str:
    """The command that does the same for some nodes, to be pasted; empty where the document does not tell it."""
    words: Sequence[str] = (document.get("context") or {}).get("retry") or ()
    if not words:
        return ""
    return f"{shlex.join(map(str, words))} -l {shlex.quote(','.join(fold(names)))}"


def troubled(one: Group) -> bool:
    """Nodes that could not be planned, or did not end well."""
    return one.node["status"] != "ok" and not one.pending
