"""What a policy comes to on one node, with everything that was said about each value."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticUndefined

from gpustate.core.building import every_parameter
from gpustate.core.inventory import InventoryNode
from gpustate.core.layers import REMOVED, Layer, LayerValue, Path, dotted, leaves, trace, value_at
from gpustate.core.policy import Policy, layers_of, resolve
from gpustate.core.state import AnyState

FORMAT = "gpustate.resolved/1"


@dataclass(frozen=True, slots=True)
class Value:
    """One value of one state.

    Args:
        path: its state, its parameter, and the keys below that.
        value: as plain data.
        trace: by whom, the one that counts last; empty for a default.
        default: the state's own; :data:`~gpustate.core.layers.REMOVED` where it has none.
    """

    path: Path
    value: Any
    trace: tuple[LayerValue, ...]
    default: Any


@dataclass(frozen=True, slots=True)
class Resolution:
    """All of one node, or of the policy alone.

    Args:
        node: its name; empty: no node.
        origins: by state, what put it into the policy: a place in a file, a preset.
        unused: what was said for states that the policy lacks or removes.
    """

    node: str
    groups: tuple[str, ...]
    states: tuple[str, ...]
    values: tuple[Value, ...]
    allow: Mapping[str, str]
    unused: tuple[str, ...]
    origins: Mapping[str, str]


def resolution(policy: Policy, node: InventoryNode, registered: Collection[str] = ()) -> Resolution:
    """Put the layers of a node together and say where everything comes from.

    Raises:
        PolicyError: as :func:`~gpustate.core.policy.resolve`.
    """
    resolved = resolve(policy, node, registered)
    layers = layers_of(policy, node)
    values = tuple(value for state in resolved.states for value in _values(state, layers))
    return Resolution(
        node.name,
        node.groups_by_strength or node.groups,
        tuple(state.name for state in resolved.states),
        values,
        resolved.allow,
        (*_unused(policy, layers), *resolved.notes),
        {
            state.name: policy.places[path]
            for state in resolved.states
            if (path := ("states", state.name)) in policy.places
        },
    )


def _values(state: AnyState, layers: Sequence[Layer]) -> Iterator[Value]:
    values = every_parameter(state)
    for name, value in values.items():
        default = _default(state, name)
        rows = leaves({name: value}, (state.name,)) if isinstance(value, Mapping) else ()
        for path, content in rows or (((state.name, name), value),):
            below = default if len(path) == 2 else value_at(default, path[2:])
            yield Value(path, content, tuple(trace(layers, path)), below)


def _default(state: AnyState, name: str) -> Any:
    field = type(state).model_fields[name]
    default = field.get_default(call_default_factory=True, validated_data={})
    if default is PydanticUndefined:
        return REMOVED
    if isinstance(default, tuple):
        return list(default)
    return dict(default) if isinstance(default, Mapping) else default


def _unused(policy: Policy, layers: Sequence[Layer]) -> Iterator[str]:
    names = {state.name for state in policy.states} | {"allow"}
    for layer in layers:
        for name in sorted(set(layer.states) - names):
            yield f"{layer.place_of((name,))}: {layer.title}: {name} is not in the policy, and not used"


def as_data(resolved: Resolution, rows: Sequence[Value], source: str) -> dict[str, object]:
    """A resolution, or a part of it, as a document."""
    return {
        "format": FORMAT,
        "node": resolved.node,
        "groups": list(resolved.groups),
        "policy": source,
        "states": list(resolved.states),
        "origins": dict(resolved.origins),
        "values": [_row(value) for value in rows],
        "allow": dict(resolved.allow),
        "unused": list(resolved.unused),
    }


def _row(value: Value) -> dict[str, object]:
    row: dict[str, object] = {
        "path": dotted(value.path),
        "keys": list(value.path),
        "value": value.value,
    }
    row["said"] = [
        {"layer": entry.layer, "place": entry.place}
        | ({"removed": True} if entry.value is REMOVED else {"value": entry.value})
        for entry in value.trace
    ]
    if value.default is not REMOVED:
        row["default"] = value.default
    return row
