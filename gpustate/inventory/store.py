"""The groups and nodes that readers fill, and their completion.

A reader adds groups, nodes and variables in the order of its text. :meth:`Store.finish` completes them: every
group without a parent becomes a child of ``all``, a node without a group is in ``ungrouped``, and each group
gets a depth (the longest path from ``all``), which decides the precedence of variables.
"""

from __future__ import annotations

import graphlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpustate.cluster.kubeconfig import Kubeconfig
from gpustate.errors import InventoryError
from gpustate.formats.words import quote, quote_name
from gpustate.inventory.documents import Document


class Value(NamedTuple):
    """One variable's value and its place."""

    value: Any
    origin: str


@dataclass(slots=True, eq=False)
class Group:
    """One group; ``children`` and ``nodes`` keep the order of the source."""

    name: str
    vars: dict[str, Value] = field(default_factory=dict[str, Value])
    children: dict[str, str] = field(default_factory=dict[str, str])  # name: place of the edge
    nodes: dict[str, None] = field(default_factory=dict[str, None])
    priority: int = 1
    depth: int = 0


@dataclass(slots=True, eq=False)
class Node:
    """One node; ``dialect`` selects the variables of its connection."""

    name: str
    source: str | None = None
    dialect: str = "ansible"
    vars: dict[str, Value] = field(default_factory=dict[str, Value])
    groups: dict[str, None] = field(default_factory=dict[str, None])  # direct ones


class Store:
    """All groups and nodes read so far, and notes on unused content."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {"all": Group("all"), "ungrouped": Group("ungrouped")}
        self.nodes: dict[str, Node] = {}
        self.notes: dict[str, None] = {}
        #: Clusters that were read.
        #: Clusters, each with the selector of its Nodes; empty: those with NVIDIA GPUs.
        self.clusters: dict[Kubeconfig, str] = {}
        self._places: dict[int, tuple[Any, Mapping[tuple[str, ...], str]]] = {}
        self._parents: dict[str, list[str]] = {}
        self._closures: dict[tuple[str, ...], tuple[str, ...]] = {}

    def note(self, text: str) -> None:
        """Add a note for the user, once."""
        self.notes[text] = None

    def keep_places(self, name: object, value: Any, document: Document) -> None:
        """Record the places of everything in the variable ``gpustate``; others are not needed."""
        if name == "gpustate" and isinstance(value, dict):
            self._places[id(value)] = value, document.places(value)  # the value lives as long

    def places(self, value: Any) -> Mapping[tuple[str, ...], str]:
        """Return the places recorded by :meth:`keep_places`, by keys."""
        return self._places.get(id(value), (None, {}))[1]

    def group(self, name: object, place: str) -> Group:
        """Return the group ``name``, created if it is new."""
        if not isinstance(name, str) or not name:
            raise InventoryError(
                f"a group's name is {quote(name)}, wanted a string", place=place, fix="quote it"
            )
        return self.groups.setdefault(name, Group(name))

    def node(
        self,
        name: str,
        group: str,
        *,
        source: str | None,
        port: Value | None = None,
        dialect: str = "ansible",
    ) -> Node:
        """Return the node ``name``, created if it is new, as a member of ``group``."""
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = Node(name, source, dialect)
            # As in Ansible, only the first mention of a node can set its port by ``name:port``.
            if port is not None:
                node.vars["ansible_port"] = port
        node.groups[group] = None
        self.groups[group].nodes[name] = None
        return node

    def set_group_var(self, group: str, name: object, value: Value) -> None:
        """Set one variable of a group; ``ansible_group_priority`` is the group's own."""
        key = variable_name(name, value.origin)
        if key != "ansible_group_priority":
            self.groups[group].vars[key] = value
            return
        try:
            self.groups[group].priority = int(value.value)
        except (TypeError, ValueError, OverflowError) as error:
            raise InventoryError(
                f"ansible_group_priority is {quote(value.value)}, wanted a whole number",
                place=value.origin,
            ) from error

    def add_child(self, parent: str, child: str, place: str) -> None:
        """Put one group under another."""
        self.groups[parent].children.setdefault(child, place)

    def finish(self) -> None:
        """Check the tree of groups, complete it, and compute depths."""
        parents: dict[str, list[str]] = {name: [] for name in self.groups}
        for group in self.groups.values():
            for child in group.children:
                parents[child].append(group.name)
        for name, above in parents.items():
            if not above and name != "all":
                above.append("all")
                self.groups["all"].children.setdefault(name, "")
        self._parents = parents
        for name in self._ordered(parents):
            above = parents[name]
            self.groups[name].depth = 1 + max(self.groups[p].depth for p in above) if above else 0
        for node in self.nodes.values():
            self._place_ungrouped(node)
        for name in self.groups.keys() & self.nodes.keys():
            self.note(f"{quote_name(name)} is the name of a node and of a group")

    def closure(self, node: Node) -> tuple[str, ...]:
        """Return every group of ``node``, with parents and without ``all``, lowest precedence first."""
        direct = tuple(node.groups)
        groups = self._closures.get(direct)
        if groups is None:
            ancestors = dict.fromkeys(direct)
            waiting = list(direct)
            while waiting:
                for parent in self._parents[waiting.pop()]:
                    if parent not in ancestors:
                        ancestors[parent] = None
                        waiting.append(parent)
            ancestors.pop("all", None)
            groups = self._closures[direct] = tuple(sorted(ancestors, key=self._strength))
        return groups

    def members(self, group: str) -> list[str]:
        """Return the nodes in ``group`` and below it: its own first, then level by level."""
        nodes: dict[str, None] = {}
        visited = {group: None}
        level: Iterable[str] = (group,)
        while level:
            below: dict[str, None] = {}
            for name in level:
                nodes.update(self.groups[name].nodes)
                below.update(
                    dict.fromkeys(c for c in self.groups[name].children if c not in visited)
                )
            visited.update(below)
            level = tuple(below)
        return list(nodes)

    def _strength(self, name: str) -> tuple[int, int, str]:
        group = self.groups[name]
        return group.depth, group.priority, name

    def _ordered(self, parents: dict[str, list[str]]) -> tuple[str, ...]:
        """Return the groups, parents first."""
        try:
            return tuple(graphlib.TopologicalSorter(parents).static_order())
        except graphlib.CycleError as error:
            # graphlib orders predecessors first: here parents before children.
            names: list[str] = error.args[1]
            # An edge from ``all`` that was added implicitly has no place.
            places = [self.groups[a].children.get(b) for a, b in itertools.pairwise(names)]
            raise InventoryError(
                f"dependency cycle of groups: {' > '.join(quote_name(name) for name in names[:20])}",
                place=next(filter(None, places), None),
                fix="remove one of them from the other's children",
            ) from error

    def _place_ungrouped(self, node: Node) -> None:
        """Put a node into ``ungrouped`` if no other group but ``all`` has it."""
        groups = [name for name in node.groups if name not in {"all", "ungrouped"}]
        if groups and "ungrouped" in node.groups:
            del node.groups["ungrouped"]
            del self.groups["ungrouped"].nodes[node.name]
        elif not groups:
            node.groups["ungrouped"] = None
            self.groups["ungrouped"].nodes[node.name] = None


def variable_name(name: object, place: str) -> str:
    """Return ``name`` if it is a valid variable name."""
    if isinstance(name, str) and name:
        return name
    raise InventoryError(
        f"a variable's name is {quote(name)}, wanted a string", place=place, fix="quote it"
    )
