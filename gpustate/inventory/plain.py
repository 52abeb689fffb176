"""A list on the command line: ``gpu1,gpu2``, ``ubuntu@10.0.0.7:2222,``, ``gpu[01:16],``."""

from __future__ import annotations

from gpustate.errors import InventoryError
from gpustate.formats.words import quote
from gpustate.inventory.ranges import expand
from gpustate.inventory.store import Store, Value


def fill(store: Store, source: str) -> None:
    """Read the nodes of ``source`` into ``store``; blanks and empty items are skipped."""
    place = f"inventory list {quote(source)}"
    for item in source.split(","):
        text = item.strip()
        if not text:
            continue
        user, at_sign, pattern = text.rpartition("@")
        if at_sign and (not user or any(c.isspace() for c in user)):
            raise InventoryError(f"{quote(text)} has no user before '@'", place=place)
        names, port = expand(pattern, place)
        first = None if port is None else Value(port, place)
        for name in names:
            node = store.node(name, "ungrouped", source=None, port=first)
            if at_sign:
                node.vars["ansible_user"] = Value(user, place)
    if not store.nodes:
        raise InventoryError("contains no node", place=place)
