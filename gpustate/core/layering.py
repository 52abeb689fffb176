"""Which layers say something about a node: those of a policy, and those of the inventory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeVar

from gpustate.core.building import parameters
from gpustate.core.facts import NodeFacts, NodeView
from gpustate.core.inventory import InventoryNode, VarsLayer
from gpustate.core.layers import COMMAND_LINE, Layer, Path, value_at
from gpustate.core.parameter_errors import show_value
from gpustate.core.state import AnyState
from gpustate.core.where import parse
from gpustate.documents import JsonView
from gpustate.errors import PolicyError
from gpustate.formats.words import quote_name

T = TypeVar("T")
#: Beside states in a layer: exceptions from the compatibility matrix.
ALLOW = "allow"
#: How the place of a state begins that no file lists.
COMES_WITH = "comes with "
#: Where a policy has values, and which of them is the stronger.
SECTIONS = {"states": 0, "groups": 1, "nodes": 2}


class PolicyLayers(Protocol):
    """What a policy says by section; see :class:`gpustate.core.policy.Policy` for each attribute."""

    @property
    def states(self) -> tuple[AnyState, ...]: ...
    @property
    def groups(self) -> Mapping[str, JsonView]: ...
    @property
    def nodes(self) -> Mapping[str, JsonView]: ...
    @property
    def places(self) -> Mapping[Path, str]: ...
    @property
    def replaced(self) -> Mapping[Path, Any]: ...
    @property
    def last(self) -> tuple[Path, ...]: ...
    @property
    def locked(self) -> Mapping[str, Layer]: ...


def layers_of(policy: PolicyLayers, node: InventoryNode) -> tuple[Layer, ...]:
    """Every layer that says something about a node, the strongest last.

    The fleet's, then those of its groups (a deeper group after its parents), then the node's own; in
    each of them the policy's before the inventory's; then the lock file's, and the command line's at the end.

    Raises:
        PolicyError: an inventory's variable ``gpustate`` has a wrong shape.
    """
    base = {state.name: parameters(state) for state in policy.states}
    by_scope = {
        "fleet": [
            Layer(
                "fleet",
                states=base,
                places=_below(policy.places, ("states",)),
                replaced=_below(policy.replaced, ("states",)),
            )
        ],
        "group": [
            _own_layer(policy, "groups", "group", group) for group in groups_of(policy, node)
        ],
        "node": [
            _own_layer(policy, "nodes", "node", node.name)
            for _ in (1,)
            if node.name in policy.nodes
        ],
    }
    for layer in _inventory_layers(node):
        by_scope[layer.scope].append(layer)
    above = (policy.locked.get(node.name), _last_words(policy, base, node))
    last = (layer for layer in above if layer is not None)
    return (*by_scope["fleet"], *by_scope["group"], *by_scope["node"], *last)


def groups_of(policy: PolicyLayers, node: InventoryNode) -> list[str]:
    """The groups of a policy that a node is in, the strongest last: those of labels before the inventory's."""
    view = NodeView(node.name, node.groups, node.vars, NodeFacts())
    labelled = [key for key in policy.groups if by_label(key) and parse(key).holds(view)]
    groups = node.groups_by_strength or node.groups
    return [*labelled, *(group for group in groups if group in policy.groups)]


def by_label(group: str) -> bool:
    """Whether a group of a policy is a condition on labels and not the name of an inventory's group."""
    return group.lstrip("~(").startswith("label(")


def _below(values: Mapping[Path, T], above: Path) -> dict[Path, T]:
    return {
        path[len(above) :]: value
        for path, value in values.items()
        if path[: len(above)] == above and len(path) > len(above)
    }


def _own_layer(policy: PolicyLayers, section: str, scope: str, name: str) -> Layer:
    body = (policy.groups if section == "groups" else policy.nodes)[name]
    place = policy.places.get((section, name), "")
    above = (section, name)
    replaced = _below(policy.replaced, above)
    return Layer(scope, name, body, place, _below(policy.places, above), replaced=replaced)


def _last_words(policy: PolicyLayers, base: JsonView, node: InventoryNode) -> Layer | None:
    """What the command line said about this node, the narrower last."""
    exact: list[tuple[Path, Any]] = []
    places: dict[Path, str] = {}
    fleet = Layer("fleet", places=policy.places)
    for path in sorted(policy.last, key=lambda path: SECTIONS[path[0]]):
        if path[0] == "states":
            body, keys = base, path[1:]
        elif path[0] == "groups" and path[1] in node.groups:
            body, keys = policy.groups.get(path[1], {}), path[2:]
        elif path[0] == "nodes" and path[1] == node.name:
            body, keys = policy.nodes.get(path[1], {}), path[2:]
        else:
            continue
        if keys and keys[0] != ALLOW:
            exact.append((keys, value_at(body, keys)))
            places[keys] = fleet.place_of(path)
    return Layer(COMMAND_LINE, places=places, exact=tuple(exact)) if exact else None


def _inventory_layers(node: InventoryNode) -> Iterator[Layer]:
    layers = node.layers
    if not layers and node.vars.get("gpustate") is not None:
        origin = node.origins.get("gpustate", "inventory")
        layers = (VarsLayer("node", node.name, node.vars["gpustate"], origin),)
    for layer in layers:
        if layer.value is None:
            continue
        if not isinstance(layer.value, Mapping):
            raise PolicyError(
                f"must map states to parameters, is {show_value(layer.value)}",
                place=place_for_node(layer.origin, node),
            )
        for name, values in layer.value.items():
            if values is not None and name != ALLOW and not isinstance(values, Mapping):
                raise PolicyError(
                    f"{quote_name(name)}: must map parameters to values, is {show_value(values)}",
                    place=place_for_node(layer.places.get((str(name),), layer.origin), node),
                )
        body = {str(n): v for n, v in layer.value.items() if v is not None}
        yield Layer(layer.scope, layer.name, body, layer.origin, layer.places, inventory=True)


def place_for_node(place: str, node: InventoryNode) -> str:
    return f"{place}: {node.name}: gpustate"
