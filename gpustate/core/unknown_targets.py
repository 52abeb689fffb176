"""Groups and nodes that a policy names and the inventory does not: misspelt, or meant for another inventory.

They are no mistake for sure, for one policy may serve several inventories; so they are notes. Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator

from gpustate.core.inventory import Inventory
from gpustate.core.layering import by_label
from gpustate.core.layers import Layer
from gpustate.core.policy import Policy
from gpustate.formats.words import quote

#: So many are told of each kind; a policy may hold every node of another site.
_MOST_LISTED = 10


def describe_unknown_targets(policy: Policy, inventory: Inventory, source: str) -> list[str]:
    """A line for each name that the inventory does not have, with its place and the nearest name.

    Args:
        policy: what names them.
        inventory: as it was read; one made by hand says nothing about names.
        source: of the policy, for names without a line of their own.
    """
    if not inventory.names:
        return []
    fleet = Layer("fleet", place=source, places=policy.places)
    groups = {*inventory.groups} - {"all"}
    return [
        *_lines("groups", [group for group in policy.groups if not by_label(group)], groups, fleet),
        *_lines("nodes", policy.nodes, inventory.names, fleet),
    ]


def _lines(
    section: str, names: Collection[str], existing: Collection[str], fleet: Layer
) -> Iterator[str]:
    unknown = [name for name in names if name not in existing]
    for name in unknown[:_MOST_LISTED]:
        place = fleet.place_of((section, name))
        if section == "groups" and name == "all":
            yield f"{place}: groups: 'all' has no effect; what is for all nodes stands below 'states'"
            continue
        near = difflib.get_close_matches(name, sorted(existing), 1)
        hint = f"; did you mean {near[0]!r}" if near else ""
        yield f"{place}: {section}: the inventory has no {section[:-1]} {quote(name)}{hint}"
    if len(unknown) > _MOST_LISTED:
        more = len(unknown) - _MOST_LISTED
        yield f"{fleet.place_of((section,))}: {section}: and {more} more that the inventory does not have"
